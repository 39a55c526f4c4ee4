"""What scores look like and what faults there were: pure functions from values to marks and from marks to counts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from groupwise.errors import RunError
from groupwise.rewards.base import Cause, Mark


def mark(value: object) -> Mark:
    """A score from whatever a reward returned for one completion.

    Numbers, numpy and torch scalars included, are scores; infinite ones count as NaN. A string is not a number here.

    >>> mark(True).value, mark(None).cause, mark("0.5").cause
    (1.0, <Cause.NONE: 'none'>, <Cause.WRONG_TYPE: 'wrong type'>)
    """
    if value is None:
        return Mark(cause=Cause.NONE, detail="returned None")
    if not hasattr(value, "__float__"):
        return Mark(cause=Cause.WRONG_TYPE, detail=f"returned {type(value).__name__} {value!r:.200}, not a number")
    try:
        number = float(value)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError, OverflowError) as error:
        return Mark(cause=Cause.WRONG_TYPE, detail=f"returned {type(value).__name__}, not one number: {error}")
    if not math.isfinite(number):
        return Mark(cause=Cause.NAN, detail=f"returned {number}")
    return Mark(number)


def marks(values: object, count: int) -> list[Mark]:
    """One mark for each of `count` completions, from the list that a batched reward returned for them.

    Where the list as a whole is wrong, every mark says so.

    >>> [m.value for m in marks([1, 0.5], 2)], marks([1.0], 2)[0].detail
    ([1.0, 0.5], 'returned 1 scores for 2 completions')
    """
    if isinstance(values, (str, bytes, Mapping)) or not hasattr(values, "__len__") or not hasattr(values, "__iter__"):
        wrong = Mark(cause=Cause.WRONG_TYPE, detail=f"returned {type(values).__name__}, not a list of numbers")
        return [Mark(cause=Cause.NONE, detail="returned None") if values is None else wrong] * count
    listed = list(values)  # pyright: ignore[reportArgumentType]
    if len(listed) != count:
        detail = f"returned {len(listed)} scores for {count} completions"
        return [Mark(cause=Cause.WRONG_LENGTH, detail=detail)] * count
    return [mark(value) for value in listed]


def whole(given: Sequence[Mark]) -> bool:
    """Whether marks of one call say that its list was wrong as a whole.

    >>> whole(marks([1.0], 2)), whole(marks([None, None], 2))
    (True, False)
    """
    return given[0].cause is not None and all(one is given[0] for one in given)


def exhausted(mark: Mark) -> bool:
    """Whether the process ran out of memory or tasks: what it still holds would fail the next completion as well.

    >>> exhausted(Mark(cause=Cause.EXCEPTION, detail="BlockingIOError: [Errno 11] Resource temporarily unavailable"))
    True
    """
    last = mark.detail.rpartition("\n")[2]
    spent = last.startswith("BlockingIOError") or "can't start new thread" in last or "Cannot allocate memory" in last
    return mark.cause is Cause.MEMORY or (mark.cause is Cause.EXCEPTION and spent)


@dataclass(frozen=True)
class Tally:
    """Faults so far.

    counts  (reward's name, cause) -> completions without a score
    first   (reward's name, cause) -> the detail of the first of them, to be shown once
    """

    counts: Mapping[tuple[str, Cause], int] = field(default_factory=lambda: MappingProxyType({}))
    first: Mapping[tuple[str, Cause], str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def faults(self) -> int:
        return sum(self.counts.values())

    def add(self, name: str, given: Sequence[Mark]) -> Tally:
        """This tally with the faults among the marks that reward `name` gave.

        >>> Tally().add("mine", [Mark(1.0), Mark(cause=Cause.NAN, detail="returned nan")]).counts
        {('mine', <Cause.NAN: 'nan'>): 1}
        """
        counts, first = dict(self.counts), dict(self.first)
        for one in given:
            if one.cause is not None:
                key = (name, one.cause)
                counts[key] = counts.get(key, 0) + 1
                first.setdefault(key, one.detail)
        return Tally(counts, first)

    def unseen(self, before: Tally) -> dict[tuple[str, Cause], str]:
        """The kinds of fault that `before` did not have, with their details: what is to be shown now."""
        return {key: detail for key, detail in self.first.items() if key not in before.first}


def demand(tally: Tally, scored: int, limit: float) -> None:
    """Raises RunError where more than `limit` (a share) of `scored` completions have no score.

    scored  completions that were given to rewards, those without a score included
    """
    if tally.faults <= limit * scored:
        return
    words = ", ".join(f"{count} {cause} in {name}" for (name, cause), count in sorted(tally.counts.items()))
    lines = next(iter(tally.first.values())).strip().splitlines() or [""]
    raise RunError(
        f"rewards: {tally.faults} of {scored} completions could not be scored ({words}): "
        f"above rewards.fault_limit = {limit:g}; first: {lines[-1].strip()}"
    )
