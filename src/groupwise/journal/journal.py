"""The run folder: the recipe, what happened at each step, every rollout, and how it ended."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import Field

from groupwise.core import jsonl
from groupwise.core.errors import RunError, UsageError
from groupwise.core.machine import machine_row
from groupwise.core.settings import Settings

METRICS, ROLLOUTS, MACHINE = "metrics.jsonl", "rollouts.jsonl", "machine.jsonl"
LOG, RECIPE, ABOUT, SUMMARY = "log.txt", "recipe.toml", "about.json", "summary.json"


class JournalSettings(Settings):
    """The section [journal]: what a run writes about itself beside its metrics.

    token_budget  completion tokens a step, whole groups in order, whose columns per token are written; 0 is none
    report        whether a finished run leaves a report
    tracker       where metrics go as well; "none" is nowhere
    """

    token_budget: int = Field(default=200_000, ge=0)
    report: bool = True
    tracker: Literal["none", "trackio", "wandb", "tensorboard"] = "none"


class Journal:
    """Appends to a run folder, one line an event; a line is on its way to disk before the next step starts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._listeners: list[Callable[[Mapping[str, Any]], None]] = []
        self._lock = (folder / ".lock").open("w")
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
        shutil.rmtree(self.folder)

    @classmethod
    def create(cls, folder: Path, recipe: str) -> Journal:
        """A new run folder. Raises UsageError where it exists: nothing there is touched."""
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            raise UsageError(
                f"{folder} exists already; choose another --set name=..., or go on with it: "
                f"groupwise train --resume {folder}"
            ) from None
        except OSError as error:
            raise UsageError(f"{folder}: the run folder cannot be made: {error.strerror}") from None
        (folder / RECIPE).write_text(recipe)
        return cls(folder)

    @classmethod
    def reopen(cls, folder: Path, step: int) -> Journal:
        """An existing run, with every line after `step` taken out: they will be written again, the same."""
        journal = cls(folder)
        for name in (METRICS, ROLLOUTS, MACHINE):
            if (folder / name).exists():
                jsonl.cut(folder / name, step if step else -1)
        return journal

    def listen(self, listener: Callable[[Mapping[str, Any]], None]) -> None:
        """Hand each row of metrics.jsonl to a listener too, once it is written."""
        self._listeners.append(listener)

    def metrics(self, row: Mapping[str, Any]) -> None:
        """One line of metrics.jsonl; a number that is not finite becomes null."""
        self._append(METRICS, [row])
        for listener in self._listeners:
            listener(row)

    def machine(self, step: int) -> None:
        """One line of machine.jsonl: what the step took, which differs from run to run."""
        self._append(MACHINE, [machine_row(step)])

    def rollouts(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """One line of rollouts.jsonl per completion that a step generated or trains."""
        self._append(ROLLOUTS, rows)

    def log(self, line: str) -> None:
        """One line of log.txt."""
        self._write(LOG, [(line + "\n").encode(errors="replace")])

    def replace(self, name: str, row: Mapping[str, Any]) -> None:
        """The file of that name, about.json or summary.json, whole or not at all."""
        path, beside = self.folder / name, self.folder / f"{name}.partial"
        try:
            beside.write_bytes(jsonl.encoded(row, indent=True) + b"\n")
            beside.replace(path)
        except OSError as error:
            raise RunError(f"{path}: cannot be written: {error.strerror}") from None

    def _append(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        self._write(name, (jsonl.encoded(row) + b"\n" for row in rows))

    def _write(self, name: str, lines: Iterable[bytes]) -> None:
        try:
            with (self.folder / name).open("ab") as file:
                file.writelines(lines)
        except OSError as error:
            raise RunError(
                f"{self.folder / name}: cannot be written: {error.strerror}; free space, then resume"
            ) from None


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run's metrics.jsonl."""
    path = folder / METRICS
    return list(jsonl.rows(path)) if path.exists() else []


def read_about(folder: Path) -> dict[str, Any]:
    """about.json; empty where there is none, or it cannot be read."""
    try:
        about = orjson.loads((folder / ABOUT).read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    return about if isinstance(about, dict) else {}
