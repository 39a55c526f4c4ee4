"""Many samples in little memory: those of small files are held, those of large ones are read again when used."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unicodedata import normalize
from zlib import crc32

from groupwise.core.errors import RunError, UsageError
from groupwise.core.files.json_text import encoded
from groupwise.core.samples import Sample
from groupwise.tasks.data.columns import Columns, Reading
from groupwise.tasks.data.formats import IN_MEMORY, MissingColumn, Row, Source

if TYPE_CHECKING:
    import numpy as np


@dataclass
class SampleIndex:
    """The places of all rows, 30 bytes each, and the samples of rows that cannot be read again.

    digests   a hash of each problem's text, and of its row where rows are problems however alike: equal hashes are one
              problem, and they decide the split
    frames    a hash of each system prompt, prefill and functions; 0 where there is none of them
    answers   a hash of each gold answer; 0 where there is none
    offsets   the row's first byte in its source; of a sample in memory, -1 - its place in `samples`
    numbers   the row's number in its source
    origins   the source's place in `sources`
    sets      name of the held-out set of each source; "" where it has none
    contents  a hash of all the samples
    bare      rows without the column of gold answers, where rows need not have it
    named     how many rows have each of the other columns
    lacking   of a column that some rows have and others lack: where the first of these is
    """

    columns: Columns
    sources: Sequence[Source]
    sets: Sequence[str]
    digests: array[int] = field(default_factory=lambda: array("Q"))
    frames: array[int] = field(default_factory=lambda: array("I"))
    answers: array[int] = field(default_factory=lambda: array("I"))
    offsets: array[int] = field(default_factory=lambda: array("q"))
    numbers: array[int] = field(default_factory=lambda: array("I"))
    origins: array[int] = field(default_factory=lambda: array("H"))
    samples: list[Sample] = field(default_factory=list)
    contents: Any = field(default_factory=lambda: blake2b(digest_size=16))
    bare: int = 0
    named: dict[str, int] = field(default_factory=dict)
    lacking: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.digests)

    @cached_property
    def labels(self) -> list[str]:
        """A name for each source that no other has: the second "test.jsonl" is "test.jsonl#2"."""
        names = [Path(source.name).name for source in self.sources]
        counts = [names[:i].count(name) for i, name in enumerate(names)]
        return [f"{name}#{count + 1}" if count else name for name, count in zip(names, counts, strict=True)]

    def add(self, origin: int, row: Row) -> Sequence[str]:
        """Add one more row of source number `origin` -> what was changed in it, in words."""
        where = self.sources[origin].where(row.number)
        problem, reading = self._read(origin, row.number, row.values)
        sample = reading.sample
        self.digests.append(problem)
        self.frames.append(crc32(encoded(reading.frame, where)))
        self.answers.append(crc32(encoded(sample.answer, where)))
        self.bare += _is_bare(sample)
        self.numbers.append(row.number)
        self.origins.append(origin)
        self._count_columns(sample.extra, where)
        self.offsets.append(row.offset if row.offset != IN_MEMORY else -1 - len(self.samples))
        texts = f"{sample.prompt}\0{sample.answer}\0{self.columns.solution(sample)}\0"
        turns = json.dumps(sample.messages) if sample.messages else ""
        tools = json.dumps(sample.tools) if sample.tools else ""
        self.contents.update(encoded(texts + turns + tools, where))
        encoded(sample.source, where)
        if row.offset == IN_MEMORY:
            self.samples.append(sample)
        return reading.changes

    def sample(self, index: int) -> Sample:
        """Return the sample of row `index`. Raises RunError if its file is no longer what it was."""
        sample = self.samples[-1 - self.offsets[index]] if self.offsets[index] < 0 else self._read_again(index)
        if len(sample.extra) < len(self.named):
            sample = replace(sample, extra={**dict.fromkeys(self.named), **sample.extra})
        return replace(sample, held_answer=(None,)) if _is_bare(sample) and self.bare < len(self) else sample

    def _count_columns(self, row: Mapping[str, object], where: str) -> None:
        """Count a row's columns. One that a row lacks is None there, as in a table, so that no run ends at that row."""
        if row.keys() == self.named.keys():
            for name in row:
                self.named[name] += 1
            return
        for name in self.named.keys() - row.keys():
            self.lacking.setdefault(name, where)
        for name in row:
            if name not in self.named and len(self) > 1:
                self.lacking[name] = self.sources[self.origins[0]].where(self.numbers[0])
            self.named[name] = self.named.get(name, 0) + 1

    def _read_again(self, index: int) -> Sample:
        origin, number = self.origins[index], self.numbers[index]
        source = self.sources[origin]
        try:
            problem, reading = self._read(origin, number, source.read(number, self.offsets[index]))
        except (UsageError, MissingColumn):
            problem, reading = -1, None
        if reading is None or problem != self.digests[index]:
            where = source.where(number)
            raise RunError(f"{where}: another row stands there than when the file was read first; it was changed")
        return reading.sample

    def _read(self, origin: int, number: int, values: dict[str, Any]) -> tuple[int, Reading]:
        """Return the hash of a row's problem, and what the row says."""
        label, where = self.labels[origin], self.sources[origin].where(number)
        reading = self.columns.read(values, key=f"{label}:{number}", where=where, origin=label.split(".")[0])
        row = f" {label}:{number}" if self.columns.settings.repeats else ""
        if self.sets[origin]:
            reading = replace(reading, sample=replace(reading.sample, heldout_set=self.sets[origin]))
        return digest(reading.problem + row, where), reading


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


def _is_bare(sample: Sample) -> bool:
    """Tell whether its row has no column of a gold answer, not even an empty one."""
    return not sample.held_answer and not sample.answer


def digest(problem: str, where: str) -> int:
    """Hash to 64 bits a problem's text alone, white space counted as one blank, composed and decomposed letters as one.

    >>> digest("1 + 1", "") == digest("1  +\\n1 ", ""), digest("caf\u00e9", "") == digest("cafe\u0301", "")
    (True, True)
    """
    composed = problem if problem.isascii() else normalize("NFC", problem)
    text = encoded(" ".join(composed.split()), where)
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")
