"""Curves of several seeds as one: the mean of every column, with a band around it."""

import math
from collections.abc import Collection, Sequence

from groupwise.core.numbers.statistics import Interval, over_seeds
from groupwise.health.symptoms.base import is_number
from groupwise.reports.folder.columns import rounded
from groupwise.reports.page.plots import limits
from groupwise.reports.records import Curves, Number

#: From so many seeds on there is an interval, and the band is a standard deviation; of fewer it is their range.
ENOUGH = 3
#: What an evaluation measures, and the columns that bound one run's own interval of it.
HELD_OUT, OF_ONE_RUN = ("avg_at_k", "measured_mean"), ("low", "high")


def mean(seeds: Sequence[Curves], held_out: Collection[str] = HELD_OUT[:1]) -> Curves:
    """The mean over seeds of every column at every step that any has; NAME.low and NAME.high bound the band.

    The band is the mean +- one sample standard deviation over seeds, of fewer than three seeds their range. Of what is
    held out it is Student's 95 % interval over seeds, from three on. A band ends where the column's picture does: a
    share at 0 and 1. A gap of one seed leaves the others; where only one has a number there is no band. The curves of
    one seed are as they are.

    >>> mean([Curves([1], {"loss": [1.0]}), Curves([1, 2], {"loss": [2.0, 5.0]})]).columns
    {'loss': [1.5, 5.0], 'loss.low': [1.0, None], 'loss.high': [2.0, None]}
    """
    if len(seeds) == 1:
        return seeds[0]
    steps = sorted({step for each in seeds for step in each.step})
    columns: dict[str, list[Number]] = {}
    for name in dict.fromkeys(name for each in seeds for name in each.columns if name not in OF_ONE_RUN):
        across = _across(seeds, name, steps)
        bands = [
            _interval(values) if name in held_out and len(seeds) >= ENOUGH else _spread(values, len(seeds))
            for values in across
        ]
        bands = [_cut(band, limits(name)) for band in bands]
        columns[name] = [sum(values) / len(values) if values else None for values in across]
        columns[f"{name}.low"], columns[f"{name}.high"] = ([band[end] for band in bands] for end in (0, 1))
    return rounded(Curves(steps, columns))


def band_words(seeds: int) -> str:
    """What the band of so many seeds is; empty for one."""
    if seeds < 2:
        return ""
    around = "their range" if seeds < ENOUGH else "one sample standard deviation over them to each side"
    return f"Lines are the mean of {seeds} seeds, bands {around}."


def measured(curves: Curves) -> dict[str, list[Number]]:
    """The columns with at least one number."""
    return {name: values for name, values in curves.columns.items() if any(map(is_number, values))}


def _across(seeds: Sequence[Curves], name: str, steps: Sequence[int]) -> list[list[float]]:
    """For each step: the numbers that the seeds have there."""
    by_step = [dict(zip(each.step, each.columns.get(name, ()), strict=False)) for each in seeds]
    return [[value for each in by_step if is_number(value := each.get(step))] for step in steps]


def seeds_interval(values: Sequence[float]) -> Interval | None:
    """Student's over seeds; None for fewer than ENOUGH, and without a spread, which few seeds cannot vouch for."""
    return with_spread(over_seeds(values)) if len(values) >= ENOUGH else None


def with_spread(interval: Interval | None) -> Interval | None:
    """The interval, where it has a width."""
    return interval if interval and interval.low < interval.high else None


def _interval(values: Sequence[float]) -> tuple[Number, Number]:
    interval = seeds_interval(values)
    return (None, None) if interval is None else (interval.low, interval.high)


def _cut(band: tuple[Number, Number], ends: tuple[Number, Number]) -> tuple[Number, Number]:
    """The band within the ends of its axis, those that there are."""
    (low, high), (least, most) = band, ends
    if low is None or high is None:
        return band
    return low if least is None else max(least, low), high if most is None else min(most, high)


def _spread(values: Sequence[float], seeds: int) -> tuple[Number, Number]:
    if len(values) < 2:
        return None, None
    if seeds < ENOUGH:
        return min(values), max(values)
    mean = sum(values) / len(values)
    apart = math.sqrt(sum((value - mean) * (value - mean) for value in values) / (len(values) - 1))
    return mean - apart, mean + apart
