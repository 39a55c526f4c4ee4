"""Where a page may be written: over a page of its own, or where nothing is. Everything else stays as it is."""

from __future__ import annotations

import os
import resource
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from groupwise.cli import __main__ as cli
from groupwise.core.errors import GroupwiseError, RunError, UsageError
from groupwise.reports import make as makes
from groupwise.reports.make import make

ROWS = b'{"step":1,"loss":0.5,"seconds":{}}\n'


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "recipe.toml").write_text("steps = 1\n")
    (folder / "metrics.jsonl").write_bytes(ROWS)
    return folder


def listen(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def device(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("this user makes no devices")


def link_to_page(path: Path) -> None:
    page = path.with_name("page.html")
    page.write_bytes(b"<!doctype html>\n" + makes.MARK)
    path.symlink_to(page.name)


KINDS: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "socket": listen,
    "device": device,
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "link to a folder": lambda path: path.symlink_to("."),
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to a page": link_to_page,
    "file": lambda path: path.write_text("mine"),
    "empty file": lambda path: path.touch(),
    "mark far inside": lambda path: path.write_bytes(b" " * 2000 + makes.MARK),
}


def snapshot(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Of everything below: what it is, which one it is, and what is in it."""
    kinds = {str(path.relative_to(folder)): path.lstat() for path in folder.rglob("*")}
    inside = {name: (folder / name).read_bytes() for name, is_ in kinds.items() if stat.S_ISREG(is_.st_mode)}
    return {name: (is_.st_mode, is_.st_ino, inside.get(name, b"")) for name, is_ in kinds.items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ["--out", "report.html", "comparison.html"])
def test_what_is_no_page_is_refused_before_the_work_and_stays(
    kind: str, place: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = {"--out": tmp_path / "out", "report.html": run / "report.html", "comparison.html": tmp_path / place}
    KINDS[kind](paths[place])
    before = snapshot(tmp_path)
    monkeypatch.setattr(makes, "page_of_run", lambda folder: pytest.fail("the work began"))
    monkeypatch.setattr(makes.compare, "page", lambda folders: pytest.fail("the work began"))
    runs = [run, tmp_path / "other"] if place == "comparison.html" else [run]
    with pytest.raises(UsageError, match=r"choose another with --out|that is a folder") as told:
        make(runs, paths[place] if place == "--out" else None)
    assert len(str(told.value).splitlines()) == 1
    assert snapshot(tmp_path) == before


def test_a_page_of_its_own_is_written_anew(run: Path, tmp_path: Path) -> None:
    for out in (None, tmp_path / "page"):
        assert make([run], out).path.stat().st_ino != make([run], out).path.stat().st_ino
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page", "run"]


def test_a_missing_folder_is_said_before_the_work(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(makes, "page_of_run", lambda folder: pytest.fail("the work began"))
    for out in (tmp_path / "nowhere" / "page.html", run / "recipe.toml" / "page.html", tmp_path / ("x" * 300) / "p"):
        with pytest.raises(UsageError, match=r"there is no folder .*; make it first, or choose another with --out"):
            make([run], out)


@contextmanager
def full_disk(size: int = 100_000) -> Iterator[None]:
    """Inside, the system lets this process write no file beyond `size` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_one_line_and_the_old_page_stays(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    make([run])
    before = snapshot(tmp_path)
    monkeypatch.setattr(sys, "argv", ["groupwise", "report", str(run)])
    with full_disk(), pytest.raises(SystemExit) as leaving:
        cli.main()
    assert leaving.value.code == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert f"{run}/report.html: the page cannot be written: File too large" in line
    assert snapshot(tmp_path) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_rights_is_one_line(run: Path) -> None:
    run.chmod(0o555)
    with pytest.raises(RunError, match="the page cannot be written: Permission denied"):
        make([run])
    run.chmod(0o755)


def test_a_name_that_is_too_long_is_one_line(run: Path, tmp_path: Path) -> None:
    with pytest.raises(GroupwiseError, match="File name too long"):
        make([run], tmp_path / ("x" * 300))
