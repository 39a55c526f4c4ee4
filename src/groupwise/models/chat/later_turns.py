"""Prompts of later turns of an episode: ids that only grow, or, where a template rewrites earlier turns, made anew.

Growing, the prompt of turn t + 1 is that of turn t, the ids sampled in turn t, and the glue: the template's own text
between two turns, and what the environment says in it. Nothing that was sampled is decoded and encoded again.

    prompt, turn 1      <user> 6 times 7?  <assistant>  <think> a product ... </think> multiply(6, 7)
    prompt, turn 2      <user> 6 times 7?  <assistant>  multiply(6, 7)  <tool> 42  <assistant>

Made anew, as here, each turn is sampled from the prompt that it stands behind, and trained behind the same ids.

Control tokens are those that a tokenizer reads in text but that are no text. They are the template's and the policy's
own alone: what an environment says is read as plain text, whatever it holds. What a template writes around messages is
found by rendering marks in their places.
"""

import bisect
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Tokenizer

from groupwise.core.environment import Before, Says, Spoken
from groupwise.core.errors import UsageError
from groupwise.core.samples import Sample
from groupwise.models.chat.prompts import Chat, Message
from groupwise.models.chat.thinking import CLOSE, OPEN
from groupwise.models.load import reading

#: Stands before a text that follows something else, and is taken off its ids again: a tokenizer may treat the first
#: text of all otherwise, say by a space in front. Code points that no text has a meaning for.
_BORDER = "\ue0f7\ue0f8\ue0f9"


@dataclass(frozen=True)
class Cut:
    """A text as plain texts with control tokens between them: texts[0] controls[0] texts[1] ... texts[-1]."""

    texts: tuple[str, ...]
    controls: tuple[int, ...] = ()

    def __add__(self, other: "Cut") -> "Cut":
        """Join two cut texts: the plain texts where they meet become one.

        >>> Cut(("a", "b"), (7,)) + Cut(("c",))
        Cut(texts=('a', 'bc'), controls=(7,))
        """
        texts = (*self.texts[:-1], self.texts[-1] + other.texts[0], *other.texts[1:])
        return Cut(texts, self.controls + other.controls)


class ControlTokens:
    """The control tokens of a tokenizer: its added tokens, special or not (<|im_end|>, <think>), less white space and
    less those that are words of its model as well.
    """

    def __init__(self, tokenizer: Any, ends: frozenset[int]) -> None:
        """Find the control tokens of a tokenizer; `ends` are the ids that end a completion.

        Raises UsageError for a tokenizer that cannot read a control token's text as text.
        """
        self.tokenizer, self.ends = tokenizer, ends
        if getattr(tokenizer, "backend_tokenizer", None) is None:
            raise UsageError(
                "the model's tokenizer has no tokenizer.json, so the text of a control token in an observation cannot "
                "be told from the token; use a model with a fast tokenizer"
            )
        added: dict[int, AddedToken] = dict(tokenizer.added_tokens_decoder)
        blank = {i: token for i, token in added.items() if token.content.isspace() and not token.special}
        whole = json.loads(tokenizer.backend_tokenizer.to_str())
        # One with no added tokens but white space, and nothing put around a text.
        nothing = {"truncation": None, "padding": None, "post_processor": None}
        rest = [token for token in whole["added_tokens"] if token["id"] in blank]
        self._plain = Tokenizer.from_str(json.dumps({**whole, **nothing, "added_tokens": rest}))
        self._plain.add_special_tokens([AddedToken(_BORDER, normalized=False)])
        self._blank = {self._plain.token_to_id(token.content): i for i, token in blank.items()}
        self.tokens = {i: token for i, token in added.items() if i not in blank}
        model = whole["model"]
        at = model.get("unk_id")  # a unigram's, whose vocabulary is a list of (piece, score)
        unknown = model.get("unk_token") if at is None else model["vocab"][at][0]
        words = {i for i, t in self.tokens.items() if t.content == unknown and i not in ends}
        words |= {i for i, t in self.tokens.items() if not t.special and self._read(t.content) == [i]}
        self.ids = frozenset(self.tokens) - words
        self._require_readable()

    def cut(self, text: str) -> Cut:
        """Return a text that may hold control tokens, such as a template's, cut at them as the tokenizer does.

        Raises UsageError if the tokenizer cannot read it.
        """
        with reading(""):
            encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        texts, controls, start = [], [], 0
        for i, (left, right) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True):
            if i in self.ids:
                texts.append(text[start:left])
                controls.append(i)
                start = right
        return Cut((*texts, text[start:]), tuple(controls))

    def ids_of(self, cut: Cut) -> tuple[int, ...]:
        """Return a cut text's ids: its control tokens, and no other control token whatever the plain texts hold.

        Raises UsageError if the tokenizer cannot read it.
        """
        ids: list[int] = []
        before, after = (None, *cut.controls), (*cut.controls, None)
        for text, left, right in zip(cut.texts, before, after, strict=True):
            if left is not None:
                ids.append(left)
                text = text.lstrip() if self.tokens[left].rstrip else text  # such a token takes the space beside it
            ids.extend(self.plain(text.rstrip() if right is not None and self.tokens[right].lstrip else text))
        return tuple(ids)

    def plain(self, text: str) -> list[int]:
        """Return the ids of a text that goes on after others, the text of control tokens read as any other text.

        Raises UsageError if the tokenizer cannot read it.
        """
        return [i for i in self._read(text) if i not in self.ids]

    def _read(self, text: str) -> list[int]:
        with reading(""):
            ids = self._plain.encode(_BORDER + text, add_special_tokens=False).ids
        return [self._blank.get(i, i) for i in ids[1:] if i != ids[0]]

    def _require_readable(self) -> None:
        for i in sorted(self.ids):
            content = self.tokens[i].content
            try:
                missed = self.ids & set(self._read(content))
            except UsageError:
                continue  # a tokenizer that has no such characters cannot read the token from them
            if missed:
                raise UsageError(
                    f"the model's tokenizer reads {content} as a control token even in plain text, so an observation "
                    "could end a turn or speak for the policy; use a model with a byte-level tokenizer"
                )


RENDERING = "set chat.template to a Jinja file that renders them as they are"

#: What is asked and answered in a conversation that a template is tried on.
ASKED = Sample(key="", prompt="Zq5", answer="")
_ANSWER = "Zq6a"


@dataclass(frozen=True)
class Marked:
    """A conversation as a template renders it with marks for its last texts.

    marks   the k texts that stand for those
    around  the k + 1 texts around them
    """

    marks: tuple[str, ...]
    around: tuple[str, ...]

    def with_text(self, at: int, text: str) -> list[str]:
        """Return the marks, and the text in place of mark `at`."""
        return [*self.marks[:at], text, *self.marks[at + 1 :]]

    def inside(self, rendered: str, at: int) -> str | None:
        """Return what a template made of the text in place of mark `at`; None if the rest is not as it is for a mark.

        >>> Marked(("Zq7x", "Zq8x"), ("<", "><", ">")).inside("<Zq7x><HIGHER>", at=1)
        'HIGHER'
        """
        left = "".join(text + mark for text, mark in zip(self.around[:at], self.marks[:at], strict=True))
        later = zip(self.marks[at + 1 :], self.around[at + 2 :], strict=True)
        left, right = left + self.around[at], self.around[at + 1] + "".join(mark + text for mark, text in later)
        same = rendered.startswith(left) and rendered.endswith(right) and len(left) + len(right) <= len(rendered)
        return rendered[len(left) : len(rendered) - len(right)] if same else None


@dataclass(frozen=True)
class Between:
    """A template's text from the end of a turn to the beginning of the next, around messages of certain roles.

    whole   all that is rendered, from the beginning of the conversation
    around  the texts around the k messages from the end of the turn on, k + 1 of them
    cuts    these, cut at their control tokens
    """

    whole: Marked
    around: tuple[str, ...]
    cuts: tuple[Cut, ...]

    def filled(self, texts: Sequence[str], after: int | None) -> Cut:
        """Put the messages' texts in; leave the first control token out if the turn ended in it (`after`)."""
        filled, *rest = self.cuts
        if filled.controls[:1] == (after,):
            filled = Cut(filled.texts[1:], filled.controls[1:])
        for text, cut in zip(texts, rest, strict=True):
            filled += Cut((text,)) + cut
        return filled


class Glue:
    """The ids that follow a turn of the policy's, by what the environment says to it."""

    def __init__(self, chat: Chat, ends: frozenset[int]) -> None:
        """Take the glue of a chat template; `ends` are the ids that end a completion (Policy.eos).

        Raises UsageError for a tokenizer that cannot read the text of a control token as text.
        """
        self.chat = chat
        self.controls = ControlTokens(chat.tokenizer, ends)
        self._between: dict[tuple[str, ...], Between] = {}
        end = chat.tokenizer.eos_token_id
        try:
            newline = tuple(self.controls.plain("\n"))
        except UsageError:  # a tokenizer of few characters
            newline = ()
        self._least = newline or (min(ends) if end is None else end,)

    def glue(self, turn: Sequence[int], messages: Sequence[Says]) -> tuple[int, ...]:
        """Return the ids from the end of a turn to where the policy speaks again, chat.open included; never none.

        turn      the ids that the policy sampled; where they do not end in the template's end of turn, it comes first
        messages  what the environment says, in order

        Without a template these are the messages' texts alone; where they have no ids, a newline, or the tokenizer's
        end id where it has none. A message that the template renders otherwise than others is put in as it is.
        Raises UsageError if the template's text between turns cannot be seen, or the tokenizer cannot read a text.
        """
        between = self.between(tuple(message.role for message in messages))
        texts = [self._rendered(between.whole, messages, at) for at in range(len(messages))]
        cut = between.filled(texts, turn[-1] if turn else None)
        return self.controls.ids_of(cut) or self._least

    def onward(self, sample: Sample, spoken: Sequence[Spoken]) -> Before:
        """Return what comes behind these turns of a sample's episode, whose ids only grow."""
        return Before(self.glue(spoken[-1].ids, spoken[-1].messages))

    def between(self, roles: tuple[str, ...]) -> Between:
        """Return what the template writes around messages of these roles: looked for once.

        Raises UsageError if it cannot be seen.
        """
        if roles not in self._between:
            self._between[roles] = self._look(roles)
        return self._between[roles]

    def _look(self, roles: tuple[str, ...]) -> Between:
        marks = tuple(f"Zq{7 + i}x" for i in range(len(roles)))
        text = self._render(roles, marks)
        head, answer, rest = text.partition(_ANSWER) if self.chat.template is not None else ("", "", text)
        if self.chat.template is not None and (not answer or _ANSWER in rest):
            raise UsageError(f"the chat template drops or changes earlier answers; {RENDERING}")
        pattern = "|".join(marks) or "(?!)"
        if re.findall(pattern, rest) != list(marks):
            raise UsageError(f"the chat template drops or changes messages of role {', '.join(roles)}; {RENDERING}")
        first, *later = around = tuple(re.split(pattern, rest))
        return Between(Marked(marks, (head + answer + first, *later)), around, tuple(map(self.controls.cut, around)))

    def _rendered(self, marked: Marked, messages: Sequence[Says], at: int) -> str:
        """Return what the template makes of one message's text, say without the white space around it."""
        try:
            text = self._render([m.role for m in messages], marked.with_text(at, messages[at].text))
        except UsageError:  # it has rendered a mark in this place
            return messages[at].text
        inside = marked.inside(text, at)
        return messages[at].text if inside is None else inside

    def _render(self, roles: Sequence[str], texts: Sequence[str]) -> str:
        if self.chat.template is None:
            return "".join(texts) + self.chat.settings.open
        turns: list[Message] = [{"role": r, "content": text} for r, text in zip(roles, texts, strict=True)]
        question = self.chat.messages(ASKED)
        answered: Message = {"role": "assistant", "content": _ANSWER}
        return self.chat.render([*question, answered, *turns]) + self.chat.settings.open


@dataclass(frozen=True)
class _Entry:
    """One message behind a prompt's own. `ids` are those that the policy sampled; None of an environment's."""

    role: str
    text: str
    ids: tuple[int, ...] | None = None


class LaterPrompts:
    """The prompts of later turns, rendered anew."""

    def __init__(self, glue: Glue) -> None:
        self._chat, self._controls, self._glue = glue.chat, glue.controls, glue
        self._opening = opening_of(glue.chat)

    def onward(self, sample: Sample, spoken: Sequence[Spoken]) -> Before:
        """Return the ids of the prompt behind these turns.

        Of a turn that the template shortens, as by its thoughts, what is left has the ids that were sampled, where they
        begin and end with it. Raises UsageError if the template drops a turn, or the tokenizer cannot read a text.
        """
        if self._chat.template is None:
            return self._glue.onward(sample, spoken)
        entries = [entry for turn in spoken for entry in self._entries(turn)]

        def rendered(texts: Sequence[str]) -> str:
            said: list[Message] = [{"role": e.role, "content": text} for e, text in zip(entries, texts, strict=True)]
            return self._chat.render([*self._chat.messages(sample), *said]) + self._chat.settings.open

        marks = tuple(f"Zq{i}x" for i in range(10**5, 10**5 + len(entries)))
        marked = Marked(marks, tuple(re.split("|".join(marks), rendered(marks))))
        if len(marked.around) != len(entries) + 1:
            raise UsageError(f"the chat template drops earlier turns, or writes them twice; {RENDERING}")
        parts: list[tuple[int, ...] | Cut] = [self._controls.cut(marked.around[0])]
        for at, entry in enumerate(entries):
            inside = marked.inside(rendered(marked.with_text(at, entry.text)), at)
            parts += self._written(entry, entry.text if inside is None else inside)
            parts.append(self._controls.cut(marked.around[at + 1]))
        ids = tuple(self._ids(parts))
        bos = self._chat.tokenizer.bos_token_id
        return Before((bos, *ids) if self._chat.adds_bos and ids[0] != bos else ids, anew=True)

    def _entries(self, turn: Spoken) -> Iterator[_Entry]:
        ids = turn.ids[:-1] if turn.ids and turn.ids[-1] in self._controls.ends else turn.ids
        yield _Entry("assistant", self._opening + self._decode(ids), ids)
        for message in turn.messages:
            yield _Entry(message.role, message.text)

    def _written(self, entry: _Entry, inside: str) -> list[tuple[int, ...] | Cut]:
        """Return what stands in the prompt for a message of which the template writes `inside`."""
        if entry.ids is None:
            return [Cut((inside,))]
        own = inside.removeprefix(self._opening)
        opened = [self._controls.cut(self._opening)] if own != inside else []
        ids = self._part(entry.ids, own)
        return [*opened, Cut((own,)) if ids is None else ids]

    def _part(self, ids: tuple[int, ...], text: str) -> tuple[int, ...] | None:
        """Return the ids of a part of a turn; None if it does not begin and end between two of them."""
        place = self._decode(ids).rfind(text)
        if place < 0:
            return None
        start, stop = (
            bisect.bisect_left(range(len(ids)), at, key=lambda count: len(self._decode(ids[:count])))
            for at in (place, place + len(text))
        )
        return ids[start:stop] if self._decode(ids[start:stop]) == text else None

    def _ids(self, parts: Sequence[tuple[int, ...] | Cut]) -> Iterator[int]:
        """Yield the ids of parts one after the other; texts next to each other are read together."""
        cut = Cut(("",))
        for part in (*parts, ()):
            if isinstance(part, Cut):
                cut += part
                continue
            yield from self._controls.ids_of(cut)
            yield from part
            cut = Cut(("",))

    def _decode(self, ids: Sequence[int]) -> str:
        return self._chat.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)


def thinking_of(chat: Chat) -> str:
    """Return the thinking that prompts open and a completion goes on with; "" if they open none, or close it again."""
    opening = opening_of(chat)
    return opening if OPEN in opening.rpartition(CLOSE)[2] else ""


def opening_of(chat: Chat) -> str:
    """Return what a prompt has of the answer already: thinking that it begins, or chat.open."""
    prompt = chat.text(ASKED)
    begun = prompt.rstrip().endswith(OPEN)
    return prompt[prompt.rindex(OPEN) :] if begun else chat.settings.open
