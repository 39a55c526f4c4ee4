"""Size of a Parquet file's rows in memory, measured before they are there: a text that comes a million times is stored
once, so that a few kilobytes can hold more than any memory.
"""

from dataclasses import dataclass
from typing import Any

from groupwise.core.errors import need

#: Bytes of memory that a row takes at least, and bytes of texts that are unpacked at a time.
ROW_BYTES, BATCH_BYTES = 512, 64 << 20
#: Bytes of a value by its type in the file; of a text, of its length.
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 4}
#: What a column of bytes may be beside numbers.
_TEXTS = ("NONE", "STRING", "JSON", "ENUM", "BSON")
_WHAT = "a Parquet file"


@dataclass(frozen=True)
class UnpackedSize:
    """Bytes of a file's rows in memory at least, and bytes of its longest text."""

    rows: int
    longest: int

    def rows_at_a_time(self, most: int) -> int:
        """Return how many rows may be unpacked at a time, `most` at most, if each of them held the longest text."""
        return max(1, min(most, BATCH_BYTES // max(1, self.longest)))


def unpacked_size(file: Any, path: str, most: int) -> UnpackedSize:
    """Measure an open `ParquetFile` of that path by its own counts; only where its texts may come to more than `most`
    bytes, by each of them, and none is unpacked for it.
    """
    metadata, columns = file.metadata, [file.schema.column(i) for i in range(len(file.schema))]
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    chunks = [(column, group.column(i)) for group in groups for i, column in enumerate(columns)]
    size = ROW_BYTES * max(metadata.num_rows, sum(group.num_rows for group in groups))
    for column, chunk in chunks:
        size += chunk.num_values * _WIDTHS.get(column.physical_type, column.length) + chunk.total_uncompressed_size
    texts = [(c, chunk) for c, chunk in chunks if c.physical_type == "BYTE_ARRAY" and c.logical_type.type in _TEXTS]
    if size + sum(chunk.num_values * chunk.total_uncompressed_size for _, chunk in texts) <= most or size > most:
        return UnpackedSize(size, 0)
    shared = {column.path for column, chunk in texts if "DELTA_BYTE_ARRAY" in chunk.encodings}
    longest = max((chunk.total_uncompressed_size for column, chunk in texts if column.path in shared), default=0)
    listed = sorted({column.path for column, chunk in texts if chunk.has_dictionary_page} - shared)
    parquet = need("pyarrow.parquet", "tasks", _WHAT)
    with parquet.ParquetFile(path, read_dictionary=listed) as encoded:
        first = [next(encoded.iter_batches(1, [i], listed), None) for i in range(len(groups))]
        held = max((_lengths(column)[1] for batch in first if batch for column in batch.columns), default=0)
        if size + held * sum(chunk.num_values for column, chunk in texts if column.path in listed) > most:
            batches = encoded.iter_batches(columns=listed)
            size += sum(_lengths(column)[0] for batch in batches for column in batch.columns)
    return UnpackedSize(size, max(longest, held))


def _lengths(column: Any) -> tuple[int, int]:
    """Return the bytes of all texts of an Arrow array, however nested, and of the longest of its dictionaries."""
    types, compute, kind = (
        need("pyarrow.types", "tasks", "a table"),
        need("pyarrow.compute", "tasks", "a table"),
        column.type,
    )
    if types.is_dictionary(kind):
        lengths = compute.binary_length(column.dictionary)
        total = compute.sum(lengths.take(column.indices).cast("int64")).as_py()
        return total or 0, compute.max(lengths).as_py() or 0
    if not types.is_nested(kind):
        return 0, 0
    inner = [column.keys, column.items] if types.is_map(kind) else column.flatten()
    both = [_lengths(one) for one in (inner if isinstance(inner, list) else [inner])]
    return sum(total for total, _ in both), max((longest for _, longest in both), default=0)
