"""Curves of several seeds as one: the mean of every column, with a band around it."""

import math
from collections.abc import Sequence
from typing import TypeGuard

from groupwise.core.statistics import over_seeds
from groupwise.report.folder.columns import rounded
from groupwise.report.records import Curves, Number

#: From so many seeds on, the band is a standard deviation; of fewer it is their range.
ENOUGH = 3
#: The ends of the names of a band's bounds.
LOW, HIGH = ".low", ".high"


def mean_steps(seeds: Sequence[Curves]) -> Curves:
    """The mean over seeds of every column at every step that any has; NAME.low and NAME.high bound the band.

    The band is the mean +- one sample standard deviation over seeds, of fewer than three seeds their range; it is not
    cut to what a share can be. A gap of one seed leaves the others; where only one has a number there is no band. The
    curves of one seed are as they are.

    >>> mean_steps([Curves([1], {"loss": [1.0]}), Curves([1, 2], {"loss": [2.0, 5.0]})]).columns
    {'loss': [1.5, 5.0], 'loss.low': [1.0, None], 'loss.high': [2.0, None]}
    """
    return seeds[0] if len(seeds) == 1 else rounded(_together(seeds, leave=()))


def mean_evaluations(seeds: Sequence[Curves]) -> Curves:
    """The same of evaluations, but `low` and `high` are Student's 95 % interval of the pass rate over seeds."""
    if len(seeds) == 1:
        return seeds[0]
    together = _together(seeds, leave=("low", "high"))
    intervals = [over_seeds(values) for values in _across(seeds, "avg_at_k", together.step)]
    shares = [each and each.clipped() for each in intervals]
    low: list[Number] = [each and each.low for each in shares]
    high: list[Number] = [each and each.high for each in shares]
    return rounded(Curves(together.step, {**together.columns, "low": low, "high": high}))


def band_words(seeds: int) -> str:
    """What the band of so many seeds is; empty for one."""
    if seeds < 2:
        return ""
    around = "their range" if seeds < ENOUGH else "one sample standard deviation over them to each side"
    return f"Lines are the mean of {seeds} seeds, bands {around}."


def measured(curves: Curves) -> dict[str, list[Number]]:
    """The columns with at least one number."""
    return {name: values for name, values in curves.columns.items() if any(map(is_number, values))}


def is_number(value: object) -> TypeGuard[float]:
    """False for a gap, and for what is not finite."""
    return isinstance(value, (int, float)) and math.isfinite(value)


def _together(seeds: Sequence[Curves], leave: Sequence[str]) -> Curves:
    steps = sorted({step for each in seeds for step in each.step})
    names = dict.fromkeys(name for each in seeds for name in each.columns if name not in leave)
    columns: dict[str, list[Number]] = {}
    for name in names:
        spreads = [_spread(values, len(seeds)) for values in _across(seeds, name, steps)]
        columns[name], columns[name + LOW], columns[name + HIGH] = (list(each) for each in zip(*spreads, strict=True))
    return Curves(steps, columns)


def _across(seeds: Sequence[Curves], name: str, steps: Sequence[int]) -> list[list[float]]:
    """For each step: the numbers that the seeds have there."""
    by_step = [dict(zip(each.step, each.columns.get(name, ()), strict=False)) for each in seeds]
    return [[value for each in by_step if is_number(value := each.get(step))] for step in steps]


def _spread(values: Sequence[float], seeds: int) -> tuple[Number, Number, Number]:
    """Mean, and the band's bounds."""
    if not values:
        return None, None, None
    mean = sum(values) / len(values)
    if len(values) == 1:
        return mean, None, None
    if seeds < ENOUGH:
        return mean, min(values), max(values)
    apart = math.sqrt(sum((value - mean) * (value - mean) for value in values) / (len(values) - 1))
    return mean, mean - apart, mean + apart
