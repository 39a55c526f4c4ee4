"""Checks of what a chat template does to a conversation, by rendering one before anything is trained.

A template is a program that comes with a model. Each check renders marked text and looks where it went. Only the check
for the date reads the template's source, because rendering would show it on another day only.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from groupwise.core.errors import UsageError
from groupwise.core.samples import Sample
from groupwise.models.chat.prompts import Chat, Message
from groupwise.models.chat.thinking import CLOSE, OPEN, split_thinking
from groupwise.models.load import text_ids

#: Prompts that are looked at one by one.
LOOKED_AT = 32


@dataclass(frozen=True)
class TemplateFinding:
    """Something wrong with template, prompts or tokenizer. A `fatal` one refuses the run; another is only reported.

    what    what is wrong
    where   the template, the prompts, the tokenizer
    remedy  what to do
    kind    of what is wrong: each is reported once
    """

    what: str
    where: str
    remedy: str
    fatal: bool
    kind: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.where}: {self.what}; {self.remedy}"


def check_chat(chat: Chat, ends: Collection[int], samples: Sequence[Sample]) -> list[TemplateFinding]:
    """Return all findings of the checks here: of the template, if there is one, and of the first prompts; fatal ones
    first.

    `ends` are the ids that end a completion (Policy.eos).
    """
    first = samples[:LOOKED_AT]
    # A template may drop what no prompt says.
    used = {"user", *(str(message.get("role")) for sample in first for message in chat.messages(sample))}
    findings = [*check_template(chat, ends, used), *check_prompts(chat, ends, first)]
    return sorted(findings, key=lambda finding: not finding.fatal)


def require_no_fatal(findings: Iterable[TemplateFinding]) -> None:
    """Raise UsageError with every fatal finding."""
    fatal = [str(finding) for finding in findings if finding.fatal]
    if fatal:
        raise UsageError("; also: ".join(fatal))


def check_template(chat: Chat, ends: Collection[int], used: Collection[str]) -> list[TemplateFinding]:
    """Tell what the template, if there is one, does to text, to the start of an answer and to its end."""
    if chat.template is None:
        return []
    return [
        *_first_of_kind(_texts_rendered(chat, used)),
        *_answer(chat, ends),
        *_later_turns(chat),
        *_source(chat),
    ]


def check_prompts(chat: Chat, ends: Collection[int], samples: Iterable[Sample]) -> list[TemplateFinding]:
    """Tell what of the prompts' ids is wrong, each kind once, with the first sample that shows it."""
    return _first_of_kind(finding for sample in samples for finding in _prompt(chat, ends, sample))


def _first_of_kind(findings: Iterable[TemplateFinding]) -> list[TemplateFinding]:
    first: dict[str, TemplateFinding] = {}
    for finding in findings:
        first.setdefault(finding.kind or finding.what, finding)
    return list(first.values())


# Every message's text must be in the rendered conversation.

#: Words that no template has, with white space around and inside them.
_MARKS: Sequence[Message] = (
    {"role": "system", "content": " Zq1 the\n\n  system "},
    {"role": "user", "content": " Zq2 the\n\n  first question\n"},
    {"role": "assistant", "content": " Zq3 the\n\n  first answer "},
    {"role": "user", "content": "\n Zq4 the\n\n  last question "},
)


def _texts_rendered(chat: Chat, used: Collection[str]) -> Iterator[TemplateFinding]:
    """Find whose text is missing from a rendered conversation, or changed in it."""
    for conversation, role in ((_MARKS[3:], "user"), ((_MARKS[0], _MARKS[3]), "system"), (_MARKS[1:], "assistant")):
        try:
            text = chat.render(conversation)
        except UsageError as error:
            if role in used:
                yield template_finding(f"refuses {_whose(role)}: {error}", _without(role), True)
            continue
        for message in conversation:
            earlier = message is _MARKS[1]
            whose = "what the user said in earlier turns" if earlier else _whose(message["role"])
            content = message["content"]
            start = text.find(content.split()[0])
            if start < 0:
                yield template_finding(f"drops {whose}", _without(message["role"]), role in used)
            elif content.strip() not in text:
                around = text[max(0, start - 5) : start + 40]
                yield template_finding(f"changes {whose}: {around!r}", "see that it is meant")


def _whose(role: str) -> str:
    known = {"assistant": "the text of earlier answers", "system": "the system prompt"}
    return known.get(role, f"the {role}'s text")


def _without(role: str) -> str:
    if role == "system":
        return "take the system prompt out (chat.system, or the data's), or set chat.template to one that renders it"
    return "set chat.template to a Jinja file that renders it"


# Where an answer starts and how it ends.

_QUESTION: Message = {"role": "user", "content": "Zq5"}
_ANSWER = "Zq6"


def _answer(chat: Chat, ends: Collection[int]) -> Iterator[TemplateFinding]:
    opened = chat.settings.open + _ANSWER
    try:
        answered = chat.render([_QUESTION, {"role": "assistant", "content": opened}], prompt=False)
    except UsageError as error:
        yield template_finding(f"an answered question cannot be checked: {error}", "check its end id")
        return
    before, mark, after = answered.partition(_ANSWER)
    if not mark:
        yield template_finding("drops the answer of a question", "the start of answers is unchecked")
        return
    prompt, start = chat.render([_QUESTION]), before.rstrip().removesuffix(chat.settings.open.strip()).rstrip()
    if prompt == chat.render([_QUESTION], prompt=False) and start != prompt.rstrip():
        what = (
            f"a template without a generation prompt: after a question it writes {_after(prompt)!r}, but an answered "
            f"one has {_after(before)!r} before the answer"
        )
        yield template_finding(what, "add {% if add_generation_prompt %}...{% endif %} to it", True)
        return
    yield from _border(chat, prompt + chat.settings.open, before, answered)
    yield from _ending(chat, ends, after)


def _after(text: str) -> str:
    return text.rpartition(_QUESTION["content"])[2]


_UNKNOWN = "training is not touched, for nothing is rendered again, but the model may not know such prompts"


def _border(chat: Chat, prompt: str, before: str, answered: str) -> Iterator[TemplateFinding]:
    """Check prefix preservation: an answered question begins with the very ids that the answer was sampled after."""
    if not answered.startswith(prompt):
        rendered, expected = where_they_part(answered, prompt)
        what = f"renders an answered question otherwise than the prompt of its answer: {rendered} in place of"
        yield template_finding(f"{what} {expected}", _UNKNOWN)
        return
    between = before[len(prompt) :]
    if between.replace(OPEN, "").replace(CLOSE, "").strip():  # an empty thinking is the model's to write, or to leave
        what = f"a generation prompt that stops short: an answered question has {between!r} before the answer"
        yield template_finding(what, "see that the model writes that by itself")
        return
    head, full = chat.ids(prompt), chat.ids(answered)
    if full[: len(head)] != head:
        yield template_finding(f"a token straddles the border after {prompt[-10:]!r}", _UNKNOWN)


def where_they_part(text: str, other: str) -> tuple[str, str]:
    """Quote what follows in two texts after what they begin with alike."""
    shortest = min(len(text), len(other))
    at = next((i for i in range(shortest) if text[i] != other[i]), shortest)
    return repr(text[at : at + 30]), repr(other[at : at + 30])


def _ending(chat: Chat, ends: Collection[int], after: str) -> Iterator[TemplateFinding]:
    """Check that the first id beside those of plain text that the template writes after an answer is one that ends a
    completion; some folders have it as an added token that is not special.
    """
    tokenizer, marks = chat.tokenizer, {*_special(chat), *chat.tokenizer.added_tokens_decoder, *ends}
    closing = [i for i in text_ids(tokenizer, [after])[0] if i in marks]
    named = ", ".join(f"{tokenizer.convert_ids_to_tokens(i)} ({i})" for i in sorted(ends))
    if closing and closing[0] not in ends:
        token = f"{tokenizer.convert_ids_to_tokens(closing[0])} ({closing[0]})"
        what = (
            f"closes an answer with {token}, which is not among the ids that end a completion, {named}: answers would "
            "run on to the limit"
        )
        remedy = f"add {closing[0]} to eos_token_id in the model's generation_config.json"
        yield template_finding(what, remedy, True)
    if not closing:
        what = f"closes an answer with {after!r}, which holds no id that ends a completion"
        yield template_finding(what, f"the model itself must end its answers with {named}")


def _special(chat: Chat) -> dict[int, str]:
    """Return the ids that text without special tokens lacks, with what they look like in text."""
    added = chat.tokenizer.added_tokens_decoder.items()
    named = zip(chat.tokenizer.all_special_ids, chat.tokenizer.all_special_tokens, strict=True)
    return {**dict(named), **{i: str(token) for i, token in added if token.special}}


# Conversations that go on.


def _later_turns(chat: Chat) -> Iterator[TemplateFinding]:
    """Tell whether the ids of one turn begin the ids of the next, thinking included."""
    thought = f"{OPEN}\nZq7\n{CLOSE}\n\nZq8"
    try:
        after = chat.render([_QUESTION, {"role": "assistant", "content": thought}, {"role": "user", "content": "Zq9"}])
    except UsageError:
        return  # a finding of the text checks where prompts have earlier answers
    before = chat.ids(chat.render([_QUESTION]))
    if chat.ids(after)[: len(before)] == before and thought in after:
        return
    why = "renders earlier turns anew" if "Zq7" in after else "takes the thinking out of earlier answers"
    what = f"{why}: what was sampled in one turn is not what the next turn reads"
    remedy = "single-turn runs are not touched; those of environments are looked at further"
    yield template_finding(what, remedy)


def _source(chat: Chat) -> Iterator[TemplateFinding]:
    """Tell what of the tokenizer's tokens, and of the template's source, is not what a run expects."""
    hidden = [tag for tag in (OPEN, CLOSE) if tag in _special(chat).values()]
    if hidden:
        what = f"{' and '.join(hidden)} are special tokens, and rewards read text without special tokens"
        yield TemplateFinding(what, "tokenizer", "make them ordinary added tokens, or do not score the tags", False)
    if "strftime_now" in (chat.template or ""):
        remedy = "write the date into a copy of the template and set chat.template to it"
        yield template_finding("may write today's date: a run goes on with other prompts tomorrow", remedy)


def template_finding(what: str, remedy: str, fatal: bool = False) -> TemplateFinding:
    """Tell what is wrong with a template."""
    return TemplateFinding(what, "chat template", remedy, fatal)


# The prompts themselves.

_NOTHING_LOST = "see that nothing is lost that an answer needs"


def _prompt(chat: Chat, ends: Collection[int], sample: Sample) -> Iterator[TemplateFinding]:
    where, tokenizer = f"prompt of sample {sample.key}", chat.tokenizer
    try:
        text = chat.text(sample)
        ids = chat.ids(text, f"sample {sample.key}: ")
    except UsageError as error:
        yield TemplateFinding(str(error), "prompts", "nothing can be asked of such a sample", True, "refused")
        return
    if not ids:
        yield TemplateFinding("it has no tokens", where, "take the sample out", True, "empty")
        return
    lead = next((n for n, i in enumerate(ids) if i != tokenizer.bos_token_id), len(ids))
    if lead > 1:
        what = f"it begins with {lead} BOS ({tokenizer.bos_token})"
        remedy = "one is right: take it out of the template, or out of the data where the data is rendered already"
        yield TemplateFinding(what, where, remedy, True, "bos")
    if ids[-1] in ends:
        what = f"it ends in {tokenizer.convert_ids_to_tokens(ids[-1])}, which ends an answer before it has begun"
        remedy = "take it out of the template's generation prompt, or of the data"
        yield TemplateFinding(what, where, remedy, True, "end")
    yield from _texts(chat, sample, text, where)
    yield from _unread(chat, sample, text, where)
    yield from _round_trip(chat, text, ids, where)


def _texts(chat: Chat, sample: Sample, text: str, where: str) -> Iterator[TemplateFinding]:
    """Check that each message's own text is in the prompt, and none of it is read as a control token."""
    plain = [{"role": "user", "content": sample.prompt}]
    messages = plain if chat.template is None else chat.messages(sample)
    unwritten = chat.dropped(messages, tools=sample.tools)
    for message in messages:
        role, content = str(message.get("role")), str(message.get("content"))
        own_text = split_thinking(content)[1] if role == "assistant" else content.strip()
        if own_text not in text or message is unwritten:
            lost = _letters(own_text) not in _letters(text) or message is unwritten
            what = f"the chat template {'drops' if lost else 'changes'} {_whose(role)}: {own_text[:40]!r} is not in it"
            remedy = _without(role) if lost else "see that it is meant"
            yield TemplateFinding(what, where, remedy, lost, f"text {role}")
        control = [token for token in _special(chat).values() if token in content]
        if control:
            what = f"{_whose(role)} holds {', '.join(control)}, which the tokenizer reads as a control token"
            yield TemplateFinding(what, where, "take it out of the data", False, f"control {role}")


def _unread(chat: Chat, sample: Sample, text: str, where: str) -> Iterator[TemplateFinding]:
    """Tell what messages hold beside their text, where the prompt lacks it or has it written otherwise."""
    if chat.template is None:
        return
    messages = chat.messages(sample)
    for key in sorted({key for message in messages for key in message} - {"role", "content", "tool_calls"}):
        others = [{name: value for name, value in message.items() if name != key} for message in messages]
        if chat.render(messages, tools=sample.tools) == chat.render(others, tools=sample.tools):
            what = f"the chat template does not read {key!r} of its messages"
            yield TemplateFinding(what, where, _NOTHING_LOST, False, f"unread {key}")
    calls = [call.get("function", call) for message in messages for call in message.get("tool_calls") or ()]
    for arguments in (call.get("arguments") for call in calls):
        if isinstance(arguments, str) and arguments.strip() not in text:
            what = f"the chat template writes the arguments of a call otherwise: {arguments[:40]!r} is not in it"
            remedy = "write them in the data as an object, not as text"
            yield TemplateFinding(what, where, remedy, False, "arguments")


def _bare(text: str, bos: str | None) -> str:
    """Return a text without BOS in front, which the tokenizer may have put there, and without white space around."""
    while bos and text.startswith(bos):
        text = text[len(bos) :]
    return text.strip()


def _letters(text: str) -> str:
    return "".join(text.split()).casefold()


def _round_trip(chat: Chat, text: str, ids: Sequence[int], where: str) -> Iterator[TemplateFinding]:
    tokenizer = chat.tokenizer
    unknown = sum(i == tokenizer.unk_token_id for i in ids)
    if unknown:
        what = f"{unknown} of its {len(ids)} tokens are {tokenizer.unk_token}: the tokenizer does not know the text"
        remedy = "use a model whose tokenizer reads it, or leave such samples out"
        yield TemplateFinding(what, where, remedy, False, "unknown")
        return
    back = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    before, after = _bare(text, tokenizer.bos_token), _bare(back, tokenizer.bos_token)
    if before != after:
        written, read = where_they_part(before, after)
        what = f"the tokenizer changes it: {written} is read as {read}"
        yield TemplateFinding(what, where, _NOTHING_LOST, False, "round trip")
