"""Files that appear whole or not at all, and files that are opened only where they are files."""

from __future__ import annotations

import errno
import os
import signal
import tempfile
from pathlib import Path

import pytest

from groupwise.core.errors import RunError, UsageError
from groupwise.core.files import jsonl
from groupwise.core.files.atomic import (
    make_folder,
    open_regular,
    open_to_append,
    require_place,
    temporary_folder,
    whole_file,
)


def test_a_file_that_fails_half_way_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), whole_file(path) as file:
        file.write(b"half" * (1 // 0))
    assert path.read_text() == "old"
    with whole_file(path) as file:
        file.write(b"new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("beside", [False, True], ids=["temporary", "beside"])
def test_a_folder_of_a_killed_process_goes_with_the_next_and_one_in_use_stays(
    beside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not groupwise's stays, whatever it is called."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    place = tmp_path / "beside" if beside else None
    where = place or tmp_path
    where.mkdir(exist_ok=True)
    start = ".partial-engine" if beside else "groupwise-engine"
    others = [where / f"{start}-mine", where / f"{start}-12345678.bak", where / "groupwise-other-12345678"]
    for other in others:
        other.mkdir()
    (where / f"{start}-87654321").write_text("a file")
    killed = os.fork()
    if not killed:
        with temporary_folder("engine", place) as folder:
            (folder / "weights").write_text("large")
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(killed, 0)
    (left,) = (path for path in where.glob(f"{start}-????????") if path.is_dir())
    with temporary_folder("engine", place) as outer, temporary_folder("engine", place) as inner:
        assert not left.exists()
        assert outer.is_dir()
        assert inner.is_dir()
    assert not outer.exists()
    assert {path for path in where.iterdir() if path.name != "beside"} == {*others, where / f"{start}-87654321"}


def test_a_draft_is_never_a_file_that_was_there(tmp_path: Path) -> None:
    """What an older version or somebody else left beside it, such as a link or a FIFO, is not written to."""
    os.mkfifo(tmp_path / "rows.jsonl.partial")
    (tmp_path / "rows.jsonl").write_text('{"step":1}\n{"step":2}\n')
    jsonl.cut(tmp_path / "rows.jsonl", 1)
    assert (tmp_path / "rows.jsonl").read_text() == '{"step":1}\n'


def test_a_fifo_and_a_device_are_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name in ("fifo", "zero"):
        with pytest.raises(OSError, match="no regular file"):
            open_regular(tmp_path / name)
    with pytest.raises(OSError):
        open_to_append(tmp_path / "fifo")
    with pytest.raises(RunError, match="fifo: cannot be written anew: it is no regular file"):
        jsonl.cut(tmp_path / "fifo", 1)


@pytest.mark.parametrize(
    "line",
    [b'{"step":' + b"9" * 5000 + b"}\n", b'{"step":true}\n', b"[" * 900 + b"]" * 900 + b"\n", b'{"step":1e400}\n'],
    ids=["long", "true", "deep", "infinite"],
)
def test_a_line_that_no_run_writes_has_no_step(line: bytes, tmp_path: Path) -> None:
    assert jsonl.step_of(line) is None
    (tmp_path / "rows").write_bytes(line + b'{"step":1,"a":' + b"[" * 900 + b"]" * 900 + b"}\n")
    assert [row for row in jsonl.rows(tmp_path / "rows") if row.get("step") is not True] == []


def test_a_folder_has_a_place_and_room(tmp_path: Path) -> None:
    require_place(tmp_path / "a" / "b", 2**20)
    with pytest.raises(UsageError, match=r"a/b: takes 1,152,921,504,607 MB, and .* has [\d,]+ MB free; free space"):
        require_place(tmp_path / "a" / "b", 2**60)
    (tmp_path / "a").write_text("")
    with pytest.raises(UsageError, match=r"a/b: cannot be made: .*a is no folder that can be written to"):
        require_place(tmp_path / "a" / "b", 1)


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "free space"),
        (RuntimeError(f"I/O error: {os.strerror(errno.ENOSPC)} (os error 28)"), "free space"),
        (OSError(errno.EACCES, os.strerror(errno.EACCES)), "take a folder that can be written to"),
    ],
)
def test_what_to_do_follows_from_what_the_disk_said(error: Exception, remedy: str, tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        raise error

    with pytest.raises(RunError, match=f"the policy cannot be saved: .*; {remedy}$"):
        make_folder(tmp_path / "a", write, "the policy")
