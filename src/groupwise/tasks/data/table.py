"""Many problems in little memory: those of small files are kept, those of large ones are read again when asked for."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from groupwise.core.errors import RunError, UsageError
from groupwise.core.samples import Sample
from groupwise.tasks.data.columns import Columns
from groupwise.tasks.data.files import KEPT, Row, Source

if TYPE_CHECKING:
    import numpy as np

#: Digests are whole numbers below this.
DIGESTS = 1 << 64


@dataclass
class Table:
    """Where every problem stands, 22 bytes each, and the samples of rows that cannot be read again.

    digest    a hash of the problem's text: equal texts are one problem, and it decides the split
    at        the row's offset in its source; of a kept one, -1 - its place in `kept`
    contents  a hash of all the samples
    """

    columns: Columns
    sources: list[Source] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    digest: array[int] = field(default_factory=lambda: array("Q"))
    at: array[int] = field(default_factory=lambda: array("q"))
    number: array[int] = field(default_factory=lambda: array("I"))
    origin: array[int] = field(default_factory=lambda: array("H"))
    kept: list[Sample] = field(default_factory=list)
    contents: Any = field(default_factory=lambda: blake2b(digest_size=16))

    def __len__(self) -> int:
        return len(self.digest)

    def add(self, origin: int, row: Row) -> None:
        """One more row of source number `origin`."""
        where = self.sources[origin].where(row.number)
        self.digest.append(digest(self.columns.problem(row.values, where), where))
        self.number.append(row.number)
        self.origin.append(origin)
        self.at.append(row.offset if row.offset != KEPT else -1 - len(self.kept))
        sample = self._sample(origin, row.number, row.values)
        self.contents.update(f"{sample.prompt}\0{sample.answer}\0{self.columns.worked(sample)}\0".encode())
        if row.offset == KEPT:
            self.kept.append(sample)

    def sample(self, index: int) -> Sample:
        """The sample of row `index`. Raises RunError where its file is no longer what it was."""
        if self.at[index] < 0:
            return self.kept[-1 - self.at[index]]
        source, number = self.sources[self.origin[index]], self.number[index]
        where = source.where(number)
        try:
            values = source.read(number, self.at[index])
            same = digest(self.columns.problem(values, where), where) == self.digest[index]
        except (UsageError, KeyError):
            same = False
        if not same:
            raise RunError(f"{where}: another row stands there than when the file was read first; it was changed")
        return self._sample(self.origin[index], number, values)

    def _sample(self, origin: int, number: int, values: dict[str, Any]) -> Sample:
        source = self.sources[origin]
        return self.columns.sample(values, f"{self.labels[origin]}:{number}", source.where(number), self._stem(origin))

    def _stem(self, origin: int) -> str:
        return self.labels[origin].split(".")[0]


class Samples(Sequence[Sample]):
    """Rows of a table in an order; a slice is another of these."""

    def __init__(self, table: Table, order: np.ndarray) -> None:
        self._table, self._order = table, order

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Samples(self._table, self._order[index])
        return self._table.sample(int(self._order[index]))


def digest(problem: str, where: str) -> int:
    """64 bits of a problem's text alone, white space counted as one blank.

    >>> digest("1 + 1", "") == digest("1  +\\n1 ", "")
    True
    """
    try:
        text = " ".join(problem.split()).encode()
    except UnicodeEncodeError:
        raise UsageError(f"{where}: half of a surrogate pair (\\ud800 to \\udfff), which is no character") from None
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")


def split_off(digests: np.ndarray, share: float) -> np.ndarray:
    """True where a problem is held out: its digest alone decides, whatever else the file holds."""
    return digests < min(int(share * DIGESTS), DIGESTS - 1)


def shuffled(rows: np.ndarray, digests: np.ndarray, seed: int) -> np.ndarray:
    """The rows in an order that depends on seed and texts alone: new rows come between the old ones."""
    odd = int.from_bytes(blake2b(f"order {seed}".encode(), digest_size=8).digest(), "big") | 1
    return rows[(digests[rows] * digests.dtype.type(odd)).argsort(kind="stable")]
