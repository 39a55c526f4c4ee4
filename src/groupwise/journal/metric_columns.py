"""metrics.jsonl as columns: a row a step, and a column for every number in its tables."""

from collections.abc import Iterable, Mapping
from typing import Any

from groupwise.core.files.jsonl import flat


def metric_columns(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Columns of equal length, `step` first; None where a step has no such number.

    A step's evaluation stands beside its metrics, its seconds as `evaluation.seconds`. Tables become dotted names.

    >>> metric_columns([{"step": 0, "evaluation": {"problems": 8}}, {"step": 1, "loss": 0.5, "seconds": {"save": 2.0}}])
    {'step': [0, 1], 'evaluation.problems': [8, None], 'loss': [None, 0.5], 'seconds.save': [None, 2.0]}
    """
    steps: dict[int, dict[str, Any]] = {}
    for row in rows:
        if isinstance(row.get("step"), int):
            steps.setdefault(row["step"], {}).update(flat(_beside(row)))
    names = dict.fromkeys(["step", *(name for values in steps.values() for name in values)])
    return {name: [values.get(name) for values in steps.values()] for name in names}


def _beside(row: Mapping[str, Any]) -> Mapping[str, Any]:
    evaluation = row.get("evaluation")
    if not isinstance(evaluation, Mapping):
        return row
    seconds = {"seconds": row["seconds"]} if "seconds" in row else {}
    return {"step": row["step"], "evaluation": {**evaluation, **seconds}}
