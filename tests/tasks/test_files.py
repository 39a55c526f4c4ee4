"""Rows of every kind of file, the line that every complaint names, and the memory that a large file takes."""

from __future__ import annotations

import gzip
import json
import os
import re
import socket
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from groupwise.core.errors import UsageError
from groupwise.tasks.code import Code
from groupwise.tasks.data import formats
from groupwise.tasks.data.formats import IN_MEMORY, Csv, JsonLines
from groupwise.tasks.data.sources import sources_at
from groupwise.tasks.data.task import Data
from groupwise.training.start.cached_reward_model import read_pairs
from tests.tasks import made
from tests.tasks.made import write

ROWS = [{"prompt": f"{i} + é = ?", "answer": str(i), "level": i % 3} for i in range(40)]
TEXTS = [{key: str(value) for key, value in row.items()} for row in ROWS]


def _lines(path: Path) -> Path:
    write(path, [json.dumps(row, ensure_ascii=False) for row in ROWS])
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
    assert refusal(path).startswith(words.format(path=path))


@pytest.mark.parametrize(
    ("limit", "name", "content", "words"),
    [
        (
            "LONGEST_LINE",
            "a.jsonl",
            b'{"prompt": "a", "answer": "1"}\n"' + b"x" * 3000,
            ", line 2: longer than 0 MiB",
        ),
        ("LARGEST_LIST", "a.json", json.dumps(ROWS, indent=1).encode(), ": a JSON list of 0 MiB is read as a whole"),
    ],
)
def test_what_is_too_large_is_refused_before_it_is_read(
    limit: str, name: str, content: bytes, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, limit, 1 << 10)
    (tmp_path / name).write_bytes(content)
    assert refusal(tmp_path / name).startswith(f"{tmp_path / name}{words}")


def test_an_id_that_neither_the_hub_nor_a_cache_has_is_one_line() -> None:
    code = (
        "import groupwise\ntry: groupwise.task('gsm8k').samples('train')\n"
        "except groupwise.UsageError as error: print(error)"
    )
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": os.devnull}
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=offline).stdout
    assert told.startswith(
        "task.path = 'openai/gsm8k:main': no such file or folder, and no data set of that id can be "
    )
    assert "https://huggingface.co cannot be reached from here, and no cache has it; set task.path" in told
    assert told.count("\n") == 1


def test_a_folder_without_data_and_a_file_of_no_known_kind_are_named(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("a")
    assert "no data file in this folder (.jsonl, .jsonl.gz, .json, .csv" in refusal(tmp_path)
    assert "notes.txt': of no known kind; known endings: .jsonl" in refusal(tmp_path / "notes.txt")
    (tmp_path / "data").mkdir()
    _lines(tmp_path / "data" / "train.jsonl")
    assert refusal(tmp_path).endswith("/data' has some")


@pytest.mark.parametrize(
    ("train", "heldout", "unread"),
    [
        (["gsm_train.jsonl"], ["gsm_test.jsonl"], []),
        (["MATH-train.jsonl"], ["MATH.test.jsonl"], []),
        (["train-00000.jsonl", "train-00001.jsonl"], ["test.jsonl"], ["validation.jsonl"]),
        (["algebra.jsonl", "geometry.jsonl", "testing.jsonl"], [], []),
    ],
)
def test_names_of_files_say_which_rows_are_held_out(
    train: list[str], heldout: list[str], unread: list[str], tmp_path: Path
) -> None:
    for name in (*train[::-1], *heldout, *unread):
        _lines(tmp_path / name)
    sources = sources_at("task.path", str(tmp_path))
    assert [[Path(s.name).name for s in part] for part in (sources.train, sources.heldout)] == [train, heldout]
    assert [*sources.unread] == [str(tmp_path / name) for name in unread]


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


@pytest.mark.slow
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


# What means harm.

ROW = {"prompt": "1 + 1?", "answer": "2", "why": "so", "from": "here"}


def refusal(path: Path | str, **keys: Any) -> str:
    """The line that refuses a file."""
    return made.refusal(lambda: Data(**{"path": str(path), "check": "exact", **keys}).samples("train"))


def lines(path: Path, *rows: str | dict[str, Any]) -> Path:
    write(path, rows)
    return path


@pytest.mark.parametrize("column", ["prompt", "answer", "why", "from"])
def test_half_a_surrogate_pair_is_refused_in_every_text_that_is_used(column: str, tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", ROW, {**ROW, "prompt": "2?", column: "x\ud800"})
    words = f"{path}, line 2: half of a surrogate pair"
    assert refusal(path, solution="why", source="from").startswith(words)


@pytest.mark.parametrize("column", ["prompt", "why"])
def test_also_in_problems_of_code(column: str, tmp_path: Path) -> None:
    row = {"prompt": "p", "tests": ["assert f(1)"], "why": "x"}
    path = lines(tmp_path / "a.jsonl", row, {**row, column: "\udfff"})
    assert "line 2: half of a surrogate pair" in made.refusal(lambda: Code(path=str(path), solution="why"))
    pairs = lines(tmp_path / "pairs.jsonl", {"prompt": "1", "chosen": "2", "rejected": "3\ud800"})
    assert "line 1: half of a surrogate pair" in made.refusal(lambda: read_pairs(pairs))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"prompt": "a", "answer": "1", "answer": "2"}', "the key 'answer' comes twice"),
        ('{"prompt": "a", "answer": {"b": 1, "b": 2}}', "the key 'b' comes twice"),
        ('{"a": ' + "[" * 150 + "]" * 150 + "}", "more than 100 lists and objects inside one another"),
        ('{"a": ' + "[" * 3000 + "]" * 3000 + "}", "maximum recursion depth exceeded"),
        ('{"a": ' + "9" * 5000 + "}", "Exceeds the limit"),
    ],
)
def test_json_that_would_lose_a_value_or_break_a_reader_is_refused(line: str, words: str, tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", ROW, line)
    assert refusal(path).startswith(f"{path}, line 2: JSON that cannot be read: {words}")
    alone = lines(tmp_path / "alone.jsonl", line)
    for read in (lambda: Code(path=str(alone)), lambda: read_pairs(alone)):
        assert re.search(f"line 1: .*{words}", made.refusal(read))


def test_a_number_of_hundreds_of_digits_can_be_an_answer_and_be_filtered(tmp_path: Path) -> None:
    rows = [f'{{"prompt": "{i}?", "answer": {i}{"0" * 400}}}' for i in range(1, 30)]
    task = Data(path=str(lines(tmp_path / "a.jsonl", *rows)), check="exact", filter={"answer": {"min": 3}})
    assert all(len(sample.answer) > 400 for sample in task.samples("train"))
    assert "leaves none" in refusal(tmp_path / "a.jsonl", filter={"answer": {"max": 3}})


def test_an_answer_that_is_not_a_number_is_no_answer(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", '{"prompt": "a", "answer": NaN}', '{"prompt": "b", "answer": -Infinity}')
    assert "2 gold answers that 'exact' cannot read" in refusal(path)


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [_fifo, _socket, _device])
@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".parquet", ".jsonl.gz"])
def test_what_is_no_regular_file_is_not_opened(make: Any, suffix: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)  # the name of a socket is short
    path = Path(f"a{suffix}")
    make(path)
    assert refusal(path) == f"task.path = 'a{suffix}': not a regular file"
    assert "not a regular file" in refusal(tmp_path)
    for read in (lambda: Code(path=str(path)), lambda: read_pairs(path)):
        assert "not a regular file" in made.refusal(read)


@pytest.mark.parametrize(
    "path",
    [
        "absent.jsonl",
        "a/b/c",
        "/dev/stdin",
        "/dev/null",
        "/dev/tty",
        "~nobody-has-this-name/a.jsonl",
        "x" * 300,
        "a\0b",
    ],
)
def test_a_path_that_holds_no_rows_is_named(path: str) -> None:
    assert refusal(Path(path)).startswith("task.path = ")


def test_a_file_that_unpacks_to_thousands_of_times_its_size_is_left(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(formats, "SMALL_FILE", 1 << 20)
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(ROW).encode() + b"\n" * (4 << 20)))
    assert "unpacks to over 200 times its size; unpack it" in refusal(path)


def test_a_wide_row_is_not_repeated_whole(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", {f"column{i}": "x" for i in range(2000)})
    assert refusal(path).endswith("column11 and 1988 more")


def _arrow(path: Path, columns: dict[str, Any]) -> Path:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


def test_parquet_with_what_python_cannot_hold_is_refused_by_its_row(tmp_path: Path) -> None:
    import pyarrow as pa

    texts = {"prompt": ["a"], "answer": ["1"]}
    nowhere = _arrow(tmp_path / "zone.parquet", {**texts, "at": pa.array([0], pa.timestamp("us", tz="Mars/Olympus"))})
    assert refusal(nowhere).startswith(f"{nowhere}, row 1: ")
    late = _arrow(tmp_path / "late.parquet", {**texts, "at": pa.array([2**40], pa.timestamp("s"))})
    assert refusal(late).startswith(f"{late}, row 1: ")
    wrong = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])
    bytes_ = _arrow(tmp_path / "bytes.parquet", {**texts, "text": wrong})
    assert refusal(bytes_).startswith(f"{bytes_}, row 1: ")


def test_parquet_with_two_columns_of_one_name_is_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pa.table([["a"], ["1"], ["2"]], names=["prompt", "answer", "answer"]), path)
    assert refusal(path) == f"{path}: two columns of one name: prompt, answer, answer"
