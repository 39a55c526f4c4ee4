"""Many samples in little memory: those of small files are held, those of large ones are read again when used."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple
from unicodedata import normalize
from zlib import crc32

from groupwise.core.errors import RunError, UsageError
from groupwise.core.files.json_text import encoded
from groupwise.core.samples import Sample
from groupwise.tasks.data.columns import Columns, Reading
from groupwise.tasks.data.formats import IN_MEMORY, MissingColumn, Row, Source

if TYPE_CHECKING:
    import numpy as np


class Place(NamedTuple):
    """The place of a row, and what tells it from others: 30 bytes.

    digest   a hash of its problem's text, and of the row where rows are problems however alike: equal hashes are one
             problem, and they decide the split
    frame    a hash of system prompt, prefill and functions; 0 where there is none of them
    answer   a hash of the gold answer; 0 where there is none
    offset   the row's first byte in its source; of a sample in memory, -1 - its place in `samples`
    number   the row's number in its source
    origin   the source's place in `sources`
    """

    digest: int
    frame: int
    answer: int
    offset: int
    number: int
    origin: int


#: How a place is packed, for Python and for numpy.
_PACKED = Struct("<QIIqIH")
_COLUMNS = list(zip(Place._fields, ("<u8", "<u4", "<u4", "<i8", "<u4", "<u2"), strict=True))


@dataclass
class SampleIndex:
    """The places of all rows, and the samples of rows that cannot be read again.

    sets      name of the held-out set of each source; "" where it has none
    contents  a hash of all the samples
    bare      rows without the column of gold answers, where rows need not have it
    named     how many rows have each of the other columns
    lacking   of a column that some rows have and others lack: where the first of these is
    """

    columns: Columns
    sources: Sequence[Source]
    sets: Sequence[str]
    samples: list[Sample] = field(default_factory=list)
    contents: Any = field(default_factory=lambda: blake2b(digest_size=16))
    bare: int = 0
    named: dict[str, int] = field(default_factory=dict)
    lacking: dict[str, str] = field(default_factory=dict)
    _places: bytearray = field(default_factory=bytearray)

    def __len__(self) -> int:
        return len(self._places) // _PACKED.size

    @property
    def places(self) -> np.ndarray:
        """All places as a table of numpy's, by the names of `Place`."""
        import numpy as np  # not at the top: processes that only score never come here

        return np.frombuffer(self._places, dtype=_COLUMNS)

    @cached_property
    def labels(self) -> list[str]:
        """A name for each source that no other has: the second "test.jsonl" is "test.jsonl#2"."""
        names = [Path(source.name).name for source in self.sources]
        counts = [names[:i].count(name) for i, name in enumerate(names)]
        return [f"{name}#{count + 1}" if count else name for name, count in zip(names, counts, strict=True)]

    def add(self, origin: int, row: Row) -> Sequence[str]:
        """Add one more row of source number `origin` -> what was changed in it, in words."""
        where = self.sources[origin].where(row.number)
        digest, reading = self._read(origin, row.number, row.values)
        sample = reading.sample
        frame, answer = (crc32(encoded(text, where)) for text in (reading.frame, sample.answer))
        offset = row.offset if row.offset != IN_MEMORY else -1 - len(self.samples)
        self._places += _PACKED.pack(digest, frame, answer, offset, row.number, origin)
        self.bare += _is_bare(sample)
        self._count_columns(sample.extra, where)
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
        place = self._place(index)
        sample = self.samples[-1 - place.offset] if place.offset < 0 else self._read_again(place)
        if len(sample.extra) < len(self.named):
            sample = replace(sample, extra={**dict.fromkeys(self.named), **sample.extra})
        return replace(sample, held_answer=(None,)) if _is_bare(sample) and self.bare < len(self) else sample

    def _place(self, index: int) -> Place:
        return Place(*_PACKED.unpack_from(self._places, index * _PACKED.size))

    def _count_columns(self, row: Mapping[str, object], where: str) -> None:
        """Count a row's columns. One that a row lacks is None there, as in a table, so that no run ends at that row."""
        for name in self.named.keys() - row.keys():
            self.lacking.setdefault(name, where)
        for name in row:
            if name not in self.named and len(self) > 1:
                first = self._place(0)
                self.lacking[name] = self.sources[first.origin].where(first.number)
            self.named[name] = self.named.get(name, 0) + 1

    def _read_again(self, place: Place) -> Sample:
        source = self.sources[place.origin]
        try:
            digest, reading = self._read(place.origin, place.number, source.read(place.number, place.offset))
        except (UsageError, MissingColumn):
            digest, reading = -1, None
        if reading is None or digest != place.digest:
            where = source.where(place.number)
            raise RunError(f"{where}: another row stands there than when the file was read first; it was changed")
        return reading.sample

    def _read(self, origin: int, number: int, values: dict[str, Any]) -> tuple[int, Reading]:
        label, where = self.labels[origin], self.sources[origin].where(number)
        reading = self.columns.read(values, key=f"{label}:{number}", where=where, origin=label.split(".")[0])
        row = f" {label}:{number}" if self.columns.settings.repeats else ""
        if self.sets[origin]:
            reading = replace(reading, sample=replace(reading.sample, heldout_set=self.sets[origin]))
        return digest_of(reading.problem + row, where), reading


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
    """Tell if the sample's row has no column of a gold answer, not even an empty one."""
    return not sample.held_answer and not sample.answer


def digest_of(problem: str, where: str) -> int:
    """Hash to 64 bits a problem's text alone, white space counted as one blank, composed and decomposed letters as one.

    >>> digest_of("1 + 1", "") == digest_of("1  +\\n1 ", ""), digest_of("caf\u00e9", "") == digest_of("cafe\u0301", "")
    (True, True)
    """
    composed = problem if problem.isascii() else normalize("NFC", problem)
    text = encoded(" ".join(composed.split()), where)
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")
