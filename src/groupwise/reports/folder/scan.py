"""The places of groups in rollouts.jsonl, found by the beginnings of lines: no line is parsed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import IO

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
