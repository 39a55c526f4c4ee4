"""Verdicts: what an experiment says of a claim, by rules that are fixed before it is run."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from groupwise.core.numbers.statistics import Interval


class Outcome(Enum):
    """The outcomes, in the order in which one of several decides: what was not measured first, what holds last."""

    NOT_MEASURED = "not measured"
    FAILS = "does not hold"
    UNDECIDED = "cannot be told at this size"
    HOLDS = "holds"


@dataclass(frozen=True)
class Verdict:
    """An outcome, and the sentence that says why, with its numbers; `parts` are those of a claim that has several."""

    outcome: Outcome
    because: str
    parts: tuple["Verdict", ...] = ()

    def __str__(self) -> str:
        return f"{self.outcome.value}: {self.because}"


def agree(value: float, expected: float, within: float, words: str) -> Verdict:
    """Judge a number that mathematics fixes: it is what is expected within rounding, or it is not.

    >>> print(agree(0.5, 0.5 + 1e-12, 1e-9, "gradient and closed form"))
    holds: gradient and closed form differ by 1e-12, at most 1e-09 is rounding
    """
    apart = abs(value - expected)
    outcome = Outcome.HOLDS if apart <= within else Outcome.FAILS  # NaN is no agreement
    return Verdict(outcome, f"{words} differ by {apart:.2g}, at most {within:.2g} is rounding")


def above(measured: Interval | float | None, bound: float, words: str) -> Verdict:
    """Judge an estimate: its whole 95 % interval lies above a bound (holds), below it (does not), or on both sides.

    A number that mathematics fixes has no interval: it is above the bound, or it is not. None is fewer than two seeds.

    >>> print(above(Interval(0.1, 0.3, "paired t over 3 seeds"), 0.0, "longer by"))
    holds: longer by 0.1 to 0.3 (paired t over 3 seeds), all above 0
    >>> print(above(0.3, 0.5, "a share of"))
    does not hold: a share of 0.3, not above 0.5
    """
    return _beyond(measured, bound, words, up=True)


def below(measured: Interval | float | None, bound: float, words: str) -> Verdict:
    """Judge as `above` does what should lie below a bound.

    >>> below(Interval(0.1, 0.3, ""), 0.2, "apart by").outcome.value
    'cannot be told at this size'
    """
    return _beyond(measured, bound, words, up=False)


def _beyond(measured: Interval | float | None, bound: float, words: str, up: bool) -> Verdict:
    if measured is None:
        return Verdict(Outcome.UNDECIDED, f"{words.removesuffix(':')}: fewer than two seeds, so no interval")
    side, other = ("above", "below") if up else ("below", "above")
    if not isinstance(measured, Interval):
        holds = measured > bound if up else measured < bound  # NaN does not
        outcome = Outcome.HOLDS if holds else Outcome.FAILS
        return Verdict(outcome, f"{words} {measured:.3g}, {'' if holds else 'not '}{side} {bound:.3g}")
    around = f"{words} {measured.low:.3g} to {measured.high:.3g} ({measured.name})"
    if measured.low > bound if up else measured.high < bound:
        return Verdict(Outcome.HOLDS, f"{around}, all {side} {bound:.3g}")
    if measured.high < bound if up else measured.low > bound:
        return Verdict(Outcome.FAILS, f"{around}, all {other} {bound:.3g}")
    return Verdict(Outcome.UNDECIDED, f"{around}, on both sides of {bound:.3g}")


def instrument(value: float, expected: float, within: float, words: str) -> Verdict:
    """Judge what a claim is measured with: if it is not what it should be, nothing was measured.

    >>> print(instrument(1.0, 2.0, 1e-6, "entropy and mean of -log p"))
    not measured: entropy and mean of -log p differ by 1, at most 1e-06 is rounding
    """
    verdict = agree(value, expected, within, words)
    return verdict if verdict.outcome is Outcome.HOLDS else Verdict(Outcome.NOT_MEASURED, verdict.because)


def every(verdicts: Iterable[Verdict]) -> Verdict:
    """Judge a claim of several parts: it holds if each does; the parts that decide say why.

    >>> print(every([Verdict(Outcome.HOLDS, "a"), Verdict(Outcome.FAILS, "b")]))
    does not hold: b
    """
    parts = tuple(verdicts)
    outcome = next(each for each in Outcome if any(part.outcome is each for part in parts))
    return Verdict(outcome, "; ".join(part.because for part in parts if part.outcome is outcome), parts)


def both(*parts: Verdict) -> Verdict:
    """Judge a claim of parts that are written out, as `every` does."""
    return every(parts)
