"""Many samples in little memory: those of small files are held, those of large ones are read again when used."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from groupwise.core.errors import RunError, UsageError
from groupwise.core.json_text import encoded
from groupwise.core.samples import Sample
from groupwise.tasks.data.columns import Columns
from groupwise.tasks.data.formats import IN_MEMORY, Row, Source
from groupwise.tasks.data.nested import MissingColumn

if TYPE_CHECKING:
    import numpy as np


@dataclass
class SampleIndex:
    """Where the row of every sample stands, 22 bytes each, and the samples of rows that cannot be read again.

    digests   a hash of each problem's text, and of its row where rows are problems however alike: equal hashes are one
              problem, and they decide the split
    offsets   the row's first byte in its source; of a sample in memory, -1 - its place in `samples`
    numbers   the row's number in its source
    origins   the source's place in `sources`
    sets      name of the held-out set of each source; "" where it has none
    contents  a hash of all the samples
    """

    columns: Columns
    sources: Sequence[Source]
    sets: Sequence[str]
    digests: array[int] = field(default_factory=lambda: array("Q"))
    offsets: array[int] = field(default_factory=lambda: array("q"))
    numbers: array[int] = field(default_factory=lambda: array("I"))
    origins: array[int] = field(default_factory=lambda: array("H"))
    samples: list[Sample] = field(default_factory=list)
    contents: Any = field(default_factory=lambda: blake2b(digest_size=16))

    def __len__(self) -> int:
        return len(self.digests)

    @cached_property
    def labels(self) -> list[str]:
        """A name for each source that no other has: the second "test.jsonl" is "test.jsonl#2"."""
        names = [Path(source.name).name for source in self.sources]
        counts = [names[:i].count(name) for i, name in enumerate(names)]
        return [f"{name}#{count + 1}" if count else name for name, count in zip(names, counts, strict=True)]

    def add(self, origin: int, row: Row) -> None:
        """One more row of source number `origin`."""
        where = self.sources[origin].where(row.number)
        self.digests.append(self._digest(origin, row.number, row.values))
        self.numbers.append(row.number)
        self.origins.append(origin)
        self.offsets.append(row.offset if row.offset != IN_MEMORY else -1 - len(self.samples))
        sample = self._sample(origin, row.number, row.values)
        texts = f"{sample.prompt}\0{sample.answer}\0{self.columns.solution(sample)}\0"
        self.contents.update(encoded(texts, where))
        encoded(sample.source, where)
        if row.offset == IN_MEMORY:
            self.samples.append(sample)

    def sample(self, index: int) -> Sample:
        """The sample of row `index`. Raises RunError where its file is no longer what it was."""
        if self.offsets[index] < 0:
            return self.samples[-1 - self.offsets[index]]
        source, number = self.sources[self.origins[index]], self.numbers[index]
        where = source.where(number)
        try:
            values = source.read(number, self.offsets[index])
            same = self._digest(self.origins[index], number, values) == self.digests[index]
        except (UsageError, MissingColumn):
            same = False
        if not same:
            raise RunError(f"{where}: another row stands there than when the file was read first; it was changed")
        return self._sample(self.origins[index], number, values)

    def _digest(self, origin: int, number: int, values: dict[str, Any]) -> int:
        where = self.sources[origin].where(number)
        row = f" {self.labels[origin]}:{number}" if self.columns.settings.repeats else ""
        return digest(self.columns.problem(values, where) + row, where)

    def _sample(self, origin: int, number: int, values: dict[str, Any]) -> Sample:
        label, where = self.labels[origin], self.sources[origin].where(number)
        sample = self.columns.sample(values, key=f"{label}:{number}", where=where, origin=label.split(".")[0])
        return replace(sample, heldout_set=self.sets[origin]) if self.sets[origin] else sample


class IndexedSamples(Sequence[Sample]):
    """Samples of an index in an order; a slice is another of these."""

    def __init__(self, index: SampleIndex, order: np.ndarray) -> None:
        self._index, self._order = index, order

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, position: Any) -> Any:
        if isinstance(position, slice):
            return IndexedSamples(self._index, self._order[position])
        return self._index.sample(int(self._order[position]))


def digest(problem: str, where: str) -> int:
    """64 bits of a problem's text alone, white space counted as one blank.

    >>> digest("1 + 1", "") == digest("1  +\\n1 ", "")
    True
    """
    text = encoded(" ".join(problem.split()), where)
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")
