"""The parts an algorithm is a row of: pure functions of tensors, each a frozen dataclass with one `__call__`.

A slot's protocol says what its parts are called with and, with defaults, what else they declare of themselves.
"""

from enum import Enum
from typing import Protocol


class Part(Protocol):
    """A part: it says its equation in plain text and in the field's own names."""

    equation: str


class Signal(Enum):
    """The kind of a group by its completions' values: by correctness, or by a reward."""

    MIXED = "mixed"
    ALL_RIGHT = "all right"
    ALL_WRONG = "all wrong"
    EQUAL = "equal"
    UNSCORED = "unscored"


def require_within(part: object, low: float, high: float, *fields: str) -> None:
    """Raise ValueError naming the first of the part's fields that does not lie from low to high; NaN does not."""
    for field in fields:
        if not low <= getattr(part, field) <= high:
            raise ValueError(f"{field} = {getattr(part, field)}: must be from {low:g} to {high:g}")
