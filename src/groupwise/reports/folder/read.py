"""A run folder, read as it is: finished, going on, killed in the middle of a line, old, moved, or damaged."""

import os
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groupwise.core.errors import UsageError
from groupwise.core.files.atomic import open_regular
from groupwise.core.files.jsonl import shallow
from groupwise.health.symptoms.base import is_number
from groupwise.reports.folder.columns import with_problems
from groupwise.reports.folder.lines import Row, all_rows, by_step, count_of, oddities, parsed, table, tables
from groupwise.reports.folder.state import is_held, status_of
from groupwise.reports.records import Status

#: The files of a run, as its journal names them.
RECIPE, ABOUT, SUMMARY, LOG, LOCK = "recipe.toml", "about.json", "summary.json", "log.txt", ".lock"
METRICS, ROLLOUTS, HELDOUT, MACHINE = "metrics.jsonl", "rollouts.jsonl", "heldout.jsonl", "machine.jsonl"
PROBLEMS, SESSIONS = "heldout_problems.jsonl", "sessions.json"

WHAT = "a run folder is what groupwise train makes: runs/NAME, with recipe.toml and metrics.jsonl in it"

#: Keys of a row that hold tables.
TABLES = ("evaluation", "checks", "seconds")


@dataclass(frozen=True)
class RunFolder:
    """Everything a run folder says but its rollouts, which are too many to hold.

    name             the folder's own, wherever it was moved
    recipe, about    recipe.toml and about.json as tables, {} if there is none that can be read
    summary          summary.json, None until a run has finished
    step_rows        rows of metrics.jsonl in the order of their steps; `evaluation_rows` have the key "evaluation",
                     in which `by_problem` is what heldout_problems.jsonl has of the step
    machine_rows     rows of machine.jsonl
    notes            what was odd about the folder, a line each
    sessions         those of agents that are being played
    """

    folder: Path
    name: str
    recipe: dict[str, Any]
    recipe_text: str
    about: dict[str, Any]
    summary: dict[str, Any] | None
    step_rows: list[Row]
    evaluation_rows: list[Row]
    machine_rows: list[Row]
    notes: tuple[str, ...]
    status: Status
    sessions: Sequence[Mapping[str, Any]] = ()


def read(folder: Path) -> RunFolder:
    """Read a run as it is at this moment. Raises UsageError if the folder is none of a run."""
    folder = Path(folder)
    _require_run(folder)
    notes: list[str] = []
    text = text_of(folder / RECIPE, notes) or ""
    recipe = recipe_of(text, notes)
    # How the run is comes before what it wrote: a run that ends meanwhile is shown as going on, with all its rows.
    held = is_held(folder / LOCK)
    about, summary = object_of(folder / ABOUT, notes), object_of(folder / SUMMARY, notes)
    log = (text_of(folder / LOG, notes) or "").rstrip().splitlines()
    steps, evaluations = _rows_of_steps(folder / METRICS, held, notes)
    with_problems(evaluations, _rows_of_steps(folder / PROBLEMS, held, notes)[0])
    last = max((rows[-1]["step"] for rows in (steps, evaluations) if rows), default=None)
    sampled = steps[-1:] == [] or "supervised_loss" not in steps[-1] or "length_mean" in steps[-1]
    _missing(folder, summary is not None or last is not None, sampled, notes)
    return RunFolder(
        folder=folder,
        name=folder.resolve().name,
        recipe=recipe,
        recipe_text=text,
        about=about or {},
        summary=summary,
        step_rows=steps,
        evaluation_rows=evaluations,
        machine_rows=_rows_of_steps(folder / MACHINE, held, notes)[0],
        notes=tuple(notes),
        status=status_of(folder, held, summary, count_of(recipe.get("steps")), last, "".join(log[-1:])),
        sessions=_sessions(folder / SESSIONS) if held else (),
    )


def _require_run(folder: Path) -> None:
    try:
        if not folder.exists():
            raise UsageError(f"{folder}: there is no such folder; {WHAT}")
        if not folder.is_dir():
            raise UsageError(f"{folder}: this is a file; {WHAT}")
        if not _is_run(folder):
            inside = sorted(inner for inner in folder.iterdir() if inner.is_dir() and _is_run(inner))
            holds = f"this holds runs, name one, such as {inside[0]}; " if inside else ""
            raise UsageError(f"{folder}: {holds}{WHAT}")
    except OSError as error:
        raise UsageError(f"{folder}: cannot be read: {error.strerror}; {WHAT}") from None


def _is_run(folder: Path) -> bool:
    return (folder / METRICS).is_file() or ((folder / RECIPE).is_file() and not is_project(folder))


def is_project(folder: Path) -> bool:
    """Tell if a folder has a recipe and nothing that a run writes: one that `groupwise init` made, or one's own."""
    written = (METRICS, ABOUT, SUMMARY, ROLLOUTS, LOG, LOCK)
    if any(os.path.lexists(folder / name) for name in written):
        return False
    return bool(recipe_of(text_of(folder / RECIPE, []) or "", []))


def _rows_of_steps(path: Path, held: bool, notes: list[str]) -> tuple[list[Row], list[Row]]:
    """Read the rows of steps, and those of evaluations, which have steps of their own."""
    odd: Counter[str] = Counter()
    rows, error = all_rows(path, odd)
    sound = [each for row in rows if (each := _sound(row, odd)) is not None]
    steps = by_step((row for row in sound if "evaluation" not in row), odd)
    evaluations = by_step((row for row in sound if "evaluation" in row), odd)
    if held:
        del odd["cut"]  # it is being written at this moment
    notes += oddities(path.name, odd) + ([f"{path.name} cannot be read: {error}"] if error else [])
    return steps, evaluations


def _sound(row: Row, odd: Counter[str]) -> Row | None:
    """Take from a row what a run does not write there; None if its evaluation is no table."""
    wrong = [key for key in TABLES if key in row and not isinstance(row[key], dict)]
    odd["no table"] += bool(wrong)
    if "evaluation" in wrong:
        return None
    sound, held = (
        {k: v for k, v in rows.items() if v is None or k == "step" or isinstance(v, dict) or is_number(v)}
        for rows in (row, table(row.get("evaluation")))
    )
    sound |= {"evaluation": held} if "evaluation" in sound else {}
    return {key: value for key, value in sound.items() if key not in wrong}


def _missing(folder: Path, ran: bool, sampled: bool, notes: list[str]) -> None:
    if not (folder / RECIPE).exists():
        notes.append(f"{RECIPE} is missing: what was asked for is not known")
    rollouts = (folder / ROLLOUTS).exists()
    if (ran or rollouts) and not (folder / METRICS).exists():
        notes.append(f"{METRICS} is missing: there is nothing to draw")
    if ran and sampled and not rollouts:
        notes.append(f"{ROLLOUTS} is missing: there are no completions to show")


def text_of(path: Path, notes: list[str]) -> str | None:
    try:
        with open_regular(path) as file:
            return file.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        notes.append(f"{path.name} cannot be read: {error.strerror}")
        return None


def recipe_of(text: str, notes: list[str]) -> dict[str, Any]:
    try:
        return shallow(tomllib.loads(text))
    except (ValueError, RecursionError) as error:
        notes.append(f"{RECIPE} is not a TOML file ({error}): what was asked for is not known")
        return {}


def _sessions(path: Path) -> list[dict[str, Any]]:
    """Read what sessions do at this moment; nothing if none is played, or if what is there cannot be read."""
    try:
        return tables(parsed((text_of(path, []) or "[]").encode(), Counter()))
    except ValueError:
        return []


def object_of(path: Path, notes: list[str]) -> dict[str, Any] | None:
    text = text_of(path, notes)
    if text is None:
        return None
    try:
        value = parsed(text.encode(), Counter())
    except ValueError:
        value = None
    if not isinstance(value, dict):
        notes.append(f"{path.name} is cut off or damaged and was left out")
        return None
    return value
