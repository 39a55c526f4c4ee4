"""A user's own part, held to the laws that every part of its slot obeys."""

from collections.abc import Mapping
from dataclasses import dataclass

from groupwise.algorithms.laws.slots import tried
from groupwise.algorithms.own_parts import slot_of
from groupwise.algorithms.settings import own


@dataclass(frozen=True)
class Trial:
    """A part, its slot, and of each law what holds in words and what was seen that breaks it; "" where it holds."""

    part: object
    slot: str
    laws: tuple[tuple[str, str], ...]

    @property
    def broken(self) -> int:
        return sum(bool(seen) for _, seen in self.laws)


def laws(use: str, fields: Mapping[str, object]) -> Trial:
    """The part that `use` names, with these fields, tried. Raises UsageError where it cannot be loaded or made."""
    part = own(use, fields)
    return Trial(part, slot_of(type(part)), tuple((law.words, seen) for law, seen in tried(part)))
