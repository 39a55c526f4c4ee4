"""What a reward returned, as marks: a score for each completion, or the cause why there is none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from groupwise.core.reward import Cause, Mark


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
