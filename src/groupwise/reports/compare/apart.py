"""Distance between several runs in a picture, beside what chance moves each of them by."""

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, pvariance

from groupwise.reports.page.unchanged import ALWAYS
from groupwise.reports.records import Number, Plot, RunPage, Series

#: Stretches that curves are compared in: the curves of two runs may cross.
STRETCHES = 8
#: A difference of this share of the values' own size counts as none.
SMALL = 1e-3


def by_difference(plots: Sequence[Plot], runs: Sequence[RunPage]) -> tuple[Plot, ...]:
    """Order pictures by how much the runs differ in them, the most first; what was measured stays in front."""
    if len(runs) < 2:
        return tuple(plots)
    return tuple(sorted(plots, key=lambda plot: (plot.id not in ALWAYS, -_apart(plot, runs))))


def distance(curves: Sequence[Sequence[float]]) -> float:
    """Compare curves over the same steps: how far their means in a stretch lie apart, in the noise of these means.

    >>> distance([[1, 2, 1, 2], [1, 2, 1, 2]])
    0.0
    >>> distance([[1, 2, 1, 2], [5, 6, 5, 6]]) > distance([[1, 2, 1, 2], [2, 3, 2, 3]]) > 0
    True
    """
    length = len(curves[0])
    count = max(1, min(STRETCHES, length // 2))
    bounds = [i * length // count for i in range(count + 1)]
    stretches = [[curve[a:b] for curve in curves] for a, b in pairwise(bounds)]
    between = fmean(pvariance([fmean(part) for part in parts]) for parts in stretches)
    noise = fmean(pvariance(part) / len(part) for parts in stretches for part in parts)
    size = fmean(abs(value) for curve in curves for value in curve)
    return math.sqrt(between) / (math.sqrt(noise) + SMALL * size) if between else 0.0


def _apart(plot: Plot, runs: Sequence[RunPage]) -> float:
    return max((_of_line(plot, line, runs) for line in plot.series if line.column), default=0.0)


def _of_line(plot: Plot, line: Series, runs: Sequence[RunPage]) -> float:
    """Compare one line of the runs that have it, over the steps that all of these have."""
    columns = [_by_step(plot, line, run) for run in runs]
    known = [column for column in columns if column]
    steps = sorted(set.intersection(*map(set, known))) if len(known) > 1 else []
    return distance([[column[step] for step in steps] for column in known]) if steps else 0.0


def _by_step(plot: Plot, line: Series, run: RunPage) -> dict[int, float]:
    curves = run.evaluations if (line.table or plot.table) == "evaluations" else run.steps
    values: Sequence[Number] = curves.columns.get(line.column, ())
    return {step: value for step, value in zip(curves.step, values, strict=False) if value is not None}
