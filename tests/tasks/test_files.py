"""Rows of every kind of file, the line that every complaint names, and the memory that a large file takes."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from groupwise.core.errors import UsageError
from groupwise.tasks.data import formats
from groupwise.tasks.data.formats import IN_MEMORY, Csv, JsonLines
from groupwise.tasks.data.sources import sources_at
from groupwise.tasks.data.task import Data

ROWS = [{"prompt": f"{i} + é = ?", "answer": str(i), "level": i % 3} for i in range(40)]
TEXTS = [{key: str(value) for key, value in row.items()} for row in ROWS]


def _lines(path: Path, rows: list[dict[str, Any]] = ROWS) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def _zipped(path: Path) -> Path:
    path.write_bytes(gzip.compress(_lines(path.with_name("plain.jsonl")).read_bytes()))
    return path


def _list(path: Path) -> Path:
    path.write_text(json.dumps(ROWS, indent=1))
    return path


def _csv(path: Path) -> Path:
    import csv

    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, list(ROWS[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writeheader()
        writer.writerows(ROWS)
    return path


def _parquet(path: Path) -> Path:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path, row_group_size=7)
    return path


def _saved(path: Path) -> Path:
    import datasets

    datasets.Dataset.from_list(ROWS).save_to_disk(str(path))
    return path


KINDS: dict[str, Callable[[Path], Path]] = {
    "a.jsonl": _lines,
    "a.jsonl.gz": _zipped,
    "a.json": _list,
    "lines.json": _lines,
    "a.csv": _csv,
    "a.tsv": _csv,
    "a.parquet": _parquet,
    "folder": _saved,
}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_file_gives_the_same_rows(name: str, tmp_path: Path) -> None:
    (source,) = sources_at("task.path", str(KINDS[name](tmp_path / name))).train
    expected = TEXTS if name.endswith(("csv", "tsv")) else ROWS
    assert [row.values for row in source.rows()] == expected


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.tsv", "folder"])
def test_a_row_can_be_read_again_by_its_offset(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "SMALL_FILE", 0)
    (source,) = sources_at("task.path", str(KINDS[name](tmp_path / name))).train
    for row in list(source.rows())[::-1]:
        assert row.offset != IN_MEMORY
        assert source.read(row.number, row.offset) == row.values


def test_quoted_lines_of_a_csv_file_keep_their_numbers_and_offsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "SMALL_FILE", 0)
    path = tmp_path / "a.csv"
    path.write_bytes(b'\xef\xbb\xbfprompt,answer\r\n"two\r\nlines, ""quoted""",1\r\n\r\nlast,2')
    rows = list(Csv(str(path)).rows())
    assert [(row.number, row.values["prompt"]) for row in rows] == [(2, 'two\r\nlines, "quoted"'), (5, "last")]
    assert [Csv(str(path)).read(row.number, row.offset) for row in rows] == [row.values for row in rows]


def test_blank_lines_are_passed_over_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\n   \n{"a": 2}')
    assert [(row.number, row.values) for row in JsonLines(str(path)).rows()] == [(1, {"a": 1}), (4, {"a": 2})]


BROKEN = {
    "empty.jsonl": (b"", "{path}: empty: there is no row in it"),
    "blank.jsonl": (b"\n\n", "{path}: empty: there is no row in it"),
    "empty.csv": (b"", "{path}: empty: there is no row in it"),
    "header.csv": (b"prompt,answer\n", "{path}: empty: there is no row in it"),
    "none.json": (b"[]", "{path}: empty: there is no row in it"),
    "cut.jsonl": (
        b'{"prompt": "a", "answer": "1"}\n{"prompt": "b", "ans',
        "{path}, line 2: not JSON: Unterminated string starting at column 17",
    ),
    "list.jsonl": (b"[1, 2]\n", '{path}, line 1: a list, not an object of columns; such as {{"prompt": ...}}'),
    "entry.json": (
        b'[{"prompt": "a", "answer": "b"}, 7]',
        '{path}, entry 2: a number, not an object of columns; such as {{"prompt": ...}}',
    ),
    "broken.json": (b'[{"a": 1},\n {"a" 2}]', "{path}: not JSON: Expecting ':' delimiter at line 2, column 7"),
    "data.json": (
        b'{"data": [\n {"prompt": "a", "answer": "b"}\n]}',
        "{path}: an object, not a list of objects; its 'data' holds 1: write that list alone",
    ),
    "line.json": (
        b'{"version": 1, "rows": [{"prompt": "a"}, {}]}\n',
        "{path}: an object, not a list of objects; its 'rows' h",
    ),
    "columns.json": (
        b'{"prompt": {"0": "a", "1": "b"}, "answer": {"0": "1", "1": "2"}}',
        "{path}: an object, not a list of objects but of columns; pandas writes rows with to_json(orient='records', li",
    ),
    "cut.json": (b'{"prompt": "a", "answer": "1"}\n{"prompt": "b', "{path}, line 2: not JSON: Unterminated string"),
    "first.json": (b'{"prompt": "a", "ans\n{"prompt": "b"}\n', "{path}, line 1: not JSON: "),
    "index.csv": (
        b",prompt\n0,a\n",
        "{path}, line 1: the header must name every column, each once; it says ['', 'prompt']; pa",
    ),
    "semicolons.csv": (
        b"prompt;answer\na;1\n",
        "{path}, line 1: one column whose name holds ';': columns stand between",
    ),
    "value.json": (b"7", "{path}: a number, not a list of objects"),
    "digits.jsonl": (b'{"a": ' + b"9" * 5000 + b"}", "{path}, line 1: JSON that cannot be read: Exceeds the limit"),
    "deep.jsonl": (b"[" * 100_000, "{path}, line 1: JSON that cannot be read: maximum recursion depth exceeded"),
    "latin.jsonl": (
        b'{"prompt": "a", "answer": "1"}\n{"prompt": "caf\xe9"}\n',
        "{path}, line 2: byte 16 (0xe9) is not UTF-8; save the file as UTF-8",
    ),
    "utf16.csv": ("prompt,answer\n".encode("utf-16"), "{path}, line 1: byte 1 (0xff) is not UTF-8; save the file as"),
    "latin.csv": (b"prompt,answer\na,b\ncaf\xe9,1\n", "{path}, line 3: byte 4 (0xe9) is not UTF-8; save the file as"),
    "fields.csv": (b"prompt,answer\na,1\nb,c,2\n", "{path}, line 3: 3 fields, but the header names 2"),
    "quote.csv": (b'prompt,answer\na,1\n"b,2\nc,3\n', "{path}, line 3: not CSV: unexpected end of data"),
    "twice.csv": (b"a,a\n1,2\n", "{path}, line 1: the header must name every column, each once; it says ['a', 'a']"),
    "a.jsonl.gz": (b"no gzip at all", "{path}: Not a gzipped file (b'no')"),
    "cut.jsonl.gz": (
        gzip.compress(json.dumps(ROWS[0]).encode() + b"\n")[:-9],
        "{path}, line 2: Compressed file ended before the end-of-stream marker was reached",
    ),
    "a.parquet": (b"no parquet", "{path}, row 1: not Parquet: Parquet magic bytes not found in footer."),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused_in_one_line_that_says_where(name: str, tmp_path: Path) -> None:
    content, words = BROKEN[name]
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UsageError) as told:
        Data(path=str(path), check="exact").samples("train")
    assert str(told.value).startswith(words.format(path=path))
    assert "\n" not in str(told.value)


def test_a_line_without_end_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "LONGEST_LINE", 1 << 20)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"prompt": "a", "answer": "1"}\n"' + b"x" * (1 << 21))
    with pytest.raises(UsageError) as told:
        Data(path=str(path), check="exact").samples("train")
    assert str(told.value) == f"{path}, line 2: longer than 1 MiB; no row of text is"


def test_a_large_json_list_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "LARGEST_LIST", 1 << 10)
    path = _list(tmp_path / "a.json")
    with pytest.raises(UsageError, match=r"a\.json: a JSON list of 0 MiB is read as a whole.*write it as \.jsonl"):
        Data(path=str(path), check="exact").samples("train")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("absent.jsonl", "task.path = 'absent.jsonl': there is no such file or folder"),
        ("a/b/c", "task.path = 'a/b/c': there is no such file or folder"),
        ("", 'task.path is missing: a file, a folder, or an id such as "openai/gsm8k:main"'),
    ],
)
def test_a_path_that_leads_nowhere_is_named(path: str, words: str) -> None:
    with pytest.raises(UsageError) as told:
        Data(path=path, check="exact").samples("train")
    assert str(told.value) == words


def test_an_id_that_the_library_cannot_load_is_told_in_its_words() -> None:
    code = (
        "import groupwise\ntry: groupwise.task('gsm8k').samples('train')\n"
        "except groupwise.UsageError as error: print(error)"
    )
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": os.devnull}
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=offline).stdout
    assert told.startswith("task.path = 'openai/gsm8k:main': no such file; datasets cannot load 'openai/gsm8k:main': ")
    assert told.count("\n") == 1


def test_a_folder_without_data_and_a_file_of_no_known_kind_are_named(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("a")
    with pytest.raises(UsageError, match=r"no data file in this folder \(\.jsonl, \.jsonl\.gz, \.json, \.csv"):
        Data(path=str(tmp_path), check="exact").samples("train")
    with pytest.raises(UsageError, match=r"notes\.txt': of no known kind; known endings: \.jsonl"):
        Data(path=str(tmp_path / "notes.txt"), check="exact").samples("train")
    (tmp_path / "data").mkdir()
    _lines(tmp_path / "data" / "train.jsonl")
    with pytest.raises(UsageError, match=r"; task.path = '.*/data' has some$"):
        Data(path=str(tmp_path), check="exact").samples("train")


@pytest.mark.parametrize("names", [("gsm_train.jsonl", "gsm_test.jsonl"), ("MATH-train.jsonl", "MATH.test.jsonl")])
def test_a_word_inside_the_names_of_files_says_which_rows_are_held_out(names: tuple[str, str], tmp_path: Path) -> None:
    for name in names:
        _lines(tmp_path / name)
    sources = sources_at("task.path", str(tmp_path))
    found = [[Path(source.name).name for source in part] for part in (sources.train, sources.heldout)]
    assert found == [[names[0]], [names[1]]]


def test_names_of_files_say_which_rows_are_held_out(tmp_path: Path) -> None:
    for name in ("train-00001.jsonl", "train-00000.jsonl", "test.jsonl", "validation.jsonl"):
        _lines(tmp_path / name)
    sources = sources_at("task.path", str(tmp_path))
    assert [Path(source.name).name for source in sources.train] == ["train-00000.jsonl", "train-00001.jsonl"]
    assert [Path(source.name).name for source in sources.heldout] == ["test.jsonl"]
    assert sources.unread == [str(tmp_path / "validation.jsonl")]


def test_other_names_are_all_training_rows(tmp_path: Path) -> None:
    for name in ("algebra.jsonl", "testing.jsonl", "geometry.jsonl"):
        _lines(tmp_path / name)
    sources = sources_at("task.path", str(tmp_path))
    assert [len(sources.train), len(sources.heldout)] == [3, 0]


def test_splits_of_a_saved_data_set_are_what_they_are_called(tmp_path: Path) -> None:
    import datasets

    parts = {name: datasets.Dataset.from_list(ROWS[:k]) for k, name in ((30, "train"), (20, "test"), (10, "extra"))}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "both"))
    sources = sources_at("task.path", str(tmp_path / "both"))
    assert [len(list(s.rows())) for s in (*sources.train, *sources.heldout)] == [30, 20]
    assert sources.unread == [f"{tmp_path / 'both'}, extra"]
    del parts["train"]
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "none"))
    with pytest.raises(UsageError, match="none of its splits is called train: test, extra"):
        sources_at("task.path", str(tmp_path / "none"))


def test_a_large_file_is_streamed(tmp_path: Path) -> None:
    """60 MB of rows: what stays is a few bytes a row, whatever a row holds."""
    path = tmp_path / "large.jsonl"
    with path.open("w") as file:
        for i in range(12_000):
            file.write(json.dumps({"prompt": f"{i} " + "w" * 5000, "answer": str(i)}) + "\n")
    assert path.stat().st_size > 60e6
    task = Data(path=str(path), check="exact")
    tracemalloc.start()
    train, heldout = task.samples("train"), task.samples("heldout")
    kept, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 5e6
    assert kept < 2e6
    assert len(train) + len(heldout) == 12_000
    for sample in (train[0], train[-1], heldout[5]):
        assert sample.prompt.split()[0] == sample.answer


def test_a_limit_stops_reading(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS) + "not JSON\n")
    task = Data(path=str(path), limit=10, check="exact")
    assert len(task.samples("train")) + len(task.samples("heldout")) == 10
