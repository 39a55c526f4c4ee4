"""Every row of a data set once: kept, left out with a reason that is told, or refused; then the two splits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from groupwise.core.errors import UsageError
from groupwise.tasks.data.columns import Columns
from groupwise.tasks.data.files import Source
from groupwise.tasks.data.keep import keeps
from groupwise.tasks.data.places import Place, labels, place
from groupwise.tasks.data.table import Samples, Table, shuffled, split_off

if TYPE_CHECKING:
    import numpy as np

    from groupwise.tasks.data.task import Data

#: So many rows are named where a message lists what is wrong.
_LISTED = 3


@dataclass(frozen=True)
class Problems:
    """Both splits, what a person should know about the rows, and a hash of all that was kept.

    repeated  rows that repeat a problem of their own split
    leaked    held-out rows whose problem is trained on
    """

    train: Samples
    heldout: Samples
    repeated: Samples
    leaked: Samples
    notes: Sequence[str]
    contents: str


def read_problems(data: Data, columns: Columns, readable: Callable[[str], bool]) -> Problems:
    """All problems of a data set; `readable` says whether a gold answer can be checked.

    A problem is its text: one that comes twice is kept once, and one that is trained on is never held out.
    Raises UsageError, one line with file and line, where the files cannot be what the recipe says.
    """
    here = _places(data)
    sources = [*here.train, *here.heldout]
    scan = _Scan(data, columns, readable, Table(columns, sources, labels(sources)))
    for origin in range(len(here.train)):
        scan.read(origin, data.limit)
    trained = len(scan.table)
    for origin in range(len(here.train), len(sources)):
        scan.read(origin, 0)
    scan.demand_enough()
    (train, heldout, repeated, leaked), notes = _splits(scan.table, trained, data)
    contents = scan.table.contents.hexdigest()
    return Problems(train, heldout, repeated, leaked, [*scan.notes(), *notes, *_unread(here)], contents)


@dataclass
class _Scan:
    """Rows on their way into a table, and counts of those that did not get there."""

    data: Data
    columns: Columns
    readable: Callable[[str], bool]
    table: Table
    rows: int = 0
    filtered: int = 0
    unreadable: int = 0
    listed: list[str] = field(default_factory=list)

    def read(self, origin: int, limit: int) -> None:
        """Every row of source number `origin`, or as many as it takes to have `limit` in the table."""
        source, needed, before = self.table.sources[origin], _needed(self.data, self.columns), self.rows
        if limit and len(self.table) >= limit:
            return
        for row in source.rows():
            self.rows += 1
            _demand_columns(needed, row.values, source, row.number if self.rows > before + 1 else 0)
            if not keeps(self.data.filter, row.values):
                self.filtered += 1
            elif self._has_answer(row.values, source, row.number):
                self.table.add(origin, row)
            if limit and len(self.table) >= limit:
                return
        if self.rows == before:
            raise UsageError(f"{source.name}: empty: there is no row in it")

    def demand_enough(self) -> None:
        """Raises UsageError where too many gold answers cannot be read, or no row is left."""
        tried = self.rows - self.filtered
        if self.unreadable > self.data.unreadable_limit * tried:
            raise UsageError(
                f"task.answer = {self.data.answer!r}: {self._told_unreadable()}; of {tried:,} that is "
                f"{self.unreadable / tried:.1%}, above task.unreadable_limit = {self.data.unreadable_limit}"
            )
        if not len(self.table):
            raise UsageError(f"task.filter leaves none of the {self.rows:,} rows")

    def notes(self) -> list[str]:
        found = [f"{self.rows:,} rows read"]
        found += [f"{self.filtered:,} rows left out by task.filter"] * bool(self.filtered)
        found += [f"{self._told_unreadable()}: left out"] * bool(self.unreadable)
        return found

    def _told_unreadable(self) -> str:
        what = f"{self.unreadable:,} gold answer{'s' * (self.unreadable != 1)} that {self.data.check!r} cannot read"
        return f"{what} ({'; '.join(self.listed)}{'; ...' * (self.unreadable > _LISTED)})"

    def _has_answer(self, values: Mapping[str, Any], source: Source, number: int) -> bool:
        gold = self.columns.gold(values)
        if gold is not None and self.readable(gold):
            return True
        self.unreadable += 1
        if len(self.listed) < _LISTED:
            told = values[self.data.answer] if gold is None else gold
            self.listed.append(f"{source.where(number)}: {_short(told)}")
        return False


def _places(data: Data) -> Place:
    """The sources of both splits; a held-out set that the recipe names comes before one that the path has."""
    here = place("task.path", data.path)
    if not data.heldout:
        return here
    there = place("task.heldout", data.heldout)
    unread = [*here.unread, *there.unread, *(source.name for source in here.heldout)]
    return Place(here.train, there.heldout or there.train, [name for name in unread if name != data.heldout])


def _unread(here: Place) -> list[str]:
    return [f"not read: {', '.join(here.unread)}"] * bool(here.unread)


def _needed(data: Data, columns: Columns) -> dict[str, str]:
    """Columns that must be there -> how a message names who needs them."""
    asked = {column: f"task.{key} = {getattr(data, key)!r}" for column, key in columns.needed().items()}
    return {**asked, **{column: f"task.filter.{column}" for column in data.filter if column not in asked}}


def _demand_columns(needed: Mapping[str, str], values: Mapping[str, Any], source: Source, number: int) -> None:
    """Raises UsageError naming a column that is not there; `number` 0: of the file, else of one row."""
    for column, who in needed.items():
        if column not in values:
            where = source.where(number) if number else source.name
            what = "such column" if f"= {column!r}" in who or "filter" in who else f"column {column!r}"
            raise UsageError(f"{who}: {where} has no {what}; columns there: {', '.join(values) or 'none'}")


def _splits(table: Table, trained: int, data: Data) -> tuple[list[Samples], list[str]]:
    """Rows to train on, held out, that repeat and that leak; and what to tell. The first `trained` rows are not from a
    held-out set.
    """
    import numpy as np  # not at the top: processes that only score never come here

    digests = np.array(table.digest, dtype=np.uint64)
    first, second = _once(digests[:trained]), trained + _once(digests[trained:])
    again = np.setdiff1d(np.arange(len(digests)), np.concatenate([first, second]))
    if trained < len(digests):
        meets = np.isin(digests[second], digests[first])
        train, heldout = first, second[~meets]
    else:
        meets = np.zeros(len(second), dtype=bool)
        out = split_off(digests[first], data.heldout_share)
        train, heldout = first[~out], first[out]
    if not len(train):
        raise UsageError(f"no problem is left to train on: {len(heldout)} of {len(heldout)} are held out")
    how = "" if trained < len(digests) else ", split off by a hash of each problem's text"
    notes = [f"{len(train):,} problems to train on, {len(heldout):,} held out{how}"]
    notes += [f"{len(again):,} rows repeat a problem: the first is kept"] * bool(len(again))
    notes += [f"{meets.sum():,} held-out problems are training problems too: not held out"] * bool(meets.sum())
    made = [Samples(table, shuffled(rows, digests, data.seed)) for rows in (train, heldout)]
    return [*made, Samples(table, again), Samples(table, second[meets])], notes


def _once(digests: np.ndarray) -> np.ndarray:
    """Indices of the first of each."""
    import numpy as np

    return np.sort(np.unique(digests, return_index=True)[1])


def _short(value: object, longest: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= longest else text[: longest - 3] + "..."
