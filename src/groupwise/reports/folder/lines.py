"""Lines of JSON as a run left them: whole rows, halves, and what other tools wrote. What is odd is counted and said."""

import json
from bisect import bisect_left
from collections import Counter
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from typing import IO, Any

import orjson

from groupwise.core.files.atomic import open_regular
from groupwise.core.files.jsonl import STEP, shallow, writable
from groupwise.health.symptoms.base import is_number
from groupwise.reports.records import Number

Row = dict[str, Any]

#: Every kind of oddity in words, for one and for {n} of them.
ODD: dict[str, tuple[str, str]] = {
    "cut": ("the last line is cut off and was left out", "the last line is cut off and was left out"),
    "broken": (
        "1 line is cut off or damaged; only what is whole in it was kept",
        "{n} lines are cut off or damaged; only what is whole in them was kept",
    ),
    "foreign": (
        "1 line has bytes that are not UTF-8; they are shown as \ufffd",
        "{n} lines have bytes that are not UTF-8; they are shown as \ufffd",
    ),
    "no object": (
        "1 line is JSON but no object and was left out",
        "{n} lines are JSON but no object and were left out",
    ),
    "no table": (
        "1 row has a text or a number where a table belongs; that was left out",
        "{n} rows have a text or a number where a table belongs; that was left out",
    ),
    "no step": (
        "1 row has no whole number as its step and was left out",
        "{n} rows have no whole number as their step and were left out",
    ),
    "twice": (
        "1 row is of a step that was there already; the later row is kept",
        "{n} rows are of steps that were there already; the later row of each is kept",
    ),
    "no number": (
        "1 value is written as NaN or Infinity; it is a gap here",
        "{n} values are written as NaN or Infinity; they are gaps here",
    ),
}

#: This many bytes at the beginning, and before the place that was read up to, tell whether a file is the same one.
_SEEN = 256
_LARGEST_STEP = 2**53


def oddities(name: str, odd: Counter[str]) -> list[str]:
    """The oddities of a file, a line for each kind.

    >>> oddities("metrics.jsonl", Counter({"no step": 2}))
    ['metrics.jsonl: 2 rows have no whole number as their step and were left out']
    """
    lines = [
        (one if odd[kind] == 1 else many).format(n=f"{odd[kind]:,}") for kind, (one, many) in ODD.items() if odd[kind]
    ]
    return [f"{name}: {words}" for words in lines]


def table(value: object) -> dict[str, Any]:
    """A table as it is; an empty one for everything else."""
    return value if isinstance(value, dict) else {}


def number(value: object) -> Number:
    """A number as it is; None for everything else, such as truth values and what is too large to have been measured.

    >>> number(0.5), number(float("nan")), number("0.5"), number(True)
    (0.5, None, None, None)
    """
    if not is_number(value):
        return None
    return float(value) if abs(value) > _LARGEST_STEP else value


def count_of(value: object) -> int | None:
    """A number that counts something: 0, 1, 2, ..., also where it is written 2.0."""
    count = number(value)
    if count is None or count < 0 or count != int(count) or count > _LARGEST_STEP:
        return None
    return int(count)


def parsed(text: bytes, odd: Counter[str]) -> Any:
    """One JSON value. Raises ValueError where it is none."""
    try:
        return shallow(orjson.loads(text))
    except ValueError:
        return _foreign(text, odd)


def rows_of(line: bytes, odd: Counter[str]) -> list[Row]:
    """The rows of one line: one as a rule, none where it holds no object, and what is whole in a damaged line."""
    if not line.strip():
        return []
    try:
        value = parsed(line, odd)
    except ValueError:
        return _rescued(line, odd)
    if isinstance(value, dict):
        return [value]
    odd["no object"] += 1
    return []


def all_rows(path: Path, odd: Counter[str]) -> tuple[list[Row], str]:
    """Every row of a file as it is now, and why it cannot be read, in the system's words, where it cannot."""
    tail = Tail(path)
    rows = tail.take()
    odd.update(tail.odd)
    try:
        last = parsed(tail.half, odd) if tail.half.strip() else None
    except ValueError:
        last = ()
    if isinstance(last, dict):  # whole but for the end of the line
        rows.append(last)
    elif last is not None:
        odd["cut"] += 1
    return rows, tail.error


class ByStep:
    """Rows by their steps; of a step that is there twice, the later row.

    rows  in the order of their steps
    """

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def add(self, row: Row, odd: Counter[str]) -> None:
        step = count_of(row.get("step"))
        if step is None:
            odd["no step"] += 1
            return
        at = bisect_left(self.rows, step, key=itemgetter("step"))
        twice = at < len(self.rows) and self.rows[at]["step"] == step
        odd["twice"] += twice
        self.rows[at : at + twice] = [{**row, "step": step}]


class Tail:
    """What was appended to a file of lines since the last time, for the cost of the new bytes alone.

    A half last line stays for the next time. A file that is not there is one without lines.

    path       the file
    start      the byte to begin at, the first of a line
    offset     the first byte that was not taken yet
    half       the bytes after the last end of a line, as the last take saw them
    restarted  the last take found the file cut back, written anew or gone: what was taken before it no longer holds,
               and what it gave is from the file's beginning
    error      why the last take could not read, in the system's words, or ""
    odd        what was wrong with the rows so far
    """

    def __init__(self, path: Path, start: int = 0) -> None:
        self.path, self.offset = path, 0
        self.half, self.error, self.restarted = b"", "", False
        self.odd: Counter[str] = Counter()
        self._head, self._last = b"", b""
        if start:
            self._begin_at(start)

    def take(self) -> list[Row]:
        """The new rows."""
        lines = self.take_lines()
        if self.restarted:
            self.odd.clear()
        return [row for line in lines for row in rows_of(line, self.odd)]

    def take_lines(self) -> list[bytes]:
        """The new lines, as they are, without their ends."""
        self.restarted, self.error, self.half = False, "", b""
        try:
            with open_regular(self.path) as file:
                if self._is_another(file):
                    self._forget()
                file.seek(self.offset)
                new = file.read()
        except FileNotFoundError:
            if self.offset:
                self._forget()
            return []
        except OSError as error:
            self.error = error.strerror or str(error)
            return []
        end = new.rfind(b"\n") + 1
        self.half = new[end:]
        self._remember(new[:end])
        return new[:end].split(b"\n")[:-1]

    def _is_another(self, file: IO[bytes]) -> bool:
        if file.read(len(self._head)) != self._head:
            return True
        file.seek(self.offset - len(self._last))
        return file.read(len(self._last)) != self._last

    def _forget(self) -> None:
        self.offset, self._head, self._last, self.restarted = 0, b"", b"", True

    def _remember(self, new: bytes) -> None:
        self.offset += len(new)
        self._head = (self._head + new[:_SEEN])[:_SEEN]
        self._last = (self._last + new[-_SEEN:])[-_SEEN:]

    def _begin_at(self, start: int) -> None:
        with self.path.open("rb") as file:
            self._head = file.read(min(start, _SEEN))
            file.seek(max(0, start - _SEEN))
            self._last = file.read(min(start, _SEEN))
        self.offset = start


def _foreign(text: bytes, odd: Counter[str]) -> Any:
    """What another tool wrote: NaN as a word, bytes that are not UTF-8, halves of surrogate pairs."""
    text = text.removeprefix(b"\xef\xbb\xbf")
    words = text.decode("utf-8", errors="replace")
    gaps: list[str] = []
    try:
        # As orjson does: an integer that is too long becomes a float, which may be infinite.
        value = json.loads(words, parse_constant=gaps.append, parse_int=lambda n: int(n) if len(n) < 19 else float(n))
        value = shallow(writable(value))
    except RecursionError:
        raise ValueError("nested too deep") from None
    odd["no number"] += len(gaps)
    odd["foreign"] += words.encode() != text
    return value


def _rescued(line: bytes, odd: Counter[str]) -> list[Row]:
    """The rows in a damaged line: a killed run leaves half a line, and the next row may stand right behind it."""
    odd["broken"] += 1
    rows: list[Row] = []
    for piece in line.split(STEP)[1:]:
        with suppress(ValueError):
            rows.append(parsed(STEP + piece, odd))
    return rows
