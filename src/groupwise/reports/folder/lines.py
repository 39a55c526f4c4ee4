"""Lines of JSON as a run left them: whole rows, halves, and what other tools wrote. What is odd is counted and said.
The places of groups in rollouts.jsonl are found by the beginnings of lines alone.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import orjson

from groupwise.core.files.atomic import open_regular
from groupwise.core.files.json_text import writable
from groupwise.core.files.jsonl import STEP, shallow
from groupwise.health.symptoms.base import is_number
from groupwise.reports.records import Number

#: A completion with at least this score is right, and rewards that differ by no more are equal.
RIGHT, TIE = 1.0 - 1e-6, 1e-6
#: Kinds of a group that is measured by a reward.
DIFFER, EQUAL = "rewards differ", "rewards equal"

_BEGIN = re.compile(rb'\{"step": ?(\d{1,15}), ?"group": ?(\d{1,15}), ?"fate": ?"(\w+)"')
_SCORE = re.compile(rb'"score": ?(-?\d[0-9.eE+-]*)')
_MEASURED = re.compile(rb'"measured": ?(null|-?\d[0-9.eE+-]*)')
_FAULT, _ROW = b'"fault":', b'{"step"'


@dataclass
class GroupPlace:
    """The lines of one group, bytes start to end.

    doubtful  the group stands at an end of its step, or beside a line that cannot be read: it may not be whole
    """

    group: int
    fate: str
    start: int
    end: int
    rows: int = 0
    doubtful: bool = False


@dataclass
class StepPlaces:
    """The groups of one step, from the byte `start` on; `rows` counts its lines, `groups` each that was begun."""

    start: int
    end: int
    rows: int = 0
    groups: int = 0
    places: list[GroupPlace] = field(default_factory=list)


@dataclass
class Scan:
    """A file of rollouts.

    steps  of a step that was written twice, the later lines
    usual  rows of the largest group
    odd    lines that do not begin as a row does, or do not end
    end    the first byte after the last whole line
    """

    steps: dict[int, StepPlaces] = field(default_factory=dict)
    usual: int = 0
    odd: int = 0
    end: int = 0

    @property
    def rows(self) -> int:
        return sum(step.rows for step in self.steps.values())

    def until(self, last: int | None) -> Scan:
        """Leave out the steps after `last`; none for None."""
        if last is None:
            return self
        later = [place.start for step, place in self.steps.items() if step > last]
        steps = {step: place for step, place in self.steps.items() if step <= last}
        return replace(self, steps=steps, end=min([self.end, *later]))

    def whole(self, step: int) -> list[GroupPlace]:
        """List the whole groups of a step: a doubtful one with fewer rows than usual was cut."""
        return [place for place in self.steps[step].places if place.rows >= self.usual or not place.doubtful]


def scan(file: IO[bytes], start: int = 0) -> Scan:
    """Find steps and groups from the byte `start` on: one pass over the lines."""
    file.seek(start)
    scanned, at = Scan(end=start), start
    here, step, group, size, doubtful = StepPlaces(start, start), -1, -1, 0, True
    for line in file:
        begin, end = _BEGIN.match(line), at + len(line)
        if begin is None or not (line.endswith(b"\n") and line[-3:].rstrip().endswith(b"}")):
            scanned.odd += bool(line.strip())
            doubtful = _doubt(here.places)
        else:
            number = int(begin[2])
            if int(begin[1]) != step or number < group:
                step, group, doubtful = int(begin[1]), -1, _doubt(here.places)
                here = scanned.steps[step] = StepPlaces(at, at)
            if number != group:
                group, size, here.groups = number, 0, here.groups + 1
            here.rows, size, here.end = here.rows + 1, size + 1, end
            scanned.usual = max(scanned.usual, size)
            if line.find(_ROW, 1) > 0:
                doubtful = _doubt(here.places)
            else:
                if not here.places or here.places[-1].group != number:
                    here.places.append(GroupPlace(number, begin[3].decode(), at, at, doubtful=doubtful))
                here.places[-1].rows, here.places[-1].end, doubtful = here.places[-1].rows + 1, end, False
        at = end
        scanned.end = at if line.endswith(b"\n") else scanned.end
    _doubt(here.places)
    return scanned


def _doubt(places: Sequence[GroupPlace]) -> bool:
    """Mark the last group as one that may not be whole, as the next one may not be."""
    for place in places[-1:]:
        place.doubtful = True
    return True


def labels_of(lines: bytes, fate: str) -> Iterator[str]:
    """Name what a page shows a group as: its kind, or its fate if it does not train; and "fault" if it has one."""
    rows = lines.split(b"\n")
    found = ([each[1] for row in rows if (each := pattern.search(row))] for pattern in (_SCORE, _MEASURED))
    scores, measured = (list(map(_number, texts)) for texts in found)
    yield kind_of(scores, measured) if fate in ("trained", "heldout") else fate
    if _FAULT in lines:
        yield "fault"


def _number(text: bytes) -> Number:
    try:
        return float(text)
    except ValueError:  # null
        return None


def kind_of(scores: Sequence[Number], measured: Sequence[Number] = ()) -> str:
    """Tell the kind of a group by what its completions are measured by, if that is a reward, else by their scores.

    >>> kind_of([1.0, 0.0]), kind_of([None]), kind_of([], measured=[0.5, 0.7, None])
    ('mixed', 'unscored', 'rewards differ')
    """
    values = [value for value in measured or scores if value is not None]
    if not values:
        return "unscored"
    if measured:
        return DIFFER if max(values) - min(values) > TIE else EQUAL
    right = sum(value >= RIGHT for value in values)
    return "all wrong" if not right else "all right" if right == len(values) else "mixed"


Row = dict[str, Any]

#: Every kind of oddity in words; {one|many} is said of one and of several, and # is their number.
ODD = {
    "cut": "the last line is cut off and was left out",
    "broken": "{1 line is|# lines are} cut off or damaged; only what is whole in {it|them} was kept",
    "foreign": "{1 line has|# lines have} bytes that are not UTF-8; they are shown as \ufffd",
    "no object": "{1 line is|# lines are} JSON but no object and {was|were} left out",
    "no table": "{1 row has|# rows have} a text or a number where a table belongs; that was left out",
    "no step": "{1 row has|# rows have} no whole number as {its|their} step and {was|were} left out",
    "twice": "{1 row is of a step|# rows are of steps} that {was|were} there already; the later row {|of each }is kept",
    "no number": "{1 value is|# values are} written as NaN or Infinity; {it is a gap|they are gaps} here",
}

_LARGEST_STEP = 2**53


def oddities(name: str, odd: Counter[str]) -> list[str]:
    """Tell the oddities of a file, a line for each kind.

    >>> oddities("metrics.jsonl", Counter({"no step": 2}))
    ['metrics.jsonl: 2 rows have no whole number as their step and were left out']
    """
    counts = [(odd[kind], words) for kind, words in ODD.items() if odd[kind]]
    chosen = [re.sub(r"\{(.*?)\|(.*?)\}", r"\1" if count == 1 else r"\2", words) for count, words in counts]
    return [f"{name}: {words.replace('#', f'{count:,}')}" for (count, _), words in zip(counts, chosen, strict=True)]


def table(value: object) -> dict[str, Any]:
    """Take a table as it is, and everything else as an empty one."""
    return value if isinstance(value, dict) else {}


def tables(value: object) -> list[dict[str, Any]]:
    """Take the entries of a list, each as a table; none if it is no list."""
    return [table(entry) for entry in value] if isinstance(value, list) else []


def number(value: object) -> Number:
    """Take a number as it is; everything else, such as truth values and what is too large to be measured, as None.

    >>> number(0.5), number(float("nan")), number("0.5"), number(True)
    (0.5, None, None, None)
    """
    if not is_number(value):
        return None
    return float(value) if abs(value) > _LARGEST_STEP else value


def count_of(value: object) -> int | None:
    """Take a number that counts something: 0, 1, 2, ..., also if it is written 2.0."""
    count = number(value)
    if count is None or count < 0 or count != int(count) or count > _LARGEST_STEP:
        return None
    return int(count)


def parsed(text: bytes, odd: Counter[str]) -> Any:
    """Read one JSON value. Raises ValueError if the text is none."""
    try:
        return shallow(orjson.loads(text))
    except ValueError:
        return _foreign(text, odd)


def rows_of(line: bytes, odd: Counter[str]) -> list[Row]:
    """Read the rows of one line: one as a rule, none if it holds no object, and what is whole in a damaged line."""
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
    """Read every row of a file as it is now -> the rows, and why the file cannot be read, in the system's words."""
    try:
        with open_regular(path) as file:
            *lines, half = file.read().split(b"\n")
    except FileNotFoundError:
        return [], ""
    except OSError as error:
        return [], error.strerror or str(error)
    rows = [row for line in lines for row in rows_of(line, odd)]
    try:
        last = parsed(half, odd) if half.strip() else None
    except ValueError:
        last = ()
    if isinstance(last, dict):  # whole but for the end of the line
        rows.append(last)
    elif last is not None:
        odd["cut"] += 1
    return rows, ""


def by_step(rows: Iterable[Row], odd: Counter[str]) -> list[Row]:
    """Put rows in the order of their steps; of a step that is there twice, the later row is kept."""
    found: dict[int, Row] = {}
    for row in rows:
        step = count_of(row.get("step"))
        if step is None:
            odd["no step"] += 1
        else:
            odd["twice"] += step in found
            found[step] = {**row, "step": step}
    return [found[step] for step in sorted(found)]


def _foreign(text: bytes, odd: Counter[str]) -> Any:
    """Read what another tool wrote: NaN as a word, bytes that are not UTF-8, halves of surrogate pairs."""
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
    """Read the rows in a damaged line: a killed run leaves half a line, and the next row may stand right behind it."""
    odd["broken"] += 1
    rows: list[Row] = []
    for piece in line.split(STEP)[1:]:
        with suppress(ValueError):
            rows.append(parsed(STEP + piece, odd))
    return rows
