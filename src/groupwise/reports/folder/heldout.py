"""Two evaluations of held-out problems compared: problem by problem where the run wrote that down. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from groupwise.core.numbers.change import SHARE, Change, change
from groupwise.core.numbers.statistics import rate_difference
from groupwise.health.measure import PASS_RATE, Measured
from groupwise.health.symptoms.base import is_number
from groupwise.reports.folder.columns import interval
from groupwise.reports.folder.lines import Row, count_of, number, table


def with_problems(evaluations: Sequence[Row], heldout: Iterable[Row]) -> None:
    """Gives the rows of evaluations what heldout_problems.jsonl has of their step, as `by_problem`."""
    of_step = {row["step"]: table(row.get("by_problem")) for row in heldout}
    for row in evaluations:
        values = of_step.get(row["step"], {})
        row["evaluation"]["by_problem"] = {key: value for key, value in values.items() if is_number(value)}


def change_of(before: Mapping[str, Any], after: Mapping[str, Any], what: Measured) -> Change:
    """From one evaluation to another: paired over their problems; of an old run as if these were others."""
    first, second = (table(evaluation.get("by_problem")) for evaluation in (before, after))
    if first and second:
        return change(first, second, SHARE if what is PASS_RATE else None)
    then, now = (number(evaluation.get(what.column)) for evaluation in (before, after))
    value = math.nan if then is None or now is None else now - then
    around = [interval(evaluation) for evaluation in (before, after)]
    problems = min(count_of(evaluation.get("problems")) or 0 for evaluation in (before, after))
    if then is None or now is None or around[0] is None or around[1] is None:
        return Change(0, 0, value, None, 0.0)
    apart = replace(rate_difference(then, around[0], now, around[1]), name="not paired, over")
    span = 1.0 if what is PASS_RATE else max(a.high for a in around if a) - min(a.low for a in around if a)
    return Change(problems, 0, value, apart, span)
