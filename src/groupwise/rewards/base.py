"""What a reward is: attempts in, one number each out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from groupwise.samples import Attempt


class Reward(Protocol):
    """(attempts) -> one score each, reward units, higher is better. Attempts of several samples may come together.

    quick   whether it is a pure function of microseconds that cannot hang: such a one is called where the run is,
            every other one in a worker process with a deadline
    """

    @property
    def quick(self) -> bool: ...

    def __call__(self, attempts: Sequence[Attempt]) -> Sequence[float]: ...


@runtime_checkable
class Describes(Protocol):
    """A reward that says in words what it is, say how a user's function was understood."""

    def describe(self) -> str: ...


class Cause(StrEnum):
    """Why a completion has no score."""

    EXCEPTION = "exception"
    TIMEOUT = "timeout"
    CRASH = "crash"
    MEMORY = "memory"
    NONE = "none"
    NAN = "nan"
    WRONG_LENGTH = "wrong length"
    WRONG_TYPE = "wrong type"


@dataclass(frozen=True)
class Mark:
    """A score, or why there is none.

    value   reward units; NaN where `cause` says why
    detail  for a person: the user's own traceback, the signal, the deadline
    """

    value: float = math.nan
    cause: Cause | None = None
    detail: str = ""


def marks(values: object, count: int) -> list[Mark]:
    """What a reward returned for `count` attempts, as marks: each a finite number, or the cause why it is none.

    >>> [(m.value, m.cause and str(m.cause)) for m in marks([1, None, float("nan")], 3)]
    [(1.0, None), (nan, 'none'), (nan, 'nan')]
    """
    if isinstance(values, str | bytes) or not isinstance(values, Sequence):
        return [Mark(cause=Cause.WRONG_TYPE, detail=f"returned {type(values).__name__}, not a list of numbers")] * count
    if len(values) != count:
        return [Mark(cause=Cause.WRONG_LENGTH, detail=f"returned {len(values)} scores for {count} completions")] * count
    return [mark(value) for value in values]


def mark(value: object) -> Mark:
    """One returned value as a mark. Numbers of other libraries count where they turn into a float."""
    if value is None:
        return Mark(cause=Cause.NONE, detail="returned None")
    try:
        if isinstance(value, str | bytes):
            raise TypeError("text is no number, even where it could be read as one")
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return Mark(cause=Cause.WRONG_TYPE, detail=f"returned {type(value).__name__}, not a number")
    return Mark(number) if math.isfinite(number) else Mark(cause=Cause.NAN, detail=f"returned {number}")
