"""Rows of Parquet files and of the `datasets` library; both are imported only where a recipe asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groupwise.core.errors import UsageError
from groupwise.core.extras import need
from groupwise.tasks.data.files import KEPT, Row

#: Rows decoded at a time: a row group of a Parquet file may hold a million.
_BATCH = 1024
#: What `save_to_disk` leaves in a folder.
_SAVED = ("dataset_dict.json", "dataset_info.json")


@dataclass(frozen=True)
class Parquet:
    """A Parquet file, decoded a thousand rows at a time; its rows are kept."""

    path: Path

    @property
    def name(self) -> str:
        return str(self.path)

    def where(self, number: int) -> str:
        return f"{self.path}, row {number}"

    def rows(self) -> Iterator[Row]:
        parquet = need("pyarrow.parquet", "tasks", f"{self.path}: a Parquet file")
        number = 0
        try:
            with parquet.ParquetFile(self.path) as file:
                for batch in file.iter_batches(batch_size=_BATCH):
                    for values in batch.to_pylist():
                        number += 1
                        yield Row(number, KEPT, plain(values))
        except need("pyarrow", "tasks", "a Parquet file").ArrowException as error:
            raise UsageError(f"{self.where(number + 1)}: not Parquet: {_one_line(error)}") from None
        except OSError as error:  # a page whose bytes are wrong
            raise UsageError(f"{self.where(number + 1)}: {_one_line(error)}") from None

    def read(self, number: int, offset: int) -> dict[str, Any]:
        raise AssertionError("its rows are kept, so none is read again")


@dataclass(frozen=True, eq=False)
class Arrow:
    """One split of a `datasets` data set, which the library maps from its files into memory."""

    name: str
    dataset: Any

    def where(self, number: int) -> str:
        return f"{self.name}, row {number}"

    def rows(self) -> Iterator[Row]:
        for index, values in enumerate(self.dataset):
            yield Row(index + 1, index, plain(values))

    def read(self, number: int, offset: int) -> dict[str, Any]:
        return plain(self.dataset[offset])


def is_saved(folder: Path) -> bool:
    """Whether `save_to_disk` of the library made the folder."""
    return any((folder / name).is_file() for name in _SAVED)


def saved(folder: Path) -> dict[str, Arrow]:
    """The splits of a folder made by `save_to_disk`; one named "" where it has none."""
    library = need("datasets", "tasks", f"{folder}: a folder that `save_to_disk` made")
    return _splits(str(folder), lambda: library.load_from_disk(str(folder)))


def loaded(key: str, name: str) -> dict[str, Arrow]:
    """The splits of the data set `name` or `name:config`, from the hub or the library's cache."""
    library = need("datasets", "tasks", f"{key} = {name!r}: no such file or folder, so a data set's id, which")
    place, _, config = name.partition(":")
    return _splits(name, lambda: library.load_dataset(place, config or None), f"{key} = {name!r}: no such file; ")


def plain(value: Any) -> Any:
    """The value as JSON has it: dates and decimals as text, bytes (pictures, sound) left out.

    >>> plain({"a": (1, 2), "b": b"..."})
    {'a': [1, 2], 'b': None}
    """
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    return None if isinstance(value, bytes) else str(value)


def _splits(name: str, load: Callable[[], Any], before: str = "") -> dict[str, Arrow]:
    try:
        found = load()
    except Exception as error:  # the library raises its own, the hub's, Arrow's and plain OSError
        raise UsageError(f"{before}datasets cannot load {name!r}: {_one_line(error)}") from None
    if isinstance(found, Mapping):
        return {split: Arrow(f"{name}, {split}", dataset) for split, dataset in found.items()}
    return {"": Arrow(name, found)}


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
