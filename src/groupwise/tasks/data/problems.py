"""Every row of a data set once: into the index, left out with a reason that a note says, or refused; then the split."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from groupwise.core.errors import UsageError, listed
from groupwise.rewards.verifiers.answers import WITHOUT_ANSWERS
from groupwise.tasks.data.columns import Columns
from groupwise.tasks.data.conversations import has_turns
from groupwise.tasks.data.formats import MissingColumn, Row, value_at
from groupwise.tasks.data.index import IndexedSamples, SampleIndex
from groupwise.tasks.data.settings import DataSettings, keeps
from groupwise.tasks.data.sources import sources_of

if TYPE_CHECKING:
    import numpy as np

#: Digests are whole numbers below this.
DIGESTS = 1 << 64
#: So many rows are named where a message lists what is wrong.
_LISTED = 3


@dataclass(frozen=True)
class Problems:
    """All problems, split without duplicates and leakage.

    train, heldout  in shuffled order
    sets            the held-out ones by the name of their set; empty where it has none
    repeated        rows that repeat a problem of their own split
    leaked          held-out rows whose problem is trained on
    disputed        of each problem with several gold answers: where, and which
    contents        a hash of all of them
    notes           what a person should know about the rows
    """

    train: IndexedSamples
    heldout: IndexedSamples
    sets: Mapping[str, IndexedSamples]
    repeated: IndexedSamples
    leaked: IndexedSamples
    disputed: Sequence[str]
    contents: str
    notes: Sequence[str]


def read_problems(columns: Columns, readable: Callable[[str], bool], same: Callable[[str, str], bool]) -> Problems:
    """Read all problems of a data set; `readable` says whether a gold answer can be checked, `same` whether two are
    one.

    A problem is its text: one that comes twice in a set is taken once, and one that is trained on is never held out.
    Raises UsageError, one line with file and line, if the files cannot be what the recipe says.
    """
    settings = columns.settings
    sources = sources_of(settings.path, settings.heldout_paths)
    sets = [*[""] * len(sources.train), *(sources.sets or [""] * len(sources.heldout))]
    index = SampleIndex(columns, [*sources.train, *sources.heldout], sets)
    scan = _Scan(columns, readable, index)
    for origin in range(len(sources.train)):
        scan.read(origin, settings.limit)
    trained = len(index)
    for origin in range(len(sources.train), len(index.sources)):
        scan.read(origin, limit=0)
    scan.require_enough()
    problems = _split(index, trained, settings, same)
    unread = [f"not read: {', '.join(sources.unread)}"] * bool(sources.unread)
    return replace(problems, notes=[*scan.notes(), *problems.notes, *unread])


@dataclass
class _Scan:
    """Rows on their way into the index, and counts of those that did not get there.

    examples  the first unreadable answers, for messages
    changes   what was changed, in words -> in how many rows, and where the first is
    seen      column of the filter -> the first values that it holds in rows that are left out
    remedy    what to do about unreadable answers, where that is known
    """

    columns: Columns
    readable: Callable[[str], bool]
    index: SampleIndex
    rows: int = 0
    filtered: int = 0
    unreadable: int = 0
    examples: list[str] = field(default_factory=list)
    changes: dict[str, tuple[int, str]] = field(default_factory=dict)
    remedy: str = ""

    def __post_init__(self) -> None:
        self.seen: dict[str, dict[str, None]] = {column: {} for column in self.columns.settings.filter}

    def read(self, origin: int, limit: int) -> None:
        """Read every row of source number `origin`, or as many as it takes to have `limit` in the index."""
        source, before = self.index.sources[origin], self.rows
        if limit and len(self.index) >= limit:
            return
        for row in source.rows():
            self.rows += 1
            where = source.where(row.number)
            # A column that the first row lacks is said to be missing from the file.
            self._require_columns(row, source.name if self.rows == before + 1 else where)
            if not keeps(self.columns.settings.filter, row.values):
                self.filtered += 1
                for column, seen in self.seen.items():
                    if len(seen) <= _LISTED:
                        seen["..." if len(seen) == _LISTED else _short(value_at(row.values, column))] = None
            elif self._has_answer(row.values, where):
                lost = "bytes, or what else is no text, in the column {!r}: left out, rewards get None"
                for what in [*self.index.add(origin, row), *map(lost.format, row.left_out)]:
                    count, first = self.changes.get(what, (0, where))
                    self.changes[what] = count + 1, first
            if limit and len(self.index) >= limit:
                return
        if self.rows == before:
            raise UsageError(f"{source.name}: empty: there is no row in it")

    def require_enough(self) -> None:
        """Raise UsageError if too many gold answers cannot be read, or no row is left."""
        settings, tried = self.columns.settings, self.rows - self.filtered
        if self.unreadable > settings.unreadable_limit * tried:
            raise UsageError(
                f"task.answer = {settings.answer!r}: {self._unreadable_answers()}; of {tried:,} that is "
                f"{self.unreadable / tried:.1%}, above task.unreadable_limit = {settings.unreadable_limit}"
            )
        if not len(self.index):
            held = [f"{column!r} holds {', '.join(values)}" for column, values in self.seen.items()]
            raise UsageError("; ".join([f"task.filter leaves none of the {self.rows:,} rows", *held]))

    def notes(self) -> Iterator[str]:
        index, column = self.index, self.columns.settings.answer
        yield f"{self.rows:,} rows read"
        if self.filtered:
            yield f"{self.filtered:,} rows left out by task.filter"
        if self.unreadable:
            yield f"{self._unreadable_answers()}: left out"
        for what, (count, where) in self.changes.items():
            yield f"{_rows(count)}: {what} (first: {where})"
        if 0 < index.bare < len(index):
            yield f"{_rows(index.bare)}: no column {column!r} of a gold answer: rewards get None"
        for name, where in list(index.lacking.items())[:_LISTED]:
            count = len(index) - index.named[name]
            yield f"{_rows(count)}: no column {name!r}: rewards get None (first: {where})"
        if others := list(index.lacking)[_LISTED:]:
            yield f"{len(others):,} more columns that not every row has: {listed(others)}"

    def _unreadable_answers(self) -> str:
        answers = f"{self.unreadable:,} gold answer{'s' * (self.unreadable != 1)}"
        examples = "; ".join([*self.examples, *["..."] * (self.unreadable > _LISTED)])
        return f"{answers} that {self.columns.settings.check!r} cannot read ({examples}){self.remedy}"

    def _has_answer(self, values: Mapping[str, Any], where: str) -> bool:
        gold = self.columns.gold(values)
        if self.columns.settings.check in WITHOUT_ANSWERS or (gold is not None and self.readable(gold)):
            return True
        self.unreadable += 1
        name = self.columns.settings.answer
        answer = value_at(values, name) if gold is None else gold
        if len(self.examples) < _LISTED:
            self.examples.append(f"{where}: {_short(answer)}")
        self.remedy = self.remedy or self._remedy(answer, nothing=gold is None)
        return False

    def _remedy(self, answer: object, nothing: bool) -> str:
        """Say what to do about a gold answer that cannot be read, as a message goes on; "" if that is not known.

        nothing  whether the keys that cut an answer out of its column found none
        """
        settings, by_rewards = self.columns.settings, "or let rewards read it, task.check = 'none'"
        if isinstance(answer, (list, dict)) and answer:
            inside = f"{settings.answer}.{next(iter(answer)) if isinstance(answer, dict) else 0}"
            return f"; name one entry, as task.answer = {inside!r}, {by_rewards}"
        if isinstance(answer, bool):
            return f"; write true and false as text, {by_rewards}"
        if nothing and settings.answer_after and settings.answer_after not in str(answer):
            return f"; task.answer_after = {settings.answer_after!r}, which the first has not"
        return "; task.answer_boxed = true, and the first has no \\boxed{}" * (nothing and settings.answer_boxed)

    def _require_columns(self, row: Row, where: str) -> None:
        for column, key in self.columns.required.items():
            try:
                value = value_at(row.values, column)
            except MissingColumn as error:
                raise UsageError(f"{key}: {where} {error}") from None
            read = isinstance(value, (str, int, float)) or has_turns(value)
            if not read and column.split(".")[0] in row.left_out:
                raise UsageError(f"{key}: {where} has bytes there, or what is no text; save the column as text")


def _split(index: SampleIndex, trained: int, settings: DataSettings, same: Callable[[str, str], bool]) -> Problems:
    """Split by the digest of every row's problem; the first `trained` rows are not from a held-out set.

    Where there is no held-out set, a problem's digest alone decides whether it is held out, whatever else the file
    holds. Of the same problem in the same frame one row is kept. Raises UsageError if nothing is left to train on.
    """
    import numpy as np  # not at the top: processes that only score never come here

    places = index.places
    hashes, names, origins = places["digest"], np.array(index.sets), places["origin"]
    framed = hashes ^ (places["frame"].astype(np.uint64) << np.uint64(32))
    rows = np.arange(len(hashes))
    of_set = {name: rows[trained:][names[origins[trained:]] == name] for name in dict.fromkeys(index.sets)}
    first = _firsts(rows[:trained], framed)
    second = np.concatenate([_firsts(members, framed) for members in of_set.values()])
    repeated = np.setdiff1d(rows, np.concatenate([first, second]))
    leaks = np.isin(hashes[second], hashes[first])
    train, heldout, how = first, second[~leaks], ""
    if trained == len(hashes):
        out = hashes[first] < min(int(settings.heldout_share * DIGESTS), DIGESTS - 1)
        train, heldout, how = first[~out], first[out], ", split off by a hash of each problem's text"
    if not len(train):
        raise UsageError(f"no problem is left to train on: {len(heldout)} of {len(heldout)} are held out")
    disputed = list(_disputed(index, framed, np.concatenate([repeated, second[leaks]]), same))
    notes = [f"{len(train):,} problems to train on, {len(heldout):,} held out{how}"]
    repeat = "repeats" if len(repeated) == 1 else "repeat"
    notes += [f"{_rows(len(repeated))} {repeat} a problem: the first is kept"] * bool(len(repeated))
    notes += [disputes(disputed)] * bool(disputed)
    notes += [f"{leaks.sum():,} held-out problems are training problems too: not held out"] * bool(leaks.any())
    orders = (_shuffled(train, framed, settings.seed), _shuffled(heldout, framed, settings.seed))
    sets = {name: orders[1][names[origins[orders[1]]] == name] for name in of_set if name}
    return Problems(
        train=IndexedSamples(index, orders[0]),
        heldout=IndexedSamples(index, orders[1]),
        sets={name: IndexedSamples(index, members) for name, members in sets.items()},
        repeated=IndexedSamples(index, repeated),
        leaked=IndexedSamples(index, second[leaks]),
        disputed=disputed,
        contents=index.contents.hexdigest(),
        notes=notes,
    )


def disputes(disputed: Sequence[str]) -> str:
    """Say that there are problems with several gold answers."""
    problems = "1 problem has" if len(disputed) == 1 else f"{len(disputed):,} problems have"
    examples = "; ".join([*disputed[:_LISTED], *["..."] * (len(disputed) > _LISTED)])
    return f"{problems} different gold answers ({examples}): the first is kept; take the wrong rows out"


def _disputed(
    index: SampleIndex, hashes: np.ndarray, again: np.ndarray, same: Callable[[str, str], bool]
) -> Iterator[str]:
    """Say of each problem that comes `again` with another gold answer where it stands with which."""
    import numpy as np

    answers = index.places["answer"]
    rows = np.flatnonzero(np.isin(hashes, hashes[again]) & (answers != 0))
    _, firsts, problem = np.unique(hashes[rows], return_index=True, return_inverse=True)
    first = rows[firsts[problem]]
    differ = answers[rows] != answers[first]
    others = dict[int, int]()
    for row, before in zip(rows[differ].tolist(), first[differ].tolist(), strict=True):
        if before not in others and not same(index.sample(row).answer, index.sample(before).answer):
            others[before] = row
    for pair in others.items():
        yield ", ".join(f"{sample.key}: {_short(sample.answer)}" for sample in map(index.sample, pair))


def _rows(count: int) -> str:
    return f"{count:,} row{'s' * (count != 1)}"


def _firsts(rows: np.ndarray, hashes: np.ndarray) -> np.ndarray:
    """Choose, of the rows that have equal hashes, the first of each, in their order."""
    import numpy as np

    return rows[np.sort(np.unique(hashes[rows], return_index=True)[1])]


def _shuffled(rows: np.ndarray, hashes: np.ndarray, seed: int) -> np.ndarray:
    """Put the rows in an order that depends on seed and texts alone: new rows come between the old ones."""
    odd = int.from_bytes(blake2b(f"order {seed}".encode(), digest_size=8).digest(), "big") | 1
    return rows[(hashes[rows] * hashes.dtype.type(odd)).argsort(kind="stable")]


def _short(value: object, longest: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= longest else text[: longest - 3] + "..."
