"""The file of rows: a header that says what it is, then a JSON row for each finished measurement; only added to."""

import dataclasses
import os
import stat
from pathlib import Path
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError

from groupwise.claims.measurements import Row
from groupwise.core.errors import RunError, UsageError, brief
from groupwise.core.files.atomic import open_regular, open_to_append
from groupwise.core.files.jsonl import encoded
from groupwise.core.files.paths import existing_parent

#: The first line of such a file; another number where rows are written in another form.
HEADER: dict[str, Any] = {"groupwise_claims": 1}
ROW = TypeAdapter(Row)


def read_rows(path: Path) -> list[Row]:
    """Read the rows so far; none if there is no file. A last line without its end, which a kill leaves, is no row.

    Raises UsageError for another kind of file, one of another version, or a line that is no row.
    """
    if not os.path.lexists(path):
        return []
    try:
        with open_regular(path) as file:
            *lines, unfinished = file.read().split(b"\n")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}; name another file with --rows") from None
    if lines or not encoded(HEADER).startswith(unfinished):
        _require_header(path, lines[0] if lines else unfinished)
    return [_row(path, number, line) for number, line in enumerate(lines[1:], 2)]


def require_place(path: Path) -> None:
    """Raises UsageError where no row could be added to the file, or none be made there: before anything is measured."""
    if os.path.lexists(path):
        writable = stat.S_ISREG(path.lstat().st_mode) and os.access(path, os.W_OK)
        reason = "this is no file of its own that can be written to"
    else:
        place = existing_parent(path)
        writable = place.is_dir() and os.access(place, os.W_OK | os.X_OK)
        reason = f"{place} is no folder that can be written to"
    if not writable:
        raise UsageError(f"{path}: {reason}; name another file with --rows")


def append_row(path: Path, row: Row) -> None:
    """Add a row, on the disk when this returns. Raises RunError where the disk refuses."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _end_with_whole_line(path)
        with open_to_append(path) as file:
            if not file.tell():
                file.write(encoded(HEADER) + b"\n")
            written = {name: value for name, value in dataclasses.asdict(row).items() if name != "line"}
            file.write(encoded(written) + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise RunError(f"{path}: a row cannot be added: {error.strerror}; the rows before it are kept") from None


def _require_header(path: Path, line: bytes) -> None:
    try:
        version = orjson.loads(line).get("groupwise_claims")
    except (ValueError, AttributeError):
        version = None
    if version is None:
        raise UsageError(f"{path}: this is no file of claims' rows (line 1 is no header); name another with --rows")
    if version != HEADER["groupwise_claims"]:
        raise UsageError(
            f"{path}: its rows are of version {brief(version)}, this is {HEADER['groupwise_claims']} (line 1); name "
            "another with --rows, or move it away, and all is measured again"
        )


def _row(path: Path, number: int, line: bytes) -> Row:
    try:
        return dataclasses.replace(ROW.validate_json(line), line=number)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise UsageError(
            f"{path}: line {number} is no row ({reason}); delete that line, and what it held is measured again"
        ) from None


def _end_with_whole_line(path: Path) -> None:
    """Cut off what a killed process began to write."""
    if path.exists():
        with open_regular(path) as file:
            text = file.read()
        if not text.endswith(b"\n"):
            os.truncate(path, text.rfind(b"\n") + 1)
