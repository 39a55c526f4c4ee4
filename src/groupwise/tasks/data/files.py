"""Rows of text files, one at a time: JSON lines (.gz too), a JSON list, CSV and TSV.

A row knows its line, and where its first byte is: the rows of a large file are read again when they are asked for, so
that a file of any size costs a few bytes a row.
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

from groupwise.core.errors import UsageError, disk_words

#: The offset of a row that cannot be read again by itself: who wants it later keeps it.
KEPT = -1
#: Files below this many bytes are kept in memory: reading a line again takes longer than its bytes are worth.
SMALL_FILE = 32 << 20
#: A line beyond this is no row of text: the file is something else, or its line ends were lost.
LONGEST_LINE = 16 << 20
#: A JSON list is parsed as a whole, in many times its size.
LARGEST_LIST = 256 << 20

_BOM = b"\xef\xbb\xbf"


class Row(NamedTuple):
    """One row: its line or place in the file, counted from 1, its first byte (or KEPT), its columns."""

    number: int
    offset: int
    values: dict[str, Any]


class Source(Protocol):
    """A file, or a table of a library, that gives rows.

    name         its path, for messages
    rows()       every row in its order, read one at a time
    read(n, at)  the columns of row n once more, by its offset, where that is not KEPT
    where(n)     "train.jsonl, line 3"
    """

    @property
    def name(self) -> str: ...

    def rows(self) -> Iterator[Row]: ...

    def read(self, number: int, offset: int) -> dict[str, Any]: ...

    def where(self, number: int) -> str: ...


@dataclass(frozen=True)
class TextFile:
    """What the text formats share: a path, and messages that name file and line."""

    path: Path

    @property
    def name(self) -> str:
        return str(self.path)

    def where(self, number: int) -> str:
        return f"{self.path}, line {number}"

    def _is_small(self) -> bool:
        return self.path.suffix == ".gz" or self.path.stat().st_size < SMALL_FILE


class JsonLines(TextFile):
    """One JSON object a line; blank lines are passed over."""

    def rows(self) -> Iterator[Row]:
        small = self._is_small()
        with opened(self.path) as file:
            for number, offset, line in numbered(file, self.where):
                if not line.isspace():
                    yield Row(number, KEPT if small else offset, json_object(line, self.where(number)))

    def read(self, number: int, offset: int) -> dict[str, Any]:
        with opened(self.path) as file:
            file.seek(offset)
            return json_object(file.readline(LONGEST_LINE), self.where(number))


class JsonList(TextFile):
    """One JSON list of objects; a row's number is its place in the list."""

    def where(self, number: int) -> str:
        return f"{self.path}, entry {number}"

    def rows(self) -> Iterator[Row]:
        size = self.path.stat().st_size
        if size > LARGEST_LIST:
            raise UsageError(
                f"{self.path}: a JSON list of {size >> 20} MiB is read as a whole, which takes too much memory; "
                "write it as .jsonl, one object a line"
            )
        with opened(self.path) as file:
            found = parsed(file.read(), str(self.path))
        if not isinstance(found, list):
            raise UsageError(f"{self.path}: {kind_of(found)}, not a list of objects")
        for number, entry in enumerate(found, start=1):
            yield Row(number, KEPT, demand_object(entry, self.where(number)))

    def read(self, number: int, offset: int) -> dict[str, Any]:
        raise AssertionError("its rows are kept, so none is read again")


class Csv(TextFile):
    """Values between commas (.tsv: tabs) under a header; a quoted value may go over several lines."""

    def rows(self) -> Iterator[Row]:
        small = self._is_small()
        with opened(self.path) as file:
            feed = _Feed(file, self.where)
            reader = self._reader(feed)
            header = self._header(reader)
            while True:
                number, offset = feed.number, feed.offset
                fields = self._next(reader, number)
                if fields is None:
                    return
                if fields:
                    yield Row(number, KEPT if small else offset, self._named(header, fields, number))

    def read(self, number: int, offset: int) -> dict[str, Any]:
        with opened(self.path) as file:
            header = self._header(self._reader(_Feed(file, self.where)))
            file.seek(offset)
            fields = self._next(self._reader(_Feed(file, self.where, number)), number)
        return self._named(header, fields or [], number)

    def _reader(self, feed: _Feed) -> Iterator[list[str]]:
        return csv.reader(feed, delimiter="\t" if self.path.suffix == ".tsv" else ",", strict=True)

    def _header(self, reader: Iterator[list[str]]) -> list[str]:
        header = self._next(reader, 1) or []
        if header and (len(set(header)) < len(header) or "" in header):
            raise UsageError(f"{self.where(1)}: the header must name every column, each once; it says {header}")
        return header

    def _next(self, reader: Iterator[list[str]], number: int) -> list[str] | None:
        try:
            return next(reader, None)
        except csv.Error as error:
            raise UsageError(f"{self.where(number)}: not CSV: {error}") from None

    def _named(self, header: list[str], fields: list[str], number: int) -> dict[str, Any]:
        if len(fields) != len(header):
            raise UsageError(f"{self.where(number)}: {len(fields)} fields, but the header names {len(header)}")
        return dict(zip(header, fields, strict=True))


class _Feed:
    """Decoded lines for the csv module, which remembers where the next line begins."""

    def __init__(self, file: IO[bytes], where: Callable[[int], str], number: int = 1) -> None:
        self.number, self.offset = number, file.tell()
        self._lines, self._where = numbered(file, where, number), where

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        number, offset, line = next(self._lines)
        self.number, self.offset = number + 1, offset + len(line)
        return decoded(line, self._where(number))


def opened(path: Path) -> IO[bytes]:
    """The file's bytes after a byte order mark, unpacked where it is a .gz. Raises UsageError in the system's words."""
    try:
        file: Any = (gzip.open if path.suffix == ".gz" else open)(path, "rb")
        if file.read(len(_BOM)) != _BOM:
            file.seek(0)
    except (OSError, EOFError, zlib.error) as error:  # a .gz that was cut off, or is none
        raise UsageError(f"{path}: {disk_words(error) or error}") from None
    return file


def numbered(file: IO[bytes], where: Callable[[int], str], first: int = 1) -> Iterator[tuple[int, int, bytes]]:
    """Line number, offset and bytes of every line from where the file stands."""
    number, offset = first, file.tell()
    while line := _line(file, where, number):
        if len(line) > LONGEST_LINE:
            raise UsageError(f"{where(number)}: longer than {LONGEST_LINE >> 20} MiB; no row of text is")
        yield number, offset, line
        number, offset = number + 1, offset + len(line)


def decoded(line: bytes, where: str) -> str:
    """The text of a line. Raises UsageError naming the first byte that is not UTF-8.

    >>> decoded(b"caf\\xc3\\xa9", "a.csv, line 1")
    'café'
    """
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{where}: byte {error.start + 1} (0x{line[error.start]:02x}) is not UTF-8; save the file as UTF-8"
        ) from None


def parsed(text: bytes, where: str) -> Any:
    """What a JSON text says."""
    try:
        return json.loads(decoded(text, where))
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, " if error.lineno > 1 else ""
        what = error.msg.removesuffix(" at")
        raise UsageError(f"{where}: not JSON: {what} at {place}column {error.colno}") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of brackets
        raise UsageError(f"{where}: JSON that cannot be read: {error}") from None


def json_object(line: bytes, where: str) -> dict[str, Any]:
    """The object that a line holds."""
    return demand_object(parsed(line.rstrip(), where), where)


def demand_object(value: object, where: str) -> dict[str, Any]:
    """The value, where it is an object. Raises UsageError saying what it is otherwise."""
    if not isinstance(value, dict):
        raise UsageError(f'{where}: {kind_of(value)}, not an object of columns; such as {{"prompt": ...}}')
    return value


def kind_of(value: object) -> str:
    """What a JSON value is, in words.

    >>> kind_of([1]), kind_of(None)
    ('a list', 'nothing (null)')
    """
    words = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return "nothing (null)" if value is None else words.get(type(value), type(value).__name__)


def _line(file: IO[bytes], where: Callable[[int], str], number: int) -> bytes:
    try:
        return file.readline(LONGEST_LINE + 1)
    except (OSError, EOFError, zlib.error) as error:  # a .gz that was cut off
        raise UsageError(f"{where(number)}: {disk_words(error) or error}") from None
