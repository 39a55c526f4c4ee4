"""Files of rows, tasks of them, and the lines that refuse them, for the tests of tasks."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from groupwise.core.errors import UsageError
from groupwise.core.samples import Sample
from groupwise.tasks.data.task import Data

SPLITS = ("train", "heldout")


def write(path: Path, rows: Sequence[str | dict[str, Any]]) -> str:
    """Write a row a line, as JSON unless it is text already."""
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def data(path: Path, rows: Sequence[str | dict[str, Any]], **keys: Any) -> Data:
    """Make the task of these rows."""
    return Data(**{"path": write(path, rows), "check": "exact", **keys})


def both(task: Any) -> list[Sample]:
    """List the problems of both splits."""
    return [sample for split in SPLITS for sample in task.samples(split)]


def prompts(task: Any, split: str) -> set[str]:
    return {sample.prompt for sample in task.samples(split)}


def by_key(task: Any) -> list[Sample]:
    """List the training problems in the order of their rows."""
    return sorted(task.samples("train"), key=lambda sample: sample.key)


def refusal(make: Callable[[], object]) -> str:
    """Give the one line, of a thousand characters at most, that refuses what is made."""
    with pytest.raises(UsageError) as told:
        make()
    assert "\n" not in str(told.value)
    assert len(str(told.value)) <= 1000
    return str(told.value)


def refused(task: Any) -> str:
    """Give the one line that refuses the rows of a task."""
    return refusal(lambda: task.samples("train"))
