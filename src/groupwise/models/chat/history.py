"""The prompt of a later turn where a chat template writes earlier turns otherwise than they were sampled.

    prompt, turn 1      <user> 6 times 7?  <assistant>  <think> a product ... </think> multiply(6, 7)
    prompt, turn 2      <user> 6 times 7?  <assistant>  multiply(6, 7)  <tool> 42  <assistant>

Each turn is sampled from the prompt that it stands behind, and trained behind the same ids.
"""

import bisect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from groupwise.core.environment import Before, Spoken
from groupwise.core.errors import UsageError
from groupwise.core.samples import Sample
from groupwise.models.chat.control_tokens import Cut
from groupwise.models.chat.glue import RENDERING, Glue, inside_of
from groupwise.models.chat.prompts import Chat, Message
from groupwise.models.chat.thinking import CLOSE, OPEN


@dataclass(frozen=True)
class _Entry:
    """One message behind a prompt's own. `ids` are those that the policy sampled; None of an environment's."""

    role: str
    text: str
    ids: tuple[int, ...] | None = None


class LaterPrompts:
    """The prompts of later turns, rendered anew. Control tokens are the template's and the policy's own alone: what an
    environment says is read as plain text, whatever it holds.
    """

    def __init__(self, glue: Glue) -> None:
        self._chat, self._controls, self._glue = glue.chat, glue.controls, glue
        self._opening = opening_of(glue.chat)

    def onward(self, sample: Sample, spoken: Sequence[Spoken]) -> Before:
        """Return the ids of the prompt behind these turns; what a template writes around messages is what it writes
        around marks in their places.

        Of a turn that the template shortens, as by its thoughts, what is left has the ids that were sampled, where they
        begin and end with it. Raises UsageError if the template drops a turn, or the tokenizer cannot read a text.
        """
        if self._chat.template is None:
            return self._glue.onward(sample, spoken)
        entries = [entry for turn in spoken for entry in self._entries(turn)]
        marks = [f"Zq{i}x" for i in range(10**5, 10**5 + len(entries))]
        around = re.split("|".join(marks), self._render(sample, entries, marks))
        if len(around) != len(entries) + 1:
            raise UsageError(f"the chat template drops earlier turns, or writes them twice; {RENDERING}")
        parts: list[tuple[int, ...] | Cut] = [self._controls.cut(around[0])]
        for at, entry in enumerate(entries):
            parts += self._written(entry, self._inside(sample, entries, marks, around, at))
            parts.append(self._controls.cut(around[at + 1]))
        ids = tuple(self._ids(parts))
        bos = self._chat.tokenizer.bos_token_id
        return Before((bos, *ids) if self._chat.adds_bos and ids[0] != bos else ids, anew=True)

    def _entries(self, turn: Spoken) -> Iterator[_Entry]:
        ids = turn.ids[:-1] if turn.ids and turn.ids[-1] in self._controls.ends else turn.ids
        yield _Entry("assistant", self._opening + self._decode(ids), ids)
        for message in turn.messages:
            yield _Entry(message.role, message.text)

    def _render(self, sample: Sample, entries: Sequence[_Entry], texts: Sequence[str]) -> str:
        said: list[Message] = [{"role": e.role, "content": text} for e, text in zip(entries, texts, strict=True)]
        return self._chat.render([*self._chat.messages(sample), *said]) + self._chat.settings.open

    def _inside(
        self, sample: Sample, entries: Sequence[_Entry], marks: Sequence[str], around: Sequence[str], at: int
    ) -> str:
        """Return what the template makes of one message's text; the text as it is where that cannot be told."""
        whole = self._render(sample, entries, [*marks[:at], entries[at].text, *marks[at + 1 :]])
        inside = inside_of(whole, around, marks, at)
        return entries[at].text if inside is None else inside

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
        for part in parts:
            if isinstance(part, Cut):
                cut += part
                continue
            yield from self._controls.ids_of(cut)
            yield from part
            cut = Cut(("",))
        yield from self._controls.ids_of(cut)

    def _decode(self, ids: Sequence[int]) -> str:
        return self._chat.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)


def thinking_of(chat: Chat) -> str:
    """Return the thinking that prompts open and a completion goes on with; "" if they open none, or close it again."""
    opening = opening_of(chat)
    return opening if OPEN in opening.rpartition(CLOSE)[2] else ""


def opening_of(chat: Chat) -> str:
    """Return what a prompt has of the answer already: thinking that it begins, or chat.open."""
    prompt = chat.text(Sample(key="", prompt="Zq5", answer=""))
    begun = prompt.rstrip().endswith(OPEN)
    return prompt[prompt.rindex(OPEN) :] if begun else chat.settings.open
