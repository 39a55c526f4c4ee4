"""Data files that mean harm, or were damaged: each is refused in one line that names the file and the row."""

from __future__ import annotations

import gzip
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from groupwise.core.errors import UsageError
from groupwise.tasks.code import Code
from groupwise.tasks.data import formats
from groupwise.tasks.data.task import Data
from groupwise.training.start.pairs import read_pairs

ROW = {"prompt": "1 + 1?", "answer": "2", "why": "so", "from": "here"}


def refusal(path: Path, **keys: Any) -> str:
    """The line that refuses a file."""
    with pytest.raises(UsageError) as caught:
        Data(**{"path": str(path), "check": "exact", **keys}).samples("train")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) <= 1000
    return str(caught.value)


def lines(path: Path, *rows: str | dict[str, Any]) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
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
    with pytest.raises(UsageError, match="line 2: half of a surrogate pair"):
        Code(path=str(path), solution="why")
    pair = {"prompt": "1", "chosen": "2", "rejected": "3\ud800"}
    with pytest.raises(UsageError, match="line 1: half of a surrogate pair"):
        read_pairs(lines(tmp_path / "pairs.jsonl", pair))


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
    with pytest.raises(UsageError, match=f"line 1: .*{words}"):
        Code(path=str(lines(tmp_path / "code.jsonl", line)))
    with pytest.raises(UsageError, match=f"line 1: .*{words}"):
        read_pairs(lines(tmp_path / "pairs.jsonl", line))


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
        with pytest.raises(UsageError, match="not a regular file"):
            read()


@pytest.mark.parametrize(
    "path", ["/dev/stdin", "/dev/null", "/dev/tty", "~nobody-has-this-name/a.jsonl", "x" * 300, "a\0b"]
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


def _parquet(path: Path, columns: dict[str, Any]) -> Path:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


def test_parquet_with_what_python_cannot_hold_is_refused_by_its_row(tmp_path: Path) -> None:
    import pyarrow as pa

    texts = {"prompt": ["a"], "answer": ["1"]}
    nowhere = _parquet(tmp_path / "zone.parquet", {**texts, "at": pa.array([0], pa.timestamp("us", tz="Mars/Olympus"))})
    assert refusal(nowhere).startswith(f"{nowhere}, row 1: ")
    late = _parquet(tmp_path / "late.parquet", {**texts, "at": pa.array([2**40], pa.timestamp("s"))})
    assert refusal(late).startswith(f"{late}, row 1: ")
    wrong = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])
    bytes_ = _parquet(tmp_path / "bytes.parquet", {**texts, "text": wrong})
    assert refusal(bytes_).startswith(f"{bytes_}, row 1: ")


def test_parquet_with_two_columns_of_one_name_is_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pa.table([["a"], ["1"], ["2"]], names=["prompt", "answer", "answer"]), path)
    assert refusal(path) == f"{path}: two columns of one name: prompt, answer, answer"
