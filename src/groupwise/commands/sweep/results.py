"""Results of a sweep: a row a run, a summary a group of seeds, as CSV and JSON without anything that time decides."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from groupwise.commands.sweep.grid import SEED, Cell, shown
from groupwise.core.errors import GroupwiseError
from groupwise.core.files.jsonl import flat
from groupwise.health.symptoms.base import PASS_RATE, History, is_number
from groupwise.reports.compare.members import seeds_interval
from groupwise.reports.folder.read import read

#: Steps at a run's end whose mean is the training score.
LAST = 10
#: States of a run that has ended.
FINISHED, FAILED = "finished", "failed"


@dataclass(frozen=True)
class RunRow:
    """Run of a sweep that has ended.

    error             why it failed, in one line; "" if it is finished
    measure           "pass rate", "reward", ...: what the scores are
    heldout_before    of the evaluation before the first step; None if there was none
    heldout_after     of the last one
    training          mean of the last ten steps
    steps             the last step that it has trained
    seconds           of training; what the machine decides
    """

    cell: Cell
    error: str = ""
    measure: str = ""
    heldout_before: float | None = None
    heldout_after: float | None = None
    training: float | None = None
    steps: int = 0
    seconds: float | None = None

    @property
    def finished(self) -> bool:
        return not self.error

    @property
    def state(self) -> str:
        return FAILED if self.error else FINISHED

    def table(self) -> dict[str, Any]:
        """Write it down without its seconds."""
        measured = {"measure": self.measure, "heldout_before": self.heldout_before}
        measured |= {"heldout_after": self.heldout_after, "training": self.training, "last_step": self.steps}
        return {"run": self.cell.name, "state": self.state, "error": self.error, **measured}


def finished_row(cell: Cell, folder: Path) -> RunRow | None:
    """Read the row of a run; None if the run is not finished, or has not begun."""
    try:
        run = read(folder / cell.name)
    except GroupwiseError:
        return None
    if run.status.state != FINISHED:
        return None
    history = History(run.step_rows, run.evaluation_rows, flat(run.recipe))
    what = history.measured
    heldout = [row["evaluation"].get(what.column) for row in run.evaluation_rows]
    scores = [row.get(what.training_column) for row in run.step_rows]
    if not any(map(is_number, scores)):
        scores = [row.get("reward_mean") for row in run.step_rows]
    last = [float(score) for score in scores[-LAST:] if is_number(score)]
    seconds = (run.summary or {}).get("seconds_training")
    return RunRow(
        cell,
        measure=what.words,
        heldout_before=_number(heldout[0]) if heldout and run.evaluation_rows[0]["step"] == 0 else None,
        heldout_after=_number(heldout[-1]) if heldout else None,
        training=_number(fmean(last)) if last else None,
        steps=max((row["step"] for row in run.step_rows), default=0),
        seconds=float(seconds) if is_number(seconds) else None,
    )


def _number(value: object) -> float | None:
    """Round to nine digits, which leaves a number of a run as it is, and makes a mean readable."""
    return float(f"{float(value):.9g}") if is_number(value) else None


@dataclass(frozen=True)
class Summary:
    """Mean of a score over the runs of a group that have it; the ends of its 95 % interval over seeds.

    low, high  None for fewer than three seeds, or without a spread
    """

    mean: float
    low: float | None = None
    high: float | None = None

    def table(self) -> dict[str, float | None]:
        return {"mean": self.mean, "low": self.low, "high": self.high}


@dataclass(frozen=True)
class SeedGroup:
    """Runs that differ in their seed alone, in the order of the grid."""

    values: Mapping[str, object]
    rows: tuple[RunRow, ...]

    @property
    def finished(self) -> tuple[RunRow, ...]:
        return tuple(row for row in self.rows if row.finished)

    @property
    def heldout(self) -> Summary | None:
        """Summary of the last evaluations."""
        return self._summary([row.heldout_after for row in self.finished])

    @property
    def training(self) -> Summary | None:
        """Summary of the training scores."""
        return self._summary([row.training for row in self.finished])

    def table(self) -> dict[str, Any]:
        """Write it down as sweep.json has it."""
        heldout, training = self.heldout, self.training
        return {
            "over": dict(self.values),
            "seeds": [row.cell.values.get(SEED) for row in self.finished if SEED in row.cell.values],
            "finished": len(self.finished),
            "failed": len(self.rows) - len(self.finished),
            "heldout_after": heldout.table() if heldout else None,
            "training": training.table() if training else None,
        }

    def _summary(self, values: Sequence[float | None]) -> Summary | None:
        known = [value for value in values if value is not None]
        if not known:
            return None
        around = seeds_interval(known) if SEED in self.rows[0].cell.values else None
        if around and all(row.measure == PASS_RATE.words for row in self.finished):
            around = around.clipped()
        ends = (_number(around.low), _number(around.high)) if around else (None, None)
        return Summary(float(f"{fmean(known):.9g}"), *ends)


def groups(rows: Sequence[RunRow]) -> list[SeedGroup]:
    """Group rows by their values but the seed."""
    by_group: dict[str, list[RunRow]] = {}
    for row in rows:
        by_group.setdefault(repr(row.cell.group), []).append(row)
    return [SeedGroup(own[0].cell.group, tuple(own)) for own in by_group.values()]


def as_json(asked: Mapping[str, Any], rows: Sequence[RunRow]) -> dict[str, Any]:
    """Make what sweep.json holds: the request, its groups and its runs."""
    runs = [{"over": dict(row.cell.values), **row.table()} for row in rows]
    return {**asked, "groups": [group.table() for group in groups(rows)], "runs": runs}


def as_csv(keys: Sequence[str], rows: Sequence[RunRow]) -> bytes:
    """Make what sweep.csv holds: a line a run, its values beside its name."""
    tables = [row.table() for row in rows]
    names = [name for name in RunRow(Cell("", {})).table() if name != "run"]
    lines = [
        [table["run"], *(shown(row.cell.values[key]) for key in keys), *(_cell(table[name]) for name in names)]
        for row, table in zip(rows, tables, strict=True)
    ]
    return _csv([["run", *keys, *names], *lines])


def seconds_csv(rows: Sequence[RunRow]) -> bytes:
    """Make what seconds.csv holds: the seconds of training of each run, which differ from time to time."""
    return _csv([["run", "seconds_training"], *([row.cell.name, _cell(row.seconds)] for row in rows if row.finished)])


def _cell(value: object) -> str:
    return "" if value is None else shown(value)


def _csv(lines: Sequence[Sequence[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue().encode(errors="backslashreplace")
