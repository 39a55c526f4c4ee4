"""Rows of Parquet files and of the `datasets` library; both are imported only where a recipe asks for them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groupwise.core.errors import UsageError, listed, need, one_line
from groupwise.tasks.data.formats import IN_MEMORY, Row, Source

#: Rows decoded at a time: a row group of a Parquet file may hold a million.
_BATCH = 1024
#: What `save_to_disk` leaves in a folder.
_SAVED = ("dataset_dict.json", "dataset_info.json")


class Parquet(Source):
    """A Parquet file, decoded a thousand rows at a time; its samples are held in memory."""

    def rows(self) -> Iterator[Row]:
        parquet = need("pyarrow.parquet", "tasks", f"{self.path}: a Parquet file")
        number = 0
        try:
            with parquet.ParquetFile(self.path) as file:
                names = file.schema_arrow.names
                if len(set(names)) < len(names):
                    raise UsageError(f"{self.path}: two columns of one name: {listed(names)}")
                for batch in file.iter_batches(batch_size=_BATCH):
                    batch.validate(full=True)
                    for values in batch.to_pylist():
                        number += 1
                        yield Row(number, IN_MEMORY, plain(values))
        except UsageError:
            raise
        except Exception as error:  # Arrow's own, and those of the types that it makes: time zones, dates, UTF-8
            library = need("pyarrow", "tasks", "a Parquet file").ArrowException
            what = "not Parquet" if isinstance(error, library) else type(error).__name__
            raise UsageError(f"{self.where(number + 1)}: {what}: {one_line(error)}") from None


@dataclass(frozen=True, eq=False)
class Dataset(Source):
    """One split of a `datasets` data set, which the library maps from its files into memory."""

    dataset: Any

    def rows(self) -> Iterator[Row]:
        number = 0
        try:
            self.dataset.data.validate(full=True)  # reading a damaged file would end the process without a word
            for number, values in enumerate(self.dataset, start=1):
                yield Row(number, number - 1, plain(values))
        except Exception as error:  # the library's own, Arrow's, and those of a feature that it decodes
            raise UsageError(f"{self.where(number + 1)}: datasets cannot read it: {one_line(error)}") from None

    def read(self, number: int, offset: int) -> dict[str, Any]:
        return plain(self.dataset[offset])


def is_saved_dataset(folder: Path) -> bool:
    """Whether `save_to_disk` of the library wrote the folder."""
    return any((folder / name).is_file() for name in _SAVED)


def saved_splits(folder: Path) -> dict[str, Dataset]:
    """The splits of a folder written by `save_to_disk`; one named "" where it has none."""
    library = need("datasets", "tasks", f"{folder}: a folder that `save_to_disk` made")
    return _splits(str(folder), lambda: library.load_from_disk(str(folder)))


def hub_splits(key: str, name: str) -> dict[str, Dataset]:
    """The splits of the data set `name` or `name:config`, from the hub or the library's cache."""
    library = need("datasets", "tasks", f"{key} = {name!r}: no such file or folder, so a data set's id, which")
    repository, _, config = name.partition(":")
    return _splits(name, lambda: library.load_dataset(repository, config or None), f"{key} = {name!r}: no such file; ")


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


def _splits(name: str, load: Callable[[], Any], before: str = "") -> dict[str, Dataset]:
    try:
        data = load()
    except Exception as error:  # the library raises its own, the hub's, Arrow's and plain OSError
        raise UsageError(f"{before}datasets cannot load {name!r}: {one_line(error)}") from None
    if isinstance(data, Mapping):
        return {split: Dataset(f"{name}, {split}", dataset) for split, dataset in data.items()}
    return {"": Dataset(name, data)}
