"""What `groupwise train` prints: in a terminal, a pipe and a dumb terminal, and with its three options."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from groupwise.cli.__main__ import main
from tests.runs.tiny_runs import tiny_run
from tests.warm import WarmPopen

CODE = """
import sys
import torch
from groupwise.cli.__main__ import main
torch.set_num_threads(1)
sys.argv = ["groupwise", *sys.argv[1:]]
main()
"""
WarmPopen.codes.add(CODE)
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
HEAD = ("run", "task", "algorithm", "size", "memory", "checks")


def words_of(place: Path, **changes: object) -> list[str]:
    settings = tiny_run(place, steps=2, **changes)
    return ["train", "quickstart", *(f"--set={key}={json.dumps(value)}" for key, value in settings.items())]


def in_terminal(words: list[str], place: Path, columns: int = 80, **environment: str) -> str:
    """All that the command writes to a terminal of so many columns, which it takes for a real one."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    known = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES", "NO_COLOR", "TERM")}
    process = WarmPopen(
        [sys.executable, "-c", CODE, *words],
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.STDOUT,
        cwd=place,
        env={**known, "PYTHONIOENCODING": "utf-8", "TERM": "xterm-256color", **environment},
    )
    os.close(theirs)
    written = b""
    try:
        while data := os.read(ours, 1 << 16):
            written += data
    except OSError:  # the other side has closed it
        pass
    os.close(ours)
    assert process.wait(60) == 0, written.decode()[-2000:]
    return written.decode().replace("\r\n", "\n")


def run_here(words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    monkeypatch.setattr(sys, "argv", ["groupwise", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    said = capsys.readouterr()
    return said.out, said.err


def test_a_terminal_gets_a_head_of_six_lines_a_panel_and_the_result_in_bold(tmp_path: Path):
    written = in_terminal(words_of(tmp_path), tmp_path)
    plain = ESCAPES.sub("", written)
    for name in HEAD:
        assert len(re.findall(rf"(?:^|\r){name:<12} \S", plain, re.MULTILINE)) == 1, name
    assert re.search(r"(?:^|\r)checks       (\d+)/\1 ok \(worst: ", plain, re.MULTILINE)
    assert "shaping" not in plain, "the plan is in log.txt"
    panel = plain[plain.rindex("╭") : plain.rindex("╯")]
    assert {len(line) for line in panel.splitlines()} == {80} | {len(panel.splitlines()[-1])}
    for words in ("step 2/2", "elapsed, 0:00 left", "tokens a second", "KL to the reference", "entropy", "score "):
        assert words in panel
    end = written[written.rindex("╯") :]
    assert re.search(r"\x1b\[1mheld-out pass rate .* tokens\x1b\[0m\n", end), "the result is bold"
    assert re.search(r"^checked on 2 steps: (\d)/\1 ok", end, re.MULTILINE)
    assert "next: groupwise watch " in end


def test_without_colours_nothing_is_coloured(tmp_path: Path):
    written = in_terminal(words_of(tmp_path), tmp_path, NO_COLOR="1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-9][;m]", written)
    assert "╭" in written


def test_a_dumb_terminal_gets_lines_of_its_width_and_no_escape(tmp_path: Path):
    written = in_terminal(words_of(tmp_path), tmp_path, TERM="dumb")
    assert "\x1b" not in written
    assert "╭" not in written
    steps = re.findall(r"^\d\d:\d\d:\d\d step \d/2 .*$", written, re.MULTILINE)
    assert len(steps) == 2
    assert max(map(len, steps)) <= 80


def test_a_pipe_gets_lines_that_log_txt_has_too_and_the_log_has_the_plan(tmp_path: Path, monkeypatch, capsys):
    out, err = run_here(words_of(tmp_path), monkeypatch, capsys)
    log = next(tmp_path.rglob("log.txt")).read_text()
    timed = re.findall(r"^\d\d:\d\d:\d\d .*$", out, re.MULTILINE)
    assert [line.split()[1] for line in timed] == [
        "eval",
        "check",
        "step",
        "step",
        "eval",
    ]
    assert timed == re.findall(r"^\d\d:\d\d:\d\d .*$", log, re.MULTILINE)
    assert max(map(len, timed)) <= 110
    assert "\x1b" not in out
    assert err == ""
    for words in ("  aggregate  ", "evaluation   ", "disk         ", "step 1: learner = engine: pass"):
        assert words in log
        assert words not in out
    verbose, _ = run_here([*words_of(tmp_path, name="verbose"), "--verbose"], monkeypatch, capsys)
    for words in ("  aggregate  ", "evaluation   ", "disk         ", "check        learner = engine: pass"):
        assert words in verbose


def test_quiet_prints_the_result_alone(tmp_path: Path, monkeypatch, capsys):
    out, err = run_here([*words_of(tmp_path), "--quiet"], monkeypatch, capsys)
    lines = out.splitlines()
    assert lines[0].startswith("held-out pass rate ")
    assert [line for line in lines if line.startswith("the run is in ")] != []
    assert not re.search(r"^(\d\d:|step|run |next)", out, re.MULTILINE)
    assert err == ""


def test_json_is_one_object_a_line_and_nothing_else(tmp_path: Path, monkeypatch, capsys):
    out, err = run_here([*words_of(tmp_path), "--json"], monkeypatch, capsys)
    objects = [json.loads(line) for line in out.splitlines()]
    kinds = [one["event"] for one in objects if one["event"] != "check"]
    assert kinds == ["evaluation", "step", "step", "evaluation", "end"]
    assert sum(one["event"] == "check" for one in objects) >= 6
    rows = [json.loads(line) for line in next(tmp_path.rglob("metrics.jsonl")).read_text().splitlines()]
    assert [one for one in objects if one["event"] == "step"] == [
        {"event": "step", **row} for row in rows if "evaluation" not in row
    ]
    summary = json.loads(next(tmp_path.rglob("summary.json")).read_text())
    assert objects[-1].items() >= {**summary, "finished": True}.items()
    assert err == ""


def test_the_options_exclude_each_other(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["groupwise", *words_of(tmp_path), "--quiet", "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "--quiet, --verbose and --json exclude each other" in capsys.readouterr().err


def test_a_resumed_run_names_its_folder_as_a_fresh_one_does(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = [word for word in words_of(tmp_path) if not word.startswith("--set=runs=")]
    fresh, _ = run_here(words, monkeypatch, capsys)
    (place,) = re.findall(r"^the run is in (\S+) ", fresh, re.MULTILINE)
    assert not Path(place).is_absolute()
    again, _ = run_here(["train", "--resume", str(tmp_path / place), "--set", "steps=3"], monkeypatch, capsys)
    assert f"run          {place}: " in again
    assert f"{tmp_path}/runs" not in again
