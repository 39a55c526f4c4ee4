"""The run folder: the recipe, what happened at each step, every rollout, and how it ended."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import orjson
from pydantic import BaseModel, Field, ValidationError

from groupwise.core.errors import RunError, UsageError, disk_remedy
from groupwise.core.files import jsonl
from groupwise.core.files.atomic import open_regular, open_to_append, temporary_folder, whole_file
from groupwise.core.machine.facts import machine_row
from groupwise.core.machine.terminal import clean
from groupwise.journal.kept import CODE, RECIPE, create_recipe, replace_recipe

METRICS, ROLLOUTS, HELDOUT, MACHINE = "metrics.jsonl", "rollouts.jsonl", "heldout.jsonl", "machine.jsonl"
#: Of each evaluation: what it measured of each problem.
PROBLEMS = "heldout_problems.jsonl"
#: The files whose rows belong to steps.
STEP_FILES = (METRICS, ROLLOUTS, HELDOUT, PROBLEMS, MACHINE)
LOG, ABOUT, SUMMARY, LOCK = "log.txt", "about.json", "summary.json", ".lock"


class Journal:
    """Appends to a run folder, one line an event; a line is on its way to disk before the next step starts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._listeners: list[Callable[[Mapping[str, Any]], None]] = []
        self._cut_listeners: list[Callable[[int], None]] = []
        self._readers: list[tuple[int, Callable[[Sequence[Mapping[str, Any]]], None]]] = []
        try:
            self._lock = open_to_append(folder / LOCK)
        except OSError as error:
            raise UsageError(f"{folder / LOCK}: cannot be opened: {error.strerror}; nothing is written here") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise UsageError(f"{folder}: another process is writing this run; wait for it or stop it first") from None

    def close(self) -> None:
        """Let another process write here."""
        self._lock.close()

    def discard(self) -> None:
        """Take back a run folder in which nothing happened yet."""
        self.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @classmethod
    def create(cls, folder: Path, recipe: str, code: Mapping[str, bytes] = MappingProxyType({})) -> Journal:
        """Make a run folder, which appears with its recipe and the user's code (code.py: `written`) or not at all.

        Raises UsageError if the folder exists, and nothing in it is touched, or if the disk refuses.
        """
        if os.path.lexists(folder):
            raise UsageError(
                f"{folder} exists already; choose another --set name=..., or go on with it: "
                f"groupwise train --resume {folder}"
            )
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with temporary_folder("groupwise", folder.parent) as beside:
                partial = beside / folder.name
                partial.mkdir()
                create_recipe(partial, recipe)
                (partial / LOCK).touch()
                for name, content in code.items():
                    (partial / CODE).mkdir(exist_ok=True)
                    (partial / CODE / name).write_bytes(content)
                partial.rename(folder)  # refused where another process was faster and has something there
        except OSError as error:
            raise UsageError(f"{folder}: the run folder cannot be made: {error.strerror}") from None
        return cls(folder)

    @classmethod
    def reopen(cls, folder: Path, step: int) -> Journal:
        """Open an existing run and take out every line after `step`: these will be written again, the same."""
        journal = cls(folder)
        try:
            journal.cut_back(step if step else -1)
        except RunError:
            journal.close()
            raise
        return journal

    def cut_back(self, step: int) -> None:
        """Take out every line after `step`, of evaluations too; -1: every line. log.txt keeps all of its own.

        Raises RunError if the disk refuses.
        """
        self._cut(STEP_FILES, step)
        for listener in self._cut_listeners:
            listener(step)

    def replace_recipe(self, recipe: str, remark: str = "") -> None:
        """Write another recipe.toml, under the comment that the old one had and a remark; whole or not at all.

        Raises RunError if the disk refuses.
        """
        try:
            replace_recipe(self.folder, recipe, remark)
        except OSError as error:
            raise RunError(
                f"{self.folder / RECIPE}: cannot be written: {error.strerror}; {disk_remedy(error, 'move it away')}"
            ) from None

    def listen(self, listener: Callable[[Mapping[str, Any]], None]) -> None:
        """Hand each row of metrics.jsonl to a listener too, once it is written."""
        self._listeners.append(listener)

    def listen_to_cuts(self, listener: Callable[[int], None]) -> None:
        """Tell a listener the last step that is left when later rows are taken out."""
        self._cut_listeners.append(listener)

    def listen_to_rollouts(self, listener: Callable[[Sequence[Mapping[str, Any]]], None], most: int) -> None:
        """Hand the first `most` rows of each step's rollouts to a listener too, once they are written."""
        self._readers.append((most, listener))

    def metrics(self, row: Mapping[str, Any]) -> None:
        """Append one line to metrics.jsonl; a number that is not finite becomes null."""
        self._append(METRICS, [row])
        for listener in self._listeners:
            listener(row)

    def machine(self, step: int, more: Mapping[str, Any]) -> None:
        """Append one line to machine.jsonl: what the step took, and `more` that differs from run to run."""
        self._append(MACHINE, [{**machine_row(step), **more}])

    def problems(self, step: int, by_problem: Mapping[str, float]) -> None:
        """Append one line to heldout_problems.jsonl: what an evaluation measured of each problem, by its key."""
        self._append(PROBLEMS, [{"step": step, "by_problem": by_problem}])

    def rollouts(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append a line to rollouts.jsonl per completion that a step generated or trains."""
        first: list[Mapping[str, Any]] = []
        most = max((most for most, _ in self._readers), default=0)
        self._append(ROLLOUTS, _kept(rows, most, first))
        for own, listener in self._readers:
            listener(first[:own])

    def heldout(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append one line to heldout.jsonl per completion of an evaluation."""
        self._append(HELDOUT, rows)

    def cut_heldout(self, step: int) -> None:
        """Take out completions and problems of evaluations after `step`, of which one is made again."""
        self._cut((HELDOUT, PROBLEMS), step)

    def log(self, line: str) -> None:
        """Append one line to log.txt, which a terminal may show as it is."""
        self._write(LOG, [(clean(line) + "\n").encode()])

    def replace(self, name: str, row: Mapping[str, Any]) -> None:
        """Write the file of that name, about.json or summary.json, whole or not at all."""
        try:
            with whole_file(self.folder / name) as file:
                file.write(jsonl.encoded(row, indent=True) + b"\n")
        except OSError as error:
            raise RunError(f"{self.folder / name}: cannot be written: {error.strerror}") from None

    def _cut(self, names: Sequence[str], step: int) -> None:
        for name in names:
            if (self.folder / name).exists():
                jsonl.cut(self.folder / name, step)

    def _append(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        self._write(name, (jsonl.encoded(row) + b"\n" for row in rows))

    def _write(self, name: str, lines: Iterable[bytes]) -> None:
        try:
            with open_to_append(self.folder / name) as file:
                file.writelines(lines)
        except OSError as error:
            remedy = disk_remedy(error, "move it away")
            raise RunError(
                f"{self.folder / name}: cannot be written: {error.strerror}; {remedy}, then resume"
            ) from None


def _kept(rows: Iterable[Mapping[str, Any]], most: int, first: list[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Pass rows on, and keep the first ones: a step may have more than memory should hold twice."""
    for row in rows:
        if len(first) < most:
            first.append(row)
        yield row


_Numbers = dict[str, float | None]


class _Check(BaseModel):
    value: float | None
    limit: float | None


class _Evaluation(BaseModel):
    """A row of records.Evaluation; what has a default is in none of an older run."""

    problems: int
    samples: int
    avg_at_k: float | None
    measured_mean: float | None
    length_mean: float | None
    rewards: _Numbers
    by_source: dict[str, _Numbers]
    pass_at_k: _Numbers = {}
    truncated_share: float | None = None
    score_mean: float | None = None
    unscored: int = 0
    standard_error: float | None = None
    logged: _Numbers = {}
    logged_total: _Numbers = {}
    supervised_loss: float | None = None
    teachers: dict[str, _Numbers] = {}


class _Row(BaseModel):
    """The parts of a row of metrics.jsonl that a run needs when it is resumed and when it ends."""

    step: int
    seconds: dict[str, Annotated[float, Field(ge=0, lt=1e12)]] = {}
    checks: dict[str, _Check] = {}
    evaluation: _Evaluation = None  # type: ignore[assignment]


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Read the rows of a run's metrics.jsonl."""
    path = folder / METRICS
    return list(jsonl.rows(path)) if path.exists() else []


def metric_columns(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Make columns of equal length, `step` first; None if a step has no such number.

    A step's evaluation stands beside its metrics, its seconds as `evaluation.seconds`. Tables become dotted names.

    >>> metric_columns([{"step": 0, "evaluation": {"problems": 8}}, {"step": 1, "loss": 0.5, "seconds": {"save": 2.0}}])
    {'step': [0, 1], 'evaluation.problems': [8, None], 'loss': [None, 0.5], 'seconds.save': [None, 2.0]}
    """
    steps: dict[int, dict[str, Any]] = {}
    for row in rows:
        if isinstance(evaluation := row.get("evaluation"), Mapping):
            seconds = {"seconds": row["seconds"]} if "seconds" in row else {}
            row = {"step": row.get("step"), "evaluation": {**evaluation, **seconds}}
        if isinstance(row.get("step"), int):
            steps.setdefault(row["step"], {}).update(jsonl.flat(row))
    names = dict.fromkeys(["step", *(name for values in steps.values() for name in values)])
    return {name: [values.get(name) for values in steps.values()] for name in names}


def read_problems(folder: Path) -> list[dict[str, Any]]:
    """Read the rows of a run's heldout_problems.jsonl that belong to a step."""
    path = folder / PROBLEMS
    rows = jsonl.rows(path) if path.exists() else ()
    return [row for row in rows if isinstance(row.get("step"), int)]


def sound_metrics(folder: Path) -> list[dict[str, Any]]:
    """Read the rows of a run's metrics.jsonl whose numbers and tables are of the kind that a run writes."""
    return [row for row in read_metrics(folder) if _is_sound(row)]


def last_step(path: Path) -> int:
    """Return the last step that a row of a file belongs to; 0 if there is no such file, or it cannot be read."""
    try:
        return max(jsonl.steps(path), default=0)
    except OSError:
        return 0


def read_about(folder: Path) -> dict[str, Any]:
    """Read about.json; empty if there is none, or it cannot be read."""
    about = _read_table(folder / ABOUT)
    return about if isinstance(about.get("resumed", []), list) else {}


def read_summary(folder: Path) -> dict[str, Any]:
    """Read summary.json; empty if there is none, or it cannot be read."""
    return _read_table(folder / SUMMARY)


def read_log(folder: Path) -> str:
    """Read log.txt; empty if there is none, or it cannot be read."""
    try:
        with open_regular(folder / LOG) as file:
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _read_table(path: Path) -> dict[str, Any]:
    try:
        with open_regular(path) as file:
            table = jsonl.shallow(orjson.loads(file.read()))
    except (OSError, ValueError):
        return {}
    return table if isinstance(table, dict) else {}


def _is_sound(row: Mapping[str, Any]) -> bool:
    try:
        _Row.model_validate(row, strict=True)
    except ValidationError:
        return False
    return True
