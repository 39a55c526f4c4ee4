"""A JSONL file of programming problems, one object a line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groupwise.core.errors import UsageError
from groupwise.core.samples import Sample
from groupwise.rewards.sandbox import cases


@dataclass(frozen=True)
class Columns:
    """The names of the file's columns; a row may lack the last two, and "prefix", which is put before completions.

    tests  in a form of sandbox.cases
    """

    prompt: str
    tests: str
    entry_point: str
    solution: str


def read_problems(path: str, columns: Columns) -> Iterator[Sample]:
    """The file's problems, line by line. Raises UsageError naming file and line for a row that is no problem."""
    number = 0
    try:
        with Path(path).open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _sample(_row(line, f"{path}, line {number}"), columns, path, number)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    if number == 0:
        raise UsageError(f"{path} is empty; it must hold one problem a line, as JSON")


def _row(line: bytes, where: str) -> Mapping[str, Any]:
    try:
        row = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}: not UTF-8 at byte {error.start + 1}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: not JSON: {error}") from None
    if not isinstance(row, dict):
        raise UsageError(f"{where}: must be an object of JSON, not {row!r:.80}")
    return row


def _sample(row: Mapping[str, Any], columns: Columns, path: str, number: int) -> Sample:
    where = f"{path}, line {number}"
    missing = [column for column in (columns.prompt, columns.tests) if column not in row]
    if missing:
        raise UsageError(f"{where}: no column {missing[0]!r}; it has {', '.join(row)}")
    prompt, tests = row[columns.prompt], row[columns.tests]
    entry_point, prefix = row.get(columns.entry_point) or "", row.get("prefix", "")
    for column, text in {columns.prompt: prompt, "entry_point": entry_point, "prefix": prefix}.items():
        if not isinstance(text, str):
            raise UsageError(f"{where}: {column} must be text, not {text!r:.80}")
    try:
        cases.parse(tests, entry_point)
    except ValueError as error:
        raise UsageError(f"{where}: {columns.tests}: {error}") from None
    return Sample(
        key=f"{Path(path).name}:{number}",
        prompt=prompt,
        answer=str(row.get(columns.solution) or ""),
        extra={"tests": tests, "entry_point": entry_point, "prefix": prefix},
    )
