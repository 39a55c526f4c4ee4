"""Laws of Parquet files that are small and unpack to more than any memory: refused before a row is held."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from groupwise.core.errors import UsageError
from groupwise.tasks.data import tables
from groupwise.tasks.data.parquet_size import unpacked_size
from groupwise.tasks.data.sources import Parquet

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
LONG = "a" * (1 << 17)


@pytest.fixture(autouse=True)
def moderate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four MiB are much for a small file here: what holds of them holds of 256, and is made in a moment."""
    monkeypatch.setattr(tables, "LARGEST_LIST", 4 << 20)


def repeated(value: Any, count: int, kind: Any = None) -> Any:
    """One value, stored once, `count` times."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int8)), pa.array([value], kind))


def inside(values: Any) -> Any:
    """A column of one row that is a list of all values."""
    return pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)


def written(folder: Path, columns: dict[str, Any], **options: Any) -> Parquet:
    path = folder / "a.parquet"
    parquet.write_table(pa.table(columns), path, compression="zstd", store_schema=False, **options)
    return Parquet(str(path))


ONE = {"prompt": ["a"], "answer": ["1"]}
BOMBS: dict[str, Any] = {
    "one text in every row": lambda: {"prompt": repeated(LONG, 5_000)},
    "one text in a list": lambda: {**ONE, "more": inside(repeated(LONG, 5_000))},
    "a record in a list": lambda: {
        **ONE,
        "turns": inside(pa.StructArray.from_arrays([repeated(LONG, 5_000)], ["content"])),
    },
    "one value of a fixed size": lambda: {
        "prompt": ["a"] * 50,
        "more": repeated(LONG.encode(), 50, pa.binary(len(LONG))),
    },
    "numbers in a list": lambda: {**ONE, "more": inside(repeated(1, 1_000_000))},
    "short rows": lambda: {"prompt": repeated("a", 20_000)},
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_file_of_endless_rows_is_refused_before_one_is_held(name: str, tmp_path: Path) -> None:
    source = written(tmp_path, BOMBS[name]())
    assert source.path.stat().st_size < 20_000
    with parquet.ParquetFile(source.path) as file:
        assert unpacked_size(file, source.name, 4 << 20).rows > 4 << 20  # before anything is unpacked
    with pytest.raises(UsageError, match=r"a\.parquet: its [\d,]+ bytes unpack to more than 4 MiB in memory; take"):
        next(source.rows())


def test_texts_that_share_their_beginnings_are_counted_as_they_are_unpacked(tmp_path: Path) -> None:
    source = written(
        tmp_path,
        {"prompt": ["a" * 50_000] * 100},
        use_dictionary=False,
        column_encoding={"prompt": "DELTA_BYTE_ARRAY"},
    )
    with pytest.raises(UsageError, match="unpack to more than 4 MiB"):
        list(source.rows())


def test_what_repeats_in_moderation_is_read_whole_and_as_it_is(tmp_path: Path) -> None:
    """As a system prompt of a few pages beside each of a hundred questions."""
    rows = [{"system": LONG[:20_000], "prompt": f"{i}?", "turns": [{"content": LONG[:3_000]}]} for i in range(100)]
    source = written(tmp_path, {name: [row[name] for row in rows] for name in rows[0]}, row_group_size=30)
    assert source.path.stat().st_size < 60_000
    assert [row.values for row in source.rows()] == rows
