"""Every row of a data set once: into the index, left out with a reason that a note says, or refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from groupwise.core.errors import UsageError
from groupwise.tasks.data.columns import Columns
from groupwise.tasks.data.filter import keeps
from groupwise.tasks.data.index import IndexedSamples, SampleIndex
from groupwise.tasks.data.sources import sources_of
from groupwise.tasks.data.split import Split, split_rows

if TYPE_CHECKING:
    import numpy as np

#: So many rows are named where a message lists what is wrong.
_LISTED = 3


@dataclass(frozen=True)
class Problems:
    """All problems, their split, and what a person should know about the rows."""

    index: SampleIndex
    split: Split
    notes: Sequence[str]

    def samples(self, rows: np.ndarray) -> IndexedSamples:
        """The samples of these rows of the index."""
        return IndexedSamples(self.index, rows)


def read_problems(columns: Columns, readable: Callable[[str], bool]) -> Problems:
    """All problems of a data set; `readable` says whether a gold answer can be checked.

    A problem is its text: one that comes twice is taken once, and one that is trained on is never held out.
    Raises UsageError, one line with file and line, where the files cannot be what the recipe says.
    """
    settings = columns.settings
    sources = sources_of(settings.path, settings.heldout)
    index = SampleIndex(columns, [*sources.train, *sources.heldout])
    scan = _Scan(columns, readable, index)
    for origin in range(len(sources.train)):
        scan.read(origin, settings.limit)
    trained = len(index)
    for origin in range(len(sources.train), len(index.sources)):
        scan.read(origin, limit=0)
    scan.require_enough()
    split = split_rows(index.digests, trained, settings.heldout_share, settings.seed)
    unread = [f"not read: {', '.join(sources.unread)}"] * bool(sources.unread)
    return Problems(index, split, [*scan.notes(), *split.notes, *unread])


@dataclass
class _Scan:
    """Rows on their way into the index, and counts of those that did not get there.

    examples  the first unreadable answers, for messages
    """

    columns: Columns
    readable: Callable[[str], bool]
    index: SampleIndex
    rows: int = 0
    filtered: int = 0
    unreadable: int = 0
    examples: list[str] = field(default_factory=list)

    def read(self, origin: int, limit: int) -> None:
        """Every row of source number `origin`, or as many as it takes to have `limit` in the index."""
        source, before = self.index.sources[origin], self.rows
        if limit and len(self.index) >= limit:
            return
        for row in source.rows():
            self.rows += 1
            # A column that the first row lacks is said to be missing from the file.
            self._require_columns(row.values, source.name if self.rows == before + 1 else source.where(row.number))
            if not keeps(self.columns.settings.filter, row.values):
                self.filtered += 1
            elif self._has_answer(row.values, source.where(row.number)):
                self.index.add(origin, row)
            if limit and len(self.index) >= limit:
                return
        if self.rows == before:
            raise UsageError(f"{source.name}: empty: there is no row in it")

    def require_enough(self) -> None:
        """Raises UsageError where too many gold answers cannot be read, or no row is left."""
        settings, tried = self.columns.settings, self.rows - self.filtered
        if self.unreadable > settings.unreadable_limit * tried:
            raise UsageError(
                f"task.answer = {settings.answer!r}: {self._unreadable_answers()}; of {tried:,} that is "
                f"{self.unreadable / tried:.1%}, above task.unreadable_limit = {settings.unreadable_limit}"
            )
        if not len(self.index):
            raise UsageError(f"task.filter leaves none of the {self.rows:,} rows")

    def notes(self) -> list[str]:
        notes = [f"{self.rows:,} rows read"]
        notes += [f"{self.filtered:,} rows left out by task.filter"] * bool(self.filtered)
        return notes + [f"{self._unreadable_answers()}: left out"] * bool(self.unreadable)

    def _unreadable_answers(self) -> str:
        answers = f"{self.unreadable:,} gold answer{'s' * (self.unreadable != 1)}"
        examples = "; ".join([*self.examples, *["..."] * (self.unreadable > _LISTED)])
        return f"{answers} that {self.columns.settings.check!r} cannot read ({examples})"

    def _has_answer(self, values: Mapping[str, Any], where: str) -> bool:
        gold = self.columns.gold(values)
        if gold is not None and self.readable(gold):
            return True
        self.unreadable += 1
        if len(self.examples) < _LISTED:
            self.examples.append(f"{where}: {_short(values[self.columns.settings.answer] if gold is None else gold)}")
        return False

    def _require_columns(self, values: Mapping[str, Any], where: str) -> None:
        """Raises UsageError naming a column that is not there."""
        for column, key in self.columns.required.items():
            if column not in values:
                what = "such column" if f"= {column!r}" in key or "filter" in key else f"column {column!r}"
                raise UsageError(f"{key}: {where} has no {what}; columns there: {', '.join(values) or 'none'}")


def _short(value: object, longest: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= longest else text[: longest - 3] + "..."
