"""Measurements: rows by experiment and seed, and estimates over seeds."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from statistics import fmean
from typing import Annotated, Any, TypeVar

from pydantic import Field, StrictInt, TypeAdapter, ValidationError

from groupwise.core.errors import UsageError, brief
from groupwise.core.numbers.statistics import Interval, over_seeds, paired

T = TypeVar("T")
#: A measured number is at most so large, either side of 0: NaN is none.
LARGEST = 1e300
Measured = Annotated[float, Field(strict=True, ge=-LARGEST, le=LARGEST)]
#: A number of a row, a curve of its steps, and step and pass rate of its evaluations.
NUMBER, CURVE = TypeAdapter(Measured), TypeAdapter(list[Measured | None])
RATES = TypeAdapter(list[tuple[StrictInt, Measured]])


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


@dataclass(frozen=True)
class Row:
    """One experiment with one seed: what it measured by name, or why it failed.

    fingerprint  the experiment's when it was measured
    code         the experiment's when it was measured, "" if it has none
    line         where it stands in its file, from 1; 0 if it is in none
    """

    experiment: str
    seed: int
    fingerprint: str
    measured: Mapping[str, Any]
    error: str = ""
    seconds: float = 0.0
    machine: str = ""
    made_by: str = ""
    code: str = ""
    line: int = 0


class Measurements:
    """Rows of experiments; of those with the same experiment and seed the last one that did not fail counts."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows: dict[tuple[str, int], Row] = {}
        for row in rows:
            known = self.rows.get((row.experiment, row.seed))
            if not row.error or known is None or known.error:
                self.rows[row.experiment, row.seed] = row

    def failed(self, experiment: str) -> list[Row]:
        """List the rows of an experiment that failed, and were not measured since."""
        return [row for row in self.rows.values() if row.experiment == experiment and row.error]

    def of(self, experiment: str) -> dict[int, Row]:
        """Find the rows of an experiment that did not fail, by seed."""
        return {row.seed: row for row in self.rows.values() if row.experiment == experiment and not row.error}

    def values(self, experiment: str, name: str) -> dict[object, float]:
        """Read one number of an experiment, by seed. Raises UsageError if a row does not have it."""
        return {seed: _number(row, name) for seed, row in self.of(experiment).items()}

    def numbers(self, experiment: str, name: str) -> dict[object, float]:
        """Read as `values` does, of the seeds that have it: a run may stop nothing, and so have no score of that."""
        rows = self.of(experiment).items()
        return {seed: _number(row, name) for seed, row in rows if row.measured.get(name) is not None}

    def curves(self, experiment: str, name: str) -> dict[object, list[float | None]]:
        """Read a number of each step of a run, by seed; None if a step has none. Raises UsageError as `values` does."""
        return {seed: _curve(row, name) for seed, row in self.of(experiment).items()}

    def heldout(self, experiment: str) -> dict[object, list[tuple[int, float]]]:
        """Read step and pass rate of each evaluation of a run, by seed. Raises UsageError as `values` does."""
        rows, words = self.of(experiment).items(), "no list of step and pass rate"
        return {seed: _read(row, "heldout", row.measured.get("heldout"), RATES, words) for seed, row in rows}

    @staticmethod
    def interval_of(values: Mapping[object, float]) -> Interval | None:
        """Estimate the mean over seeds of numbers that were made from rows; None for fewer than two."""
        return over_seeds(list(values.values()))

    @staticmethod
    def combined(make: Callable[..., float | None], *columns: Mapping[object, Any]) -> Interval | None:
        """Estimate what is made from several values of a seed, over the seeds that have it; None for fewer than two.

        >>> print(Measurements.combined(lambda one, other: other / one, {0: 1.0, 1: 2.0, 2: 1.0}, {0: 2.0, 1: 4.0}))
        2.000 to 2.000
        """
        seeds = [seed for seed in columns[0] if all(seed in column for column in columns)]
        made = [make(*(column[seed] for column in columns)) for seed in seeds]
        return over_seeds([value for value in made if value is not None])

    def across(self, make: Callable[..., float], name: str, *experiments: str) -> Interval | None:
        """Estimate what is made from one number of several experiments; None for fewer than two seeds."""
        return self.combined(make, *(self.numbers(experiment, name) for experiment in experiments))

    def difference(self, first: str, second: str, name: str) -> Interval | None:
        """Estimate second - first, on the seeds that have it of both; None for fewer than two."""
        one, other = self.numbers(first, name), self.numbers(second, name)
        both = [seed for seed in one if seed in other]
        return paired({seed: one[seed] for seed in both}, {seed: other[seed] for seed in both})


@dataclass(frozen=True)
class Numbers:
    """Numbers that were measured in one experiment."""

    measurements: Measurements
    experiment: str

    def mean(self, name: str) -> float:
        """Average over seeds. Raises statistics.StatisticsError if there is no row."""
        return fmean(self.measurements.values(self.experiment, name).values())

    def largest(self, name: str, due: float = 0.0) -> float:
        """Find how far a number is from what is due, at most over seeds. Raises ValueError if there is no row."""
        return max(abs(value - due) for value in self.measurements.values(self.experiment, name).values())

    def equal(self, due: Mapping[str, float], within: float, words: str) -> Verdict:
        """Judge numbers that mathematics fixes: each is what is due on every seed, within rounding."""
        return agree(max(self.largest(name, value) for name, value in due.items()), 0.0, within, words)

    def interval(self, name: str) -> Interval | None:
        """Estimate the mean over seeds; None for fewer than two."""
        return over_seeds(list(self.measurements.values(self.experiment, name).values()))

    def combined(self, make: Callable[..., float], *names: str) -> Interval | None:
        """Estimate what is made from several numbers of a seed; None for fewer than two seeds that have all."""
        return self.measurements.combined(make, *(self.measurements.numbers(self.experiment, name) for name in names))

    def curves(self, *names: str) -> list[dict[object, list[float | None]]]:
        """Read curves of runs, each by seed."""
        return [self.measurements.curves(self.experiment, name) for name in names]


def _read(row: Row, name: str, value: Any, kind: TypeAdapter[T], words: str) -> T:
    """Check a value that a row has by this name. Raises UsageError if it is of no such kind."""
    try:
        return kind.validate_python(value)
    except ValidationError:
        where = f"line {row.line}, " if row.line else ""
        raise UsageError(
            f"{where}the row of {row.experiment}, seed {row.seed}, has {brief(value)} for {name!r}, which is {words}; "
            "delete it from the file of rows, and it is measured again"
        ) from None


def _number(row: Row, name: str) -> float:
    return _read(row, name, row.measured.get(name), NUMBER, "no number")


def _curve(row: Row, name: str) -> list[float | None]:
    curves = row.measured.get("curves")
    return _read(row, name, curves.get(name) if isinstance(curves, Mapping) else None, CURVE, "no curve")


def agree(value: float, expected: float, within: float, words: str) -> Verdict:
    """Judge a number that mathematics fixes: it is what is expected within rounding, or it is not.

    >>> print(agree(0.5, 0.5 + 1e-12, 1e-9, "gradient and closed form"))
    holds: gradient and closed form differ by 1e-12, tolerance 1e-09
    """
    apart = abs(value - expected)
    outcome = Outcome.HOLDS if apart <= within else Outcome.FAILS  # NaN is no agreement
    return Verdict(outcome, f"{words} differ by {apart:.2g}, tolerance {within:.2g}")


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
    return Verdict(Outcome.UNDECIDED, f"{around}, which includes {bound:.3g}")


def instrument(value: float, expected: float, within: float, words: str) -> Verdict:
    """Judge what a claim is measured with: if it is not what it should be, nothing was measured.

    >>> print(instrument(1.0, 2.0, 1e-6, "entropy and mean of -log p"))
    not measured: entropy and mean of -log p differ by 1, tolerance 1e-06
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
