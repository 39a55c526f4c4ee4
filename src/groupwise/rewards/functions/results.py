"""Results of what a reward returned: a score for each completion, or the cause why there is none."""

import math
from collections.abc import Mapping, Sequence

from groupwise.core.reward import Cause, ScoreResult

#: A score is not larger: the squares of larger ones, times their weights, are no longer finite where they are averaged.
LARGEST = 1e9


def score_result(value: object) -> ScoreResult:
    """Make a score of whatever a reward returned for one completion.

    Numbers, numpy and torch scalars included, are scores; infinite ones count as NaN. A string is not a number here.
    None is no fault: the reward does not vote on this completion.

    >>> score_result(True).value, score_result(None).votes, score_result("0.5").cause
    (1.0, False, <Cause.WRONG_TYPE: 'wrong type'>)
    """
    if value is None:
        return ScoreResult()
    kind = type(value).__name__
    if not hasattr(value, "__float__"):
        return ScoreResult(cause=Cause.WRONG_TYPE, detail=f"returned {kind} {value!r:.200}, not a number")
    try:
        number = float(value)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError, OverflowError) as error:
        return ScoreResult(cause=Cause.WRONG_TYPE, detail=f"returned {kind}, not one number: {error}")
    if not math.isfinite(number):
        return ScoreResult(cause=Cause.NAN, detail=f"returned {number}")
    if abs(number) > LARGEST:
        return ScoreResult(cause=Cause.TOO_LARGE, detail=f"returned {number:g}; a score lies within +-{LARGEST:g}")
    return ScoreResult(number)


def score_results(values: object, count: int) -> list[ScoreResult]:
    """Make a result for each of `count` completions of the list that a batched reward returned for them.

    Where the list itself is wrong, every result is the one that says so.

    >>> [result.value for result in score_results([1, 0.5], 2)], score_results([1.0], 2)[0].detail
    ([1.0, 0.5], 'returned 1 scores for 2 completions')
    """
    if isinstance(values, (str, bytes, Mapping)) or not hasattr(values, "__len__") or not hasattr(values, "__iter__"):
        wrong = ScoreResult(cause=Cause.WRONG_TYPE, detail=f"returned {type(values).__name__}, not a list of numbers")
        return [wrong] * count
    listed = list(values)  # pyright: ignore[reportArgumentType]
    if len(listed) != count:
        detail = f"returned {len(listed)} scores for {count} completions"
        return [ScoreResult(cause=Cause.WRONG_LENGTH, detail=detail)] * count
    return [score_result(value) for value in listed]


def list_is_wrong(results: Sequence[ScoreResult]) -> bool:
    """Tell whether the results of one call say that its list was wrong, rather than single values in it.

    >>> list_is_wrong(score_results([1.0], 2)), list_is_wrong(score_results(["1", "1"], 2))
    (True, False)
    """
    return results[0].cause is not None and all(result is results[0] for result in results)


def exhausted(result: ScoreResult) -> bool:
    """Tell whether the process ran out of memory or tasks: what it still holds would fail the next completion as well.

    >>> exhausted(ScoreResult(cause=Cause.EXCEPTION, detail="RuntimeError: can't start new thread"))
    True
    """
    last = result.detail.rpartition("\n")[2]
    spent = last.startswith("BlockingIOError") or "can't start new thread" in last or "Cannot allocate memory" in last
    return result.cause is Cause.MEMORY or (result.cause is Cause.EXCEPTION and spent)
