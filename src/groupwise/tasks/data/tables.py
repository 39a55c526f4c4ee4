"""Rows of tables: a Parquet file, or a split of a `datasets` data set, as JSON has them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from functools import cached_property
from typing import Any
from uuid import UUID

from groupwise.core.errors import UsageError, listed, need, one_line
from groupwise.tasks.data.formats import IN_MEMORY, LARGEST_LIST, LARGEST_RATIO, Row, Source
from groupwise.tasks.data.parquet_size import ROW_BYTES, unpacked_size

#: Rows decoded at a time: a row group of a Parquet file may hold a million.
_BATCH = 1024
#: (a value of a column) -> the value that it stands for.
Shorten = Callable[[Any], Any]


class Parquet(Source):
    """A Parquet file, decoded a thousand rows at a time; its samples are held in memory."""

    def rows(self) -> Iterator[Row]:
        parquet = need("pyarrow.parquet", "tasks", f"{self.path}: a Parquet file")
        number = held = 0
        most = max(LARGEST_LIST, LARGEST_RATIO * self.path.stat().st_size)
        try:
            with parquet.ParquetFile(self.path) as file:
                names = file.schema_arrow.names
                if len(set(names)) < len(names):
                    raise UsageError(f"{self.path}: two columns of one name: {listed(names)}")
                own, size = shortened(file.schema_arrow), unpacked_size(file, self.name, most)
                self._require_moderate(size.rows, most)
                for batch in file.iter_batches(batch_size=size.rows_at_a_time(_BATCH)):
                    held += batch.nbytes + batch.num_rows * ROW_BYTES  # what the file says of itself may be a lie
                    self._require_moderate(held, most)
                    batch.validate(full=True)
                    for values in batch.to_pylist():
                        number += 1
                        yield Row(number, IN_MEMORY, *plain_row(values, own))
        except UsageError:
            raise
        except Exception as error:  # Arrow's own, and those of the types that it makes: time zones, dates, UTF-8
            library = need("pyarrow", "tasks", "a Parquet file").ArrowException
            what = "not Parquet" if isinstance(error, library) else type(error).__name__
            raise UsageError(f"{self.where(number + 1)}: {what}: {one_line(error)}") from None

    def _require_moderate(self, size: int, most: int) -> None:
        if size > most:
            stored = f"{self.path.stat().st_size:,} bytes"
            what = f"its {stored} unpack to more than {most >> 20:,} MiB in memory"
            raise UsageError(f"{self.path}: {what}; take out what repeats, or write the rows as .jsonl")


@dataclass(frozen=True, eq=False)
class Dataset(Source):
    """One split of a `datasets` data set, which the library maps from its files into memory."""

    dataset: Any

    def rows(self) -> Iterator[Row]:
        number = 0
        try:
            self.dataset.data.validate(full=True)  # reading a damaged file would end the process without a word
            for number, values in enumerate(self._plain, start=1):
                yield Row(number, number - 1, *plain_row(values, self._shortened))
        except Exception as error:  # the library's own, Arrow's, and those of a feature that it decodes
            raise UsageError(f"{self.where(number + 1)}: datasets cannot read it: {one_line(error)}") from None

    def read(self, number: int, offset: int) -> dict[str, Any]:
        return plain_row(self._plain[offset], self._shortened)[0]

    @cached_property
    def _plain(self) -> Any:
        """The data set with Python's values: it may have been saved with those of numpy or torch."""
        return self.dataset.with_format(None)

    @cached_property
    def _shortened(self) -> Mapping[str, Shorten]:
        return shortened(self.dataset.data.schema)


def plain_row(values: Mapping[str, Any], own: Mapping[str, Shorten]) -> tuple[dict[str, Any], list[str]]:
    """Return a row's columns as JSON has them, those of `own` first made by it; and the columns whose bytes are left
    out.

    >>> plain_row({"a": (1, Decimal("2.50")), "b": [b"..."]}, {})
    ({'a': [1, '2.50'], 'b': [None]}, ['b'])
    """
    row, left_out = dict[str, Any](), list[str]()
    for name, value in values.items():
        lost: list[object] = []
        row[str(name)] = _plain(own[name](value) if name in own else value, lost)
        left_out += [str(name)] * bool(lost)
    return row, left_out


def _plain(value: Any, lost: list[object]) -> Any:
    """Return a value as JSON has it: dates and decimals as text; what is no text (bytes) is added to `lost`."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(entry, lost) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry, lost) for entry in value]
    if isinstance(value, (date, time, timedelta, Decimal, UUID)):
        return str(value)
    lost.append(value)
    return None


def shortened(schema: Any) -> dict[str, Shorten]:
    """Make what shortens the values of each column of an Arrow schema that holds floats of 16 or 32 bits: Arrow gives
    them in 64 bits, 6.1 as 6.099999904632568, and the shortest decimal that is the same float is what was written.
    """
    makers = {field.name: _shorten(field.type) for field in schema}
    return {name: maker for name, maker in makers.items() if maker is not None}


def _shorten(kind: Any) -> Shorten | None:
    """Make what shortens the values of an Arrow type; None if they stay as they are."""
    import numpy as np

    types = need("pyarrow", "tasks", "a table").types
    if types.is_float16(kind) or types.is_float32(kind):
        narrow = np.float16 if types.is_float16(kind) else np.float32
        return lambda value: None if value is None else float(str(narrow(value)))
    if types.is_struct(kind):
        own = shortened(kind)
        return (lambda value: value and {k: own[k](v) if k in own else v for k, v in value.items()}) if own else None
    if types.is_map(kind):
        item = _shorten(kind.item_type)
        return (lambda value: value and [(name, item(one)) for name, one in value]) if item else None
    if types.is_dictionary(kind):
        return _shorten(kind.value_type)
    if types.is_nested(kind) and hasattr(kind, "value_type"):  # a list of any layout
        entry = _shorten(kind.value_type)
        return (lambda value: value and [entry(one) for one in value]) if entry else None
    return None
