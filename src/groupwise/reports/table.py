"""The numbers of every chart as a table of text: a row a step, a column a metric, by its key."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from groupwise.reports.folder import columns
from groupwise.reports.folder.read import read
from groupwise.reports.records import Curves, Number

#: What stands before the keys of an evaluation.
HELD_OUT = "evaluation."


def as_csv(folders: Sequence[Path]) -> str:
    """Write every step and evaluation of runs, all rows of them; the first column names the run if there are several.

    Raises UsageError if a folder is none of a run.
    """
    runs = [read(folder) for folder in folders]
    curves = [
        (run.name, columns.steps(run.step_rows, run.machine_rows), columns.evaluations(run.evaluation_rows))
        for run in runs
    ]
    names = dict.fromkeys(name for _, steps, _ in curves for name in steps.columns)
    names |= dict.fromkeys(HELD_OUT + name for _, _, held in curves for name in held.columns)
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    several = len(runs) > 1
    rows.writerow([*(["run"] if several else []), "step", *names])
    for label, steps, held in curves:
        for step, row in _by_step(steps, held).items():
            rows.writerow([*([label] if several else []), step, *(row.get(name, "") for name in names)])
    return text.getvalue()


def _by_step(steps: Curves, held: Curves) -> dict[int, dict[str, Number]]:
    """Join the rows of steps and of evaluations: step -> key -> number."""
    rows: dict[int, dict[str, Number]] = {}
    for curves, before in ((steps, ""), (held, HELD_OUT)):
        for i, step in enumerate(curves.step):
            known = {before + name: values[i] for name, values in curves.columns.items() if values[i] is not None}
            rows.setdefault(step, {}).update(known)
    return dict(sorted(rows.items()))
