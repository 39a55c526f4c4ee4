"""Overview of run folders: of each its state, how far it came and what it measured, without reading it whole."""

import math
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groupwise.core.errors import UsageError
from groupwise.core.files.atomic import open_regular
from groupwise.core.files.jsonl import encoded
from groupwise.health.symptoms.base import History
from groupwise.reports.folder.lines import Row, count_of, number, rows_of, table
from groupwise.reports.folder.read import (
    ABOUT,
    LOCK,
    LOG,
    METRICS,
    RECIPE,
    ROLLOUTS,
    SUMMARY,
    WHAT,
    is_project,
    object_of,
    recipe_of,
    text_of,
)
from groupwise.reports.folder.state import ended_in_order, is_held, status_of
from groupwise.reports.records import Number

RUNNING, FINISHED, STOPPED, CRASHED, DAMAGED = "running", "finished", "stopped", "crashed", "damaged"
_STATES = {"going": RUNNING, "finished": FINISHED, "failed": CRASHED}

#: Any of these makes a folder one of a run, however much of it is lost.
_OF_A_RUN = (RECIPE, METRICS, ABOUT, SUMMARY, ROLLOUTS)
_EVALUATION = b'"evaluation"'


@dataclass(frozen=True)
class HeldOut:
    """Held-out problems: what they are measured by, that before training, and the newest with its step."""

    measure: str
    before: Number
    last: Number
    step: int | None


@dataclass(frozen=True)
class Overview:
    """A run in a line.

    name     the folder's, below the folder that was looked through
    state    running | finished | stopped (in order, by whoever asked) | crashed (by an error, or killed) | damaged
             (nothing is left that says which)
    words    the state as the report has it, with the command that goes on
    step     the newest step with a row; None before the first
    steps    how many the recipe asks for; None if that is not known
    started  when it began, seconds since 1970
    notes    what is odd about the folder, a line each
    """

    name: str
    folder: Path
    state: str
    words: str
    step: int | None
    steps: int | None
    held_out: HeldOut | None
    algorithm: str
    started: float | None
    notes: tuple[str, ...]


def overviews(root: Path) -> list[Overview]:
    """Look through a folder of runs, and through its folders that are none -> the newest run first.

    Raises UsageError if the folder is itself a run, or cannot be read.
    """
    if _is_run(root):
        raise UsageError(f"{root}: this is a run; groupwise report shows it, and groupwise runs takes the folder above")
    try:
        found = [overview(folder, folder.relative_to(root).as_posix()) for folder in _runs_in(root)]
    except OSError as error:
        raise UsageError(f"{root}: cannot be read: {error.strerror}; {WHAT}") from None
    return sorted(found, key=lambda run: (-(run.started or 0.0), run.name))


def overview(folder: Path, name: str = "") -> Overview:
    """Read a run folder, whatever is left of it. What it writes of each completion is not read."""
    notes: list[str] = []
    recipe = recipe_of(text_of(folder / RECIPE, notes) or "", notes)
    held = is_held(folder / LOCK)
    about, summary = object_of(folder / ABOUT, notes) or {}, object_of(folder / SUMMARY, notes)
    log = "".join((text_of(folder / LOG, notes) or "").rstrip().splitlines()[-1:])
    last, evaluations = _ends(folder / METRICS, notes)
    steps = count_of(recipe.get("steps"))
    status = status_of(folder, held, summary, steps, last, log)
    lost = status.state == "empty" and not (recipe or about or log)
    otherwise = DAMAGED if lost else STOPPED if ended_in_order(log, last) else CRASHED
    return Overview(
        name=name or folder.name,
        folder=folder,
        state=_STATES.get(status.state, otherwise),
        words=status.words,
        step=count_of((summary or {}).get("steps")) if last is None else last,
        steps=steps,
        held_out=_held_out(evaluations, recipe, summary or {}),
        algorithm=_name(about.get("algorithm")) or _name(recipe.get("algorithm")),
        started=_started(folder, about),
        notes=tuple(notes if recipe or notes else [f"{RECIPE} is missing: what was asked for is not known"]),
    )


def as_json(runs: Sequence[Overview], now: float | None = None) -> str:
    """Write overviews as a list of objects; `age` is in seconds."""
    return encoded([_row(run, time.time() if now is None else now) for run in runs], indent=True).decode()


def age_of(run: Overview, now: float) -> float | None:
    """Return the seconds since a run began; None if that is not known."""
    return None if run.started is None else max(0.0, now - run.started)


def _row(run: Overview, now: float) -> dict[str, Any]:
    held = run.held_out
    return {
        "name": run.name,
        "folder": str(run.folder),
        "state": run.state,
        "words": run.words,
        "step": run.step,
        "steps": run.steps,
        "held_out": held and {"measure": held.measure, "before": held.before, "last": held.last, "step": held.step},
        "algorithm": run.algorithm or None,
        "started": run.started,
        "age": age_of(run, now),
        "notes": list(run.notes),
    }


def _is_run(folder: Path) -> bool:
    return any(os.path.lexists(folder / name) for name in _OF_A_RUN) and not is_project(folder)


def _runs_in(root: Path, deeper: bool = True) -> Iterator[Path]:
    """Yield the runs of a folder, and those of its folders; a hidden one is a run that is being made or removed."""
    for inside in sorted(root.iterdir()):
        if inside.name.startswith(".") or not inside.is_dir():
            continue
        if _is_run(inside) or not os.access(inside, os.R_OK | os.X_OK):
            yield inside
        elif deeper:
            yield from _runs_in(inside, deeper=False)


def _ends(path: Path, notes: list[str]) -> tuple[int | None, list[Row]]:
    """Read the ends of metrics.jsonl -> the newest step, and the evaluations: the first and the newest, if there are
    any. The rows between them are not parsed.
    """
    try:
        with open_regular(path) as file:
            content = file.read()
    except FileNotFoundError:
        return None, []
    except OSError as error:
        notes.append(f"{METRICS} cannot be read: {error.strerror}")
        return None, []
    last = next((step for row in _backwards(content) if (step := count_of(row.get("step"))) is not None), None)
    ends = (next(_evaluations(content, backwards), None) for backwards in (False, True))
    found = [row for row in ends if row is not None]
    steps = [step for row in found if (step := count_of(row.get("step"))) is not None]
    return max([*([] if last is None else [last]), *steps], default=None), found


def _backwards(content: bytes) -> Iterator[Row]:
    """Yield rows from the last line to the first."""
    end = len(content)
    while end > 0:
        start = content.rfind(b"\n", 0, end)
        yield from reversed(rows_of(content[start + 1 : end], Counter()))
        end = start


def _evaluations(content: bytes, backwards: bool) -> Iterator[Row]:
    """Yield rows of evaluations, from the first line that may hold one or from the last."""
    at = content.rfind(_EVALUATION) if backwards else content.find(_EVALUATION)
    while at >= 0:
        start, end = content.rfind(b"\n", 0, at) + 1, content.find(b"\n", at)
        line = content[start : end if end >= 0 else len(content)]
        yield from (row for row in rows_of(line, Counter()) if table(row.get("evaluation")))
        at = content.rfind(_EVALUATION, 0, start) if backwards else content.find(_EVALUATION, start + len(line))


def _held_out(evaluations: Sequence[Row], recipe: Mapping[str, Any], summary: Mapping[str, Any]) -> HeldOut | None:
    """Take what the run is measured by from its first and its newest evaluation; else from summary.json."""
    what = History((), evaluations, recipe).measured
    if evaluations:
        first, newest = evaluations[0], evaluations[-1]
        before = number(table(first.get("evaluation")).get(what.column)) if first.get("step") == 0 else None
        last = number(table(newest.get("evaluation")).get(what.column))
        return HeldOut(what.words, before, last, count_of(newest.get("step")))
    last = number(summary.get("heldout_after"))
    if last is None:
        return None
    return HeldOut(what.words, number(summary.get("heldout_before")), last, count_of(summary.get("steps")))


def _name(algorithm: object) -> str:
    name = table(algorithm).get("name")
    return name if isinstance(name, str) else ""


def _started(folder: Path, about: Mapping[str, Any]) -> float | None:
    """Take the moment at which a run began from about.json; of one without, when its recipe was written."""
    told = number(about.get("started"))
    if told is not None and math.isfinite(told) and told > 0:
        return float(told)
    for name in (RECIPE, METRICS):
        try:
            return (folder / name).stat().st_mtime
        except OSError:
            continue
    return None
