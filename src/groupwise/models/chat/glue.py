"""The ids between two turns of an episode: the chat template's own text there, and what the environment says in it.

The ids of an episode only grow: the prompt of turn t + 1 is that of turn t, the ids sampled in turn t, and the glue.
Nothing that was sampled is decoded and encoded again.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from groupwise.core.environment import Before, Says, Spoken
from groupwise.core.errors import UsageError
from groupwise.core.samples import Sample
from groupwise.models.chat.control_tokens import ControlTokens, Cut
from groupwise.models.chat.prompts import Chat, Message

RENDERING = "set chat.template to a Jinja file that renders them as they are"

_ANSWER = "Zq6a"


@dataclass(frozen=True)
class Between:
    """What a template writes from the end of a turn to the beginning of the next, around messages of certain roles.

    before    all that is rendered up to the end of the turn
    around    the texts around the k messages, k + 1 of them
    marks     the k texts that stood for the messages
    runs      the same text cut at its control tokens: plain texts, each in parts, a text or the number of a message
    controls  those control tokens, one less than there are runs
    """

    before: str
    around: tuple[str, ...]
    marks: tuple[str, ...]
    runs: tuple[tuple[str | int, ...], ...]
    controls: tuple[int, ...]

    def inside(self, rendered: str, at: int) -> str | None:
        """What a template made of message `at`, from a text rendered with marks for the others; None where the rest
        of the text is not what it is for a mark.
        """
        return inside_of(rendered, (self.before + self.around[0], *self.around[1:]), self.marks, at)

    def filled(self, texts: Sequence[str], after: int | None) -> Cut:
        """With the messages' texts in it; without its first control token where the turn ended in it (`after`)."""
        runs = tuple("".join(texts[p] if isinstance(p, int) else p for p in run) for run in self.runs)
        spoken = any(isinstance(part, int) for part in self.runs[0])
        ended = bool(self.controls) and not spoken and self.controls[0] == after
        return Cut(runs[ended:], self.controls[ended:])


def inside_of(rendered: str, around: Sequence[str], marks: Sequence[str], at: int) -> str | None:
    """What stands in place of mark `at` in a text that has k marks with k + 1 texts around them; None where the rest of
    it is not these marks and texts.

    >>> inside_of("<Zq7x><HIGHER>", ("<", "><", ">"), ("Zq7x", "Zq8x"), at=1)
    'HIGHER'
    """
    left = "".join(text + mark for text, mark in zip(around[:at], marks[:at], strict=True)) + around[at]
    later = zip(marks[at + 1 :], around[at + 2 :], strict=True)
    right = around[at + 1] + "".join(mark + text for mark, text in later)
    same = rendered.startswith(left) and rendered.endswith(right) and len(left) + len(right) <= len(rendered)
    return rendered[len(left) : len(rendered) - len(right)] if same else None


class Glue:
    """The ids that follow a turn of the policy's, by what the environment says to it.

    Control tokens are the template's alone: what an environment says is read as plain text, whatever it holds.
    """

    def __init__(self, chat: Chat, ends: frozenset[int]) -> None:
        """`ends` are the ids that end a completion (Policy.eos).

        Raises UsageError for a tokenizer that cannot read the text of a control token as text.
        """
        self.chat = chat
        self.controls = ControlTokens(chat.tokenizer, ends)
        self._between: dict[tuple[str, ...], Between] = {}
        end = chat.tokenizer.eos_token_id
        self._least = self._newline() or (min(ends) if end is None else end,)

    def glue(self, turn: Sequence[int], messages: Sequence[Says]) -> tuple[int, ...]:
        """The ids from the end of a turn to where the policy speaks again, chat.open included; never none.

        turn      the ids that the policy sampled; where they do not end in the template's end of turn, it comes first
        messages  what the environment says, in order

        Without a template these are the messages' texts alone; where they have no ids, a newline, or the tokenizer's
        end id where it has none. A message that the template renders otherwise than others is put in as it is.
        Raises UsageError where the template's text between turns cannot be seen, or the tokenizer cannot read a text.
        """
        between = self.between(tuple(message.role for message in messages))
        texts = [self._rendered(between, messages, at) for at in range(len(messages))]
        cut = between.filled(texts, turn[-1] if turn else None)
        return self.controls.ids_of(cut) or self._least

    def onward(self, sample: Sample, spoken: Sequence[Spoken]) -> Before:
        """What comes behind these turns of a sample's episode, whose ids only grow."""
        return Before(self.glue(spoken[-1].ids, spoken[-1].messages))

    def between(self, roles: tuple[str, ...]) -> Between:
        """What the template writes around messages of these roles: looked for once.

        Raises UsageError where it cannot be seen.
        """
        if roles not in self._between:
            self._between[roles] = self._look(roles)
        return self._between[roles]

    def _look(self, roles: tuple[str, ...]) -> Between:
        marks = tuple(f"Zq{7 + i}x" for i in range(len(roles)))
        text = self._render([Says(role, mark) for role, mark in zip(roles, marks, strict=True)])
        head, answer, rest = text.partition(_ANSWER) if self.chat.template is not None else ("", "", text)
        if self.chat.template is not None and (not answer or _ANSWER in rest):
            raise UsageError(f"the chat template drops or changes earlier answers; {RENDERING}")
        pattern = "|".join(marks) or "(?!)"
        if re.findall(pattern, rest) != list(marks):
            raise UsageError(f"the chat template drops or changes messages of role {', '.join(roles)}; {RENDERING}")
        around = tuple(re.split(pattern, rest))
        return Between(head + answer, around, marks, *self._runs(around))

    def _runs(self, around: Sequence[str]) -> tuple[tuple[tuple[str | int, ...], ...], tuple[int, ...]]:
        """Texts around messages, cut at their control tokens: what is between these, and these."""
        runs: list[tuple[str | int, ...]] = [()]
        controls: tuple[int, ...] = ()
        for i, text in enumerate(around):
            cut = self.controls.cut(text)
            runs[-1] += (cut.texts[0],)
            runs += [(part,) for part in cut.texts[1:]]
            controls += cut.controls
            runs[-1] += (i,) if i + 1 < len(around) else ()
        return tuple(runs), controls

    def _rendered(self, between: Between, messages: Sequence[Says], at: int) -> str:
        """What the template makes of one message's text, say without the white space around it."""
        marked = [Says(m.role, mark) for m, mark in zip(messages, between.marks, strict=True)]
        try:
            text = self._render([*marked[:at], messages[at], *marked[at + 1 :]])
        except UsageError:  # it has rendered a mark in this place
            return messages[at].text
        inside = between.inside(text, at)
        return messages[at].text if inside is None else inside

    def _render(self, messages: Sequence[Says]) -> str:
        if self.chat.template is None:
            return "".join(message.text for message in messages) + self.chat.settings.open
        turns: list[Message] = [{"role": m.role, "content": m.text} for m in messages]
        question = self.chat.messages(Sample(key="", prompt="Zq5", answer=""))
        return (
            self.chat.render([*question, {"role": "assistant", "content": _ANSWER}, *turns]) + self.chat.settings.open
        )

    def _newline(self) -> tuple[int, ...]:
        try:
            return tuple(self.controls.plain("\n"))
        except UsageError:  # a tokenizer of few characters
            return ()
