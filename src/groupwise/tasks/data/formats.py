"""Rows of text files, one at a time: JSON lines (.gz too), a JSON list, CSV and TSV.

A row knows its line, and where its first byte is: the rows of a large file are read again when they are used, so that a
file of any size costs a few bytes a row.
"""

import csv
import gzip
import zlib
from abc import ABC, abstractmethod
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar, NamedTuple

from groupwise.core.errors import UsageError, brief, disk_words, listed
from groupwise.core.files.json_text import decoded, json_value

#: The offset of a row that cannot be read again by itself: the index holds its sample in memory.
IN_MEMORY = -1
#: Files below this many bytes are held in memory: reading a line again takes longer than its bytes are worth.
SMALL_FILE = 32 << 20
#: A line beyond this is no row of text: the file is something else, or its line ends were lost.
LONGEST_LINE = 16 << 20
#: A JSON list is parsed at once, in many times its size.
LARGEST_LIST = 256 << 20
#: A packed file that is large and so many times as large unpacked is made to fill memory.
LARGEST_RATIO = 200


class Row(NamedTuple):
    """One row: its line or place in the file, counted from 1, its first byte (or IN_MEMORY), its columns, and the names
    of those whose bytes (pictures, sound) are left out of them.
    """

    number: int
    offset: int
    values: dict[str, Any]
    left_out: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class Source(ABC):
    """A file, or a table of a library, that gives rows.

    name  its path, for messages
    unit  what a row's number counts
    """

    name: str
    unit: ClassVar[str] = "row"

    @property
    def path(self) -> Path:
        return Path(self.name)

    @abstractmethod
    def rows(self) -> Iterator[Row]:
        """Return every row in its order, read one at a time."""

    def read(self, number: int, offset: int) -> dict[str, Any]:
        """Return the columns of row `number` once more, by its offset, where that is not IN_MEMORY."""
        raise AssertionError("rows in memory are not read again")

    def where(self, number: int) -> str:
        """Return a row's place, for messages: "train.jsonl, line 3"."""
        return f"{self.name}, {self.unit} {number}"

    def _in_memory(self) -> bool:
        """Tell if the file is so small, or packed, that its rows are held rather than read again."""
        return self.path.suffix == ".gz" or self.path.stat().st_size < SMALL_FILE


class JsonLines(Source):
    """One JSON object a line; blank lines are passed over."""

    unit = "line"

    def rows(self) -> Iterator[Row]:
        in_memory = self._in_memory()
        packed = self.path.suffix == ".gz"
        most = max(SMALL_FILE, LARGEST_RATIO * self.path.stat().st_size) if packed else float("inf")
        with open_bytes(self.path) as file:
            for number, offset, line in numbered_lines(file, self.where):
                if offset > most:
                    raise UsageError(f"{self.where(number)}: unpacks to over {LARGEST_RATIO} times its size; unpack it")
                if not line.isspace():
                    yield Row(number, IN_MEMORY if in_memory else offset, self._columns(line, number))

    def read(self, number: int, offset: int) -> dict[str, Any]:
        with open_bytes(self.path) as file:
            file.seek(offset)
            return self._columns(file.readline(LONGEST_LINE), number)

    def _columns(self, line: bytes, number: int) -> dict[str, Any]:
        where = self.where(number)
        return json_object(json_value(line.rstrip(), where), where)


class JsonList(Source):
    """One JSON list of objects; a row's number is its place in the list."""

    unit = "entry"

    def rows(self) -> Iterator[Row]:
        size = self.path.stat().st_size
        if size > LARGEST_LIST:
            raise UsageError(
                f"{self.path}: a JSON list of {size >> 20} MiB is read as a whole, which takes too much memory; "
                "write it as .jsonl, one object a line"
            )
        with open_bytes(self.path) as file:
            entries = json_value(file.read(), self.name)
        if not isinstance(entries, list):
            inside = rows_inside(entries) if isinstance(entries, dict) else ""
            raise UsageError(f"{self.path}: {kind_of(entries)}, not a list of objects{inside}")
        for number, entry in enumerate(entries, start=1):
            yield Row(number, IN_MEMORY, json_object(entry, self.where(number)))


def rows_inside(table: dict[str, Any]) -> str:
    """Say where the rows of an object are that is a whole file, as a message goes on; "" if it may be a row itself.

    >>> rows_inside({"data": [{"prompt": "1 + 1?"}]}), rows_inside({"prompt": "1 + 1?", "tags": ["a"]})
    ("; its 'data' holds 1: write that list alone", '')
    """
    for name, value in table.items():
        if isinstance(value, list) and value and all(isinstance(row, dict) and "role" not in row for row in value):
            return f"; its {name!r} holds {len(value):,}: write that list alone"
    columns = [value for value in table.values() if isinstance(value, (list, dict))]
    if len(columns) == len(table) > 1 and len(columns[0]) > 1 and len({len(column) for column in columns}) == 1:
        return " but of columns; pandas writes rows with to_json(orient='records', lines=True)"
    return ""


class Csv(Source):
    """Values between commas (.tsv: tabs) under a header; a quoted value may go over several lines."""

    unit = "line"

    def rows(self) -> Iterator[Row]:
        in_memory = self._in_memory()
        with open_bytes(self.path) as file:
            records = self._records(file)
            header = self._header(records)
            for number, offset, fields in records:
                if fields:
                    yield Row(number, IN_MEMORY if in_memory else offset, self._columns(header, fields, number))

    def read(self, number: int, offset: int) -> dict[str, Any]:
        with open_bytes(self.path) as file:
            header = self._header(self._records(file))
            file.seek(offset)
            fields = next((fields for _, _, fields in self._records(file, number)), [])
        return self._columns(header, fields, number)

    def _records(self, file: IO[bytes], first: int = 1) -> Iterator[tuple[int, int, list[str]]]:
        """Yield line number, offset and fields of every record from where the file stands."""
        lines = (decoded(line, self.where(number)) for number, _, line in numbered_lines(file, self.where, first))
        reader = csv.reader(lines, delimiter="\t" if self.path.suffix == ".tsv" else ",", strict=True)
        while True:
            number, offset = first + reader.line_num, file.tell()
            try:
                yield number, offset, next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise UsageError(f"{self.where(number)}: not CSV: {error}") from None

    def _header(self, records: Iterator[tuple[int, int, list[str]]]) -> list[str]:
        header = next((fields for _, _, fields in records), [])
        if header and (len(set(header)) < len(header) or "" in header):
            index = "; pandas leaves its index out with to_csv(index=False)" * (header[0] == "")
            what = f"the header must name every column, each once; it says {brief(header)}"
            raise UsageError(f"{self.where(1)}: {what}{index}")
        if len(header) == 1 and (other := next((mark for mark in ";|\t" if mark in header[0]), None)):
            what = f"one column whose name holds {other!r}: columns stand between commas, in a .tsv file between tabs"
            raise UsageError(f"{self.where(1)}: {what}")
        return header

    def _columns(self, header: list[str], fields: list[str], number: int) -> dict[str, Any]:
        if len(fields) != len(header):
            raise UsageError(f"{self.where(number)}: {len(fields)} fields, but the header names {len(header)}")
        return dict(zip(header, fields, strict=True))


def open_bytes(path: Path) -> IO[bytes]:
    """Return the file's bytes after a byte order mark, unpacked where it is a .gz. Raises UsageError in the system's
    words.
    """
    try:
        file: Any = (gzip.open if path.suffix == ".gz" else open)(path, "rb")
        if file.read(len(BOM_UTF8)) != BOM_UTF8:
            file.seek(0)
    except (OSError, EOFError, zlib.error) as error:  # a .gz that was cut off, or is none
        raise UsageError(f"{path}: {disk_words(error) or error}") from None
    return file


def numbered_lines(file: IO[bytes], where: Callable[[int], str], first: int = 1) -> Iterator[tuple[int, int, bytes]]:
    """Yield line number, offset and bytes of every line from where the file stands."""
    number, offset = first, file.tell()
    while True:
        try:
            line = file.readline(LONGEST_LINE + 1)
        except (OSError, EOFError, zlib.error) as error:  # a .gz that was cut off
            raise UsageError(f"{where(number)}: {disk_words(error) or error}") from None
        if not line:
            return
        if len(line) > LONGEST_LINE:
            raise UsageError(f"{where(number)}: longer than {LONGEST_LINE >> 20} MiB; no row of text is")
        yield number, offset, line
        number, offset = number + 1, offset + len(line)


def json_object(value: object, where: str) -> dict[str, Any]:
    """Return the value, where it is an object. Raises UsageError saying what it is otherwise."""
    if not isinstance(value, dict):
        raise UsageError(f'{where}: {kind_of(value)}, not an object of columns; such as {{"prompt": ...}}')
    return value


def kind_of(value: object) -> str:
    """Say what a JSON value is.

    >>> kind_of([1]), kind_of(None)
    ('a list', 'nothing (null)')
    """
    words = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return "nothing (null)" if value is None else words.get(type(value), type(value).__name__)


class MissingColumn(LookupError):
    """A path that ends nowhere; its message says at which part, and what is there instead."""


def value_at(values: Mapping[str, Any], path: str) -> Any:
    """Return the value of a column, or inside one: names of tables and places in lists (from 0), with dots between.

    A column whose whole name is the path comes first. Raises MissingColumn.

    >>> row = {"reward_model": {"ground_truth": "72", "style": "rule"}, "prompt": [{"content": "6 * 12?"}]}
    >>> value_at(row, "reward_model.ground_truth"), value_at(row, "prompt.0.content")
    ('72', '6 * 12?')
    >>> value_at(row, "reward_model.truth")
    Traceback (most recent call last):
    groupwise.tasks.data.formats.MissingColumn: has no 'truth' in its column 'reward_model'; there: ground_truth, style
    """
    if path in values:
        return values[path]
    first, *inner = path.split(".")
    if first not in values:
        raise MissingColumn(f"has no column {first!r}; columns there: {listed(values) or 'none'}")
    value, above = values[first], first
    for name in inner:
        value, above = _inside(value, name, above), f"{above}.{name}"
    return value


def _inside(value: Any, name: str, above: str) -> Any:
    """Return what a table holds under the name, or a list at the place; `above` is the path to it, for the message."""
    if isinstance(value, Mapping) and name in value:
        return value[name]
    if isinstance(value, list) and name.isdecimal() and int(name) < len(value):
        return value[int(name)]
    size = f"a list of {len(value)}" if isinstance(value, list) else kind_of(value)
    there = f"there: {listed(value)}" if isinstance(value, Mapping) and value else f"it holds {size}"
    raise MissingColumn(f"has no {name!r} in its column {above!r}; {there}")
