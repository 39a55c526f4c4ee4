"""What an experiment says of a claim, by rules that are fixed before it is run."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from groupwise.core.statistics import Interval


class Outcome(Enum):
    """In the order in which one of several decides: what was not measured first, what holds last."""

    NOT_MEASURED = "not measured"
    FAILS = "does not hold"
    UNDECIDED = "cannot be told at this size"
    HOLDS = "holds"


@dataclass(frozen=True)
class Verdict:
    """An outcome, and the sentence that says why, with its numbers."""

    outcome: Outcome
    because: str

    def __str__(self) -> str:
        return f"{self.outcome.value}: {self.because}"


def agree(value: float, expected: float, within: float, words: str) -> Verdict:
    """Of numbers that mathematics fixes: they are equal within rounding, or they are not.

    >>> print(agree(0.5, 0.5 + 1e-12, 1e-9, "gradient and closed form"))
    holds: gradient and closed form differ by 1e-12, at most 1e-09 is rounding
    """
    apart = abs(value - expected)
    outcome = Outcome.HOLDS if apart <= within else Outcome.FAILS  # NaN is no agreement
    return Verdict(outcome, f"{words} differ by {apart:.2g}, at most {within:.2g} is rounding")


def above(interval: Interval | None, bound: float, words: str) -> Verdict:
    """Of an estimate: its whole 95 % interval lies above a bound (holds), below it (does not), or on both sides.

    >>> print(above(Interval(0.1, 0.3, "paired t over 3 seeds"), 0.0, "longer by"))
    holds: longer by 0.1 to 0.3 (paired t over 3 seeds), all above 0
    """
    if interval is None:
        return Verdict(Outcome.UNDECIDED, f"{words}: fewer than two seeds, so no interval")
    around = f"{words} {interval.low:.3g} to {interval.high:.3g} ({interval.name})"
    if interval.low > bound:
        return Verdict(Outcome.HOLDS, f"{around}, all above {bound:.3g}")
    if interval.high < bound:
        return Verdict(Outcome.FAILS, f"{around}, all below {bound:.3g}")
    return Verdict(Outcome.UNDECIDED, f"{around}, on both sides of {bound:.3g}")


def below(interval: Interval | None, bound: float, words: str) -> Verdict:
    """As `above`, of an interval that should lie below a bound.

    >>> below(Interval(0.1, 0.3, ""), 0.2, "apart by").outcome.value
    'cannot be told at this size'
    """
    verdict = above(interval, bound, words)
    turned = {Outcome.HOLDS: Outcome.FAILS, Outcome.FAILS: Outcome.HOLDS}
    return Verdict(turned.get(verdict.outcome, verdict.outcome), verdict.because)


def every(verdicts: Iterable[Verdict]) -> Verdict:
    """Of a claim with several parts: it holds where each does; the parts that decide say why.

    >>> print(every([Verdict(Outcome.HOLDS, "a"), Verdict(Outcome.FAILS, "b")]))
    does not hold: b
    """
    parts = list(verdicts)
    outcome = next(each for each in Outcome if any(part.outcome is each for part in parts))
    return Verdict(outcome, "; ".join(part.because for part in parts if part.outcome is outcome))
