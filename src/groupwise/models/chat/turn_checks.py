"""Checks of a chat template for episodes of many turns: a later prompt must begin with what was read and said before.

Conversations of marked texts are rendered turn by turn, as an episode would grow, and compared.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from groupwise.core.environment import Says, Spoken
from groupwise.core.errors import UsageError
from groupwise.models.chat.later_turns import ASKED, RENDERING, Glue, LaterPrompts, opening_of
from groupwise.models.chat.prompts import Chat
from groupwise.models.chat.template_checks import TemplateFinding, template_finding, where_they_part
from groupwise.models.chat.thinking import CLOSE, OPEN

APPENDING = "chat.template to one that only appends"
#: How many turns of the policy's are played.
TURNS = 3
_GROW = 'task.history = "grow", under which earlier turns stay as they were sampled'
_REWRITE = 'task.history = "rewrite", under which each turn reads the prompt as the template writes it then'
_THOUGHT = re.compile(rf"{OPEN}.*?{CLOSE}\s*|{OPEN}\s*", re.DOTALL)


@dataclass(frozen=True)
class _Turn:
    """One turn of a conversation that was rendered: the prompt before it, what was answered, the prompt after it."""

    before: str
    answer: str
    after: str

    def rest(self) -> str | None:
        """Return what the template writes after the turn; None if it does not begin with prompt and answer as they
        were. White space before the answer may be the policy's to write.
        """
        match = re.match(re.escape(self.before) + r"\s*" + re.escape(self.answer), self.after)
        return None if match is None else self.after[match.end() :]

    def without_thoughts(self) -> "_Turn":
        """Leave thinking out everywhere."""
        prompt = _THOUGHT.sub("", self.before)
        answer = _THOUGHT.sub("", self.before + self.answer).removeprefix(prompt)
        return _Turn(prompt, answer, _THOUGHT.sub("", self.after))


def check_turns(chat: Chat, ends: frozenset[int], roles: Iterable[str], history: str) -> list[TemplateFinding]:
    """Tell whether episodes can grow by appending, for an environment that speaks in these roles; fatal findings first.

    ends     the ids that end a completion (Policy.eos)
    roles    of the environment's messages, such as "user"; messages of role "tool" are tried two at a time as well
    history  task.history; with "grow" earlier turns stay as they were sampled, so that thinking which the template
             would take out of them does no harm, and with "rewrite" each prompt is rendered anew
    """
    try:
        glue = Glue(chat, ends)
    except UsageError as error:
        return [TemplateFinding(str(error), "tokenizer", "nothing that an environment says would be safe", True)]
    if chat.template is None:
        return []
    findings = [*_dated(chat)]
    for role in dict.fromkeys(roles):
        for reply in ((role,), (role, role)) if role == "tool" else ((role,),):
            finding = _rewritten(glue, reply) if history == "rewrite" else _reply(glue, reply, history == "grow")
            if finding is not None:
                findings.append(finding)
                break
    return sorted(findings, key=lambda finding: not finding.fatal)


def _reply(glue: Glue, reply: Sequence[str], grows: bool) -> TemplateFinding | None:
    """Tell what is wrong with turns that are answered by messages of these roles: the worst of it."""
    said = _after(reply)
    try:
        between = glue.between(tuple(reply))
        turns = [turn for answers in _answers(glue.chat) for turn in _played(glue.chat, reply, answers)]
    except UsageError as error:
        return _refusal(reply, error)
    forgetful = False
    for turn in turns:
        rest = turn.rest()
        if rest is None:
            bare = turn.without_thoughts()
            forgetful, rest = True, bare.rest()
            if rest is None:
                there, expected = where_they_part(bare.after, bare.before + bare.answer)
                what = f"renders earlier turns anew {said}: {there} in place of {expected}"
                return template_finding(what, _ways(glue, reply), True)
        if _THOUGHT.sub("", _unmarked(rest)) != _THOUGHT.sub("", _unmarked("Zq".join(between.around))):
            what = f"writes other text between later turns than between the first two, {said}: {rest[:60]!r}"
            return template_finding(what, _ways(glue, reply), True)
    if not forgetful:
        return None
    what = f"takes the thinking out of earlier turns, or rewrites it, {said}"
    if grows:
        return template_finding(what, 'task.history = "grow" leaves it in, in longer turns than the model may know')
    return template_finding(what, _ways(glue, reply, _GROW), True)


def _after(reply: Sequence[str]) -> str:
    return f"after {' and '.join(reply)} messages" if len(reply) > 1 else f"after a message of role {reply[0]}"


def _refusal(reply: Sequence[str], error: UsageError) -> TemplateFinding:
    what = f"does not go on {_after(reply)}: {str(error).removesuffix(f'; {RENDERING}')}"
    return template_finding(what, RENDERING, True)


def _ways(glue: Glue, reply: Sequence[str], *first: str) -> str:
    """Tell what to set where a template does not append."""
    rewritten = [_REWRITE] if _rewritten(glue, reply) is None else []
    return f"set {', or '.join([*first, *rewritten, APPENDING])}"


def _rewritten(glue: Glue, reply: Sequence[str]) -> TemplateFinding | None:
    """Tell what is wrong with prompts that are rendered anew for each turn: their ids must be those of the text."""
    said = _after(reply)
    history, decode = LaterPrompts(glue), glue.chat.tokenizer.decode
    for answers in _answers(glue.chat):
        spoken: list[Spoken] = []
        for t, (answer, turn) in enumerate(zip(answers, _played(glue.chat, reply, answers), strict=True)):
            messages = tuple(Says(role, f"Zq7y{t}{i}") for i, role in enumerate(reply))
            spoken.append(Spoken(tuple(glue.chat.tokenizer(answer, add_special_tokens=False)["input_ids"]), messages))
            try:
                ids = history.onward(ASKED, spoken).ids
            except UsageError as error:
                return _refusal(reply, error)
            text, whole = decode(ids), decode(glue.chat.ids(turn.after))
            if text != whole:
                there, expected = where_they_part(text, whole)
                what = f"writes an earlier turn by what it says, {said}: {expected}, and for other words {there}"
                return template_finding(what, f"set {APPENDING}", True)
    return None


def _answers(chat: Chat) -> list[list[str]]:
    """Tell what the policy may say in TURNS turns: without thinking, and with it, each where it can be."""
    opened, off = opening_of(chat).startswith(OPEN), chat.settings.thinking == "off"
    plain = [f"Zq8y{t}" for t in range(TURNS)]
    thoughts = [f"{'' if opened else OPEN + chr(10)}Zq9y{t}\n{CLOSE}\n\nZq8y{t}" for t in range(TURNS)]
    return [*([] if opened else [plain]), *([] if off and not opened else [thoughts])]


def _played(chat: Chat, reply: Sequence[str], answers: Iterable[str]) -> Iterator[_Turn]:
    """Return each turn of a conversation in which every answer is followed by messages of these roles."""
    conversation = chat.messages(ASKED)
    before, opening = chat.text(ASKED), opening_of(chat)
    for t, answer in enumerate(answers):
        conversation.append({"role": "assistant", "content": opening + answer})
        conversation.extend({"role": role, "content": f"Zq7y{t}{i}"} for i, role in enumerate(reply))
        after = chat.render(conversation) + chat.settings.open
        yield _Turn(before, answer, after)
        before = after


def _unmarked(text: str) -> str:
    return re.sub(r"Zq7y\d+", "Zq", text)


def _dated(chat: Chat) -> Iterator[TemplateFinding]:
    """Tell whether a prompt is another one tomorrow: a template that calls for the date fails without a clock."""
    question = chat.messages(ASKED)
    chat.render(question)
    try:
        chat.render(question, strftime_now="")
    except UsageError:
        what = "writes today's date: an episode that goes on tomorrow, or is played again, would have another prompt"
        yield template_finding(what, "write the date into a copy of the template and set chat.template to it", True)
