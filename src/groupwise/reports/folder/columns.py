"""Rows of metrics as columns, which the plots draw, and evaluations compared. Pure."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from groupwise.core.files.jsonl import flat
from groupwise.core.numbers.change import SHARE, Change, change
from groupwise.core.numbers.statistics import (
    Interval,
    mean_interval,
    pass_rate_interval,
    rate_difference,
    seen_mean_interval,
)
from groupwise.health.symptoms.base import PASS_RATE, Measured, is_number
from groupwise.reports.folder.lines import Row, count_of, number, table
from groupwise.reports.records import Curves, Number

#: Keys of a row that are no numbers to draw.
_NO_COLUMNS = frozenset({"step", "checks", "evaluation"})


def steps(rows: Sequence[Row], machine: Sequence[Row] = (), most: int | None = None) -> Curves:
    """Make a row a training step, of more than `most` of them as many, spread evenly; `seconds.update` is a name.

    Beside the metrics: seconds_total, the row's; generate_tokens_per_second and train_tokens_per_second, tokens of the
    step over the seconds of that phase, each trained token counted once however many passes there are;
    dropped_tokens_share, of the generated tokens those in dropped groups; memory_peak_mib and device_memory_peak_mib;
    timeline.WORK.begin and timeline.WORK.end, seconds from the step's beginning.

    >>> steps([{"step": 1, "loss": 0.5}, {"step": 2, "kl_mean": 0.1, "seconds": {"update": 2.0}}]).columns["kl_mean"]
    [None, 0.1]
    """
    of_step = {row["step"]: row for row in machine}
    kept = rows if most is None else [rows[i] for i in spaced(len(rows), most)]
    return _curves(kept, lambda row: {**_step(row), **_of_machine(of_step.get(row["step"], {}), row)})


def evaluations(rows: Sequence[Row]) -> Curves:
    """Make a row an evaluation: avg_at_k, pass_at_k.4, by_source.NAME.avg_at_k, ..., with the seconds of the row.

    low and high are the ends of its `interval`.
    """
    return _curves(rows, _evaluation)


def with_problems(evaluations: Sequence[Row], heldout: Iterable[Row]) -> None:
    """Give the rows of evaluations what heldout_problems.jsonl has of their step, as `by_problem`.

    A value that the evaluation cannot have, such as a pass rate above 1, is left out.
    """
    of_step = {row["step"]: table(row.get("by_problem")) for row in heldout}
    for row in evaluations:
        evaluation = row["evaluation"]
        rates = number(evaluation.get("avg_at_k")) is not None
        evaluation["by_problem"] = {
            key: value
            for key, value in of_step.get(row["step"], {}).items()
            if is_number(value) and (not rates or 0 <= value <= 1)
        }


def interval(evaluation: Mapping[str, Any]) -> Interval | None:
    """Compute the 95 % interval of an evaluation's pass rate, or of its mean if nothing says what passes; None if the
    evaluation does not say of how many problems.

    >>> str(interval({"avg_at_k": 1.0, "problems": 100, "samples": 4, "standard_error": 0.0}))
    '0.962 to 1.000'
    """
    rate, mean = number(evaluation.get("avg_at_k")), number(evaluation.get("measured_mean"))
    values = list(table(evaluation.get("by_problem")).values())
    error = number(evaluation.get("standard_error"))
    problems, samples = count_of(evaluation.get("problems")), count_of(evaluation.get("samples"))
    if rate is None and values:
        return seen_mean_interval(values)
    if rate is None and mean is not None and problems and problems > 1 and error is not None:
        return mean_interval(mean, problems, error)
    if rate is None or not 0 <= rate <= 1 or not problems:
        return None
    return pass_rate_interval(rate, problems, samples or 1, math.nan if error is None else error)


def change_of(before: Mapping[str, Any], after: Mapping[str, Any], what: Measured) -> Change:
    """Compare two evaluations: paired over their problems, or unpaired if a run did not write these down."""
    first, second = (table(evaluation.get("by_problem")) for evaluation in (before, after))
    if first and second:
        return change(first, second, SHARE if what is PASS_RATE else None)
    then, now = (number(evaluation.get(what.column)) for evaluation in (before, after))
    one, other = interval(before), interval(after)
    if then is None or now is None or one is None or other is None:
        return Change(0, 0, math.nan if then is None or now is None else now - then, None, 0.0)
    problems = min(count_of(evaluation.get("problems")) or 0 for evaluation in (before, after))
    apart = replace(rate_difference(then, one, now, other), name="not paired, over")
    span = 1.0 if what is PASS_RATE else max(one.high, other.high) - min(one.low, other.low)
    return Change(problems, 0, now - then, apart, span)


def spaced(count: int, most: int) -> list[int]:
    """Choose at most `most` of 0 .. count - 1, evenly, the ends among them.

    >>> spaced(10, 4), spaced(3, 8)
    ([0, 3, 6, 9], [0, 1, 2])
    """
    if count <= most:
        return list(range(count))
    return [round(i * (count - 1) / (most - 1)) for i in range(most)] if most > 1 else [0]


def short(value: Number) -> Number:
    """Round a number to 7 significant digits, which halves a page's bytes. What is not finite becomes a gap.

    >>> short(0.123456789), short(512), short(None)
    (0.1234568, 512, None)
    """
    if not isinstance(value, float):
        return value
    return float(f"{value:.7g}") if math.isfinite(value) else None


def _curves(rows: Sequence[Row], read: Callable[[Row], Mapping[str, Number]]) -> Curves:
    """Make columns of rows; a row without a column's number is a gap in it, a column of gaps alone is left out."""
    made = [{name: short(value) for name, value in read(row).items() if value is not None} for row in rows]
    names = dict.fromkeys(name for row in made for name in row)
    return Curves([row["step"] for row in rows], {name: [row.get(name) for row in made] for name in names})


def _step(row: Row) -> dict[str, Number]:
    metrics = _numbers({key: value for key, value in row.items() if key not in _NO_COLUMNS})
    return {
        **metrics,
        "seconds_total": _total(row),
        "generate_tokens_per_second": _over(metrics.get("generated_tokens"), metrics.get("seconds.generate")),
        "train_tokens_per_second": _over(metrics.get("trained_tokens"), metrics.get("seconds.update")),
        "dropped_tokens_share": _over(metrics.get("generated_tokens_dropped"), metrics.get("generated_tokens")),
    }


def _of_machine(machine: Row, row: Row) -> dict[str, Number]:
    """Read what a line of machine.jsonl says of a step, `row` its line of metrics.jsonl."""
    names = ("memory_peak_mib", "device_memory_peak_mib", "engine_restarts")
    columns = {name: number(machine.get(name)) for name in names} | _numbers({"timeline": machine.get("timeline", {})})
    if "ahead_seconds" in machine:  # no phase of the run says how long a batch that was sampled ahead took
        ahead = number(machine["ahead_seconds"])
        columns["generate_tokens_per_second"] = _over(number(row.get("generated_tokens")), ahead)
    return columns


def _evaluation(row: Row) -> dict[str, Number]:
    around = interval(row["evaluation"])
    band = {"low": around.low, "high": around.high} if around else {}
    measured = {name: value for name, value in row["evaluation"].items() if name != "by_problem"}
    seconds = _numbers({"seconds": row.get("seconds", {})})
    return {**_numbers(measured), **band, **seconds, "seconds_total": _total(row)}


def _total(row: Row) -> Number:
    seconds = [value for value in _numbers(row.get("seconds", {})).values() if value is not None]
    return math.fsum(seconds) if seconds else None


def _over(amount: Number, total: Number) -> Number:
    return None if amount is None or not total else amount / total


def _numbers(row: object) -> dict[str, Number]:
    return {name: number(value) for name, value in flat(table(row)).items()}
