"""What nobody expected ends a command in one line, its traceback in a file; and the boundary itself never fails."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

import pytest

from groupwise.algorithms import explain as words
from groupwise.cli import __main__ as cli
from groupwise.commands.train import train
from groupwise.core.code import unexpected as boundary

TINY = {"warm_start.steps": 0, "steps": 1}


#: A command that computes its answer; without --set it would read one that was written before.
EXPLAIN = ("explain", "grpo", "--set", "kl.beta=1")


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Panic(BaseException):
    """As Rust's panics are: no Exception."""


def deeper(*_: object) -> NoReturn:
    deeper()


def fails_with(error: BaseException) -> Any:
    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    return fail


def call(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit code and the one line on stderr."""
    monkeypatch.setattr(sys, "argv", ["groupwise", *arguments])
    with pytest.raises(SystemExit) as leaving:
        cli.main()
    err = capfd.readouterr().err.strip()
    assert "\n" not in err
    return int(leaving.value.code or 0), err


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Runs and temporary files of these tests are in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("a\nb"), "ValueError: a b at groupwise/"),
        (KeyError("name"), "KeyError: 'name' at groupwise/"),
        (MemoryError(), "MemoryError: MemoryError at groupwise/"),
        (EOFError("no more"), "EOFError: no more at groupwise/"),
        (Unspeakable(), "Unspeakable at groupwise/"),
        (Panic("rust"), "Panic: rust at groupwise/"),
        (ValueError("\ud800" + "x" * 10**6), "ValueError: "),
        (None, "RecursionError: maximum recursion depth exceeded"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_is_one_line_and_its_traceback_a_file(
    error: BaseException | None, said: str, monkeypatch: Any, capfd: Any
):
    monkeypatch.setattr(words, "explain", fails_with(error) if error else deeper)
    code, line = call(monkeypatch, capfd, *EXPLAIN)
    assert code == 1
    assert line.startswith(f"groupwise: unexpected, in {' '.join(EXPLAIN)}: {said}")
    assert len(line) < 900
    file = Path(line.rpartition("the traceback is in ")[2])
    assert file.parent == Path(tempfile.gettempdir())
    assert file.read_text().startswith("Traceback (most recent call last):")
    assert "cli/learn.py" in file.read_text()


def test_without_a_command_there_is_the_help_and_no_error(monkeypatch: Any, capfd: Any):
    assert call(monkeypatch, capfd) == (0, "")


@pytest.mark.parametrize("failing", [OSError(28, "No space left on device"), MemoryError(), RecursionError()])
def test_where_nothing_can_be_written_the_line_stands_alone(failing: Exception, monkeypatch: Any, capfd: Any):
    monkeypatch.setattr(words, "explain", fails_with(ValueError("why")))
    monkeypatch.setattr(tempfile, "mkstemp", fails_with(failing))
    code, line = call(monkeypatch, capfd, *EXPLAIN)
    assert (code, line.partition(" at ")[0]) == (
        1,
        "groupwise: unexpected, in explain grpo --set kl.beta=1: ValueError: why",
    )
    assert "traceback" not in line


def test_where_nothing_can_be_computed_the_kind_of_error_is_said(monkeypatch: Any, capfd: Any):
    monkeypatch.setattr(words, "explain", fails_with(ValueError("why")))
    for name in ("one_line", "_place"):
        monkeypatch.setattr(boundary, name, fails_with(MemoryError()))
    monkeypatch.setattr(boundary.traceback, "format_exception", fails_with(MemoryError()))
    assert call(monkeypatch, capfd, *EXPLAIN) == (
        1,
        "groupwise: unexpected, in explain grpo --set kl.beta=1: ValueError",
    )


def test_a_traceback_of_a_run_is_at_the_end_of_its_log(monkeypatch: Any, capfd: Any, tmp_path: Path):
    monkeypatch.setattr(train.loop, "train", fails_with(RuntimeError("torn")))
    code, line = call(monkeypatch, capfd, "train", "quickstart", *(f"--set={k}={v}" for k, v in TINY.items()))
    log = tmp_path / "runs" / "quickstart" / "log.txt"
    assert code == 1
    assert line.endswith("; the traceback is in runs/quickstart/log.txt")
    assert "RuntimeError: torn" in line
    assert log.read_text().count("Traceback (most recent call last):") == 1
    assert not list(Path(tempfile.gettempdir()).iterdir())
    log.unlink()
    log.mkdir()
    code, line = call(monkeypatch, capfd, "train", "--resume", str(log.parent))
    assert (code, "log.txt: cannot be written: Is a directory" in line) == (1, True)


def test_where_a_run_could_not_be_built_its_folder_is_gone_and_the_traceback_is_not(
    monkeypatch: Any, capfd: Any, tmp_path: Path
):
    monkeypatch.setattr(train, "build", fails_with(RuntimeError("torn")))
    code, line = call(monkeypatch, capfd, "train", "quickstart", *(f"--set={k}={v}" for k, v in TINY.items()))
    assert code == 1
    file = Path(line.rpartition("the traceback is in ")[2])
    assert file.parent == tmp_path / "temporary"
    assert "RuntimeError: torn" in file.read_text()
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_second_report_of_one_error_writes_nothing(tmp_path: Path):
    error = ValueError("once")
    assert boundary.save_traceback(error, tmp_path / "log.txt") == str(tmp_path / "log.txt")
    before = (tmp_path / "log.txt").read_bytes()
    assert boundary.unexpected(error, "x").endswith(f"; the traceback is in {tmp_path / 'log.txt'}")
    assert (tmp_path / "log.txt").read_bytes() == before


def test_a_full_disk_behind_stdout_is_one_line_and_a_reader_that_left_none():
    program = [sys.executable, "-m", "groupwise.cli", "--help"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "No space left on device" in done.stderr
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as left:
        assert left.stdout is not None
        assert left.stderr is not None
        left.stdout.close()
        assert left.stderr.read() == ""
    assert left.returncode == 1


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--resume", "x" * 300],
        ["eval", "x/" * 3000],
        ["eval", "quickstart", "--model", "~nobody-has-this-name/x"],
        ["report", "x" * 300],
        ["report", "runs", "--out", "~nobody-has-this-name/x"],
        ["watch", "x" * 300],
        ["check", "quickstart", "--rows", "9" * 5000],
        ["train", "x" * 10**5],
        ["x" * 10**5],
    ],
    ids=lambda words: " ".join(words)[:20],
)
def test_paths_and_words_of_the_command_line_are_refused_in_one_short_line(words: Any, monkeypatch: Any, capfd: Any):
    code, line = call(monkeypatch, capfd, *words)
    assert code == 2
    assert len(line) < 1100
