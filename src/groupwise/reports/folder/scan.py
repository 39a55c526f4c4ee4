"""The places of steps and groups in rollouts.jsonl, found by the beginnings of lines: no line is parsed."""

from __future__ import annotations

import re
from collections.abc import Sequence
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
class Span:
    """The lines of one step, one after the other: bytes start to end, how many rows and groups."""

    step: int
    start: int
    end: int
    rows: int = 0
    groups: int = 0


@dataclass
class Scan:
    """A file of rollouts.

    spans  by step; of a step that was written twice, the later lines
    usual  rows of the largest group
    odd    lines that do not begin as a row does, or do not end
    end    the first byte after the last whole line
    """

    spans: dict[int, Span] = field(default_factory=dict)
    usual: int = 0
    odd: int = 0
    end: int = 0

    @property
    def rows(self) -> int:
        return sum(span.rows for span in self.spans.values())

    def until(self, last: int | None) -> Scan:
        """Leave out the steps after `last`; none for None."""
        if last is None:
            return self
        later = [span.start for step, span in self.spans.items() if step > last]
        spans = {step: span for step, span in self.spans.items() if step <= last}
        return replace(self, spans=spans, end=min([self.end, *later]))


@dataclass
class GroupLines:
    """The lines of one group, bytes start to end.

    scores         those of its completions that have one
    measured       what its completions are measured by, if that is a reward
    faulty         one of them has a fault
    doubtful       it stands at an end of its step, or beside a line that cannot be read: it may not be whole
    """

    group: int
    fate: str
    start: int
    end: int
    rows: int = 0
    scores: list[Number] = field(default_factory=list)
    measured: list[Number] = field(default_factory=list)
    faulty: bool = False
    doubtful: bool = False


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


def scan(file: IO[bytes], start: int = 0) -> Scan:
    """Find the steps from the byte `start` on: one pass over the lines, in memory that grows with the steps alone."""
    file.seek(start)
    scanned, at = Scan(end=start), start
    span, group, size = Span(-1, 0, 0), -1, 0
    for line in file:
        begin = _BEGIN.match(line)
        if begin is None or not _ends(line):
            scanned.odd += bool(line.strip())
        else:
            step, number = int(begin[1]), int(begin[2])
            if step != span.step or number < group:
                span, group = Span(step, at, at), -1
                scanned.spans[step] = span
            if number != group:
                span.groups, group, size = span.groups + 1, number, 0
            span.rows, size = span.rows + 1, size + 1
            scanned.usual = max(scanned.usual, size)
            span.end = at + len(line)
        at += len(line)
        scanned.end = at if line.endswith(b"\n") else scanned.end
    return scanned


def places(file: IO[bytes], span: Span, usual: int) -> list[GroupLines]:
    """Find the whole groups of a step, in their order.

    At an end of the step, or beside a damaged line, a group with fewer rows than usual was cut.
    """
    file.seek(span.start)
    at, groups, doubtful = span.start, [], True
    while at < span.end:
        line = file.readline()
        begin = _BEGIN.match(line)
        if begin is None or not _ends(line) or line.find(_ROW, 1) > 0:
            doubtful = True
            if groups:
                groups[-1].doubtful = True
        else:
            if not groups or groups[-1].group != int(begin[2]):
                groups.append(GroupLines(int(begin[2]), begin[3].decode(), at, at, doubtful=doubtful))
            _count(groups[-1], line)
            groups[-1].end, doubtful = at + len(line), False
        at += len(line)
    if groups:
        groups[-1].doubtful = True
    return [place for place in groups if place.rows >= usual or not place.doubtful]


def _ends(line: bytes) -> bool:
    return line.endswith(b"\n") and line[-3:].rstrip().endswith(b"}")


def _count(place: GroupLines, line: bytes) -> None:
    place.rows += 1
    for pattern, values in ((_SCORE, place.scores), (_MEASURED, place.measured)):
        if found := pattern.search(line):
            try:
                values.append(float(found[1]))
            except ValueError:  # null
                values.append(None)
    place.faulty = place.faulty or _FAULT in line
