"""Real torchrun, two ranks of this machine: the bits of a run that starts its ranks itself, and ends in one line."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from groupwise.commands.train.train import resume
from tests.runs.test_ranks_run import CHANGES, require_same, trained
from tests.runs.tiny_runs import cut_back, tiny_run

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def settings(place: Path, **changes: Any) -> list[str]:
    every = {**tiny_run(place, **{**CHANGES, **changes}), "threads": 1}
    return [f"--set={key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in every.items()]


def torchrun(*words: str, script: Sequence[str] = ("-m", "groupwise.cli")) -> subprocess.Popen[str]:
    environment: Mapping[str, str] = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*COMMAND, *script, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def said(process: subprocess.Popen[str]) -> list[str]:
    try:
        return process.communicate(timeout=120)[0].splitlines()
    finally:
        process.kill()


def errors(lines: Sequence[str]) -> list[str]:
    """The lines of groupwise's own about what went wrong."""
    return [line for line in lines if line.startswith(("groupwise: ", "error: "))]


def test_a_run_of_torchrun_has_the_bits_of_a_run_that_starts_its_ranks_itself(tmp_path: Path) -> None:
    """Resumed, too; and one that torchrun has started goes on without it."""
    own = trained(tmp_path, "own", learner__ranks=2, threads=1)
    process = torchrun("train", "quickstart", *settings(tmp_path, name="given"))
    lines = said(process)
    assert process.returncode == 0, "\n".join(lines)
    assert errors(lines) == []
    assert len([line for line in lines if line.startswith("the run is in ")]) == 1
    given = tmp_path / "runs" / "given"
    require_same(own, given)
    cut_back(given, 2)
    process = torchrun("train", "--resume", str(given))
    lines = said(process)
    assert process.returncode == 0, "\n".join(lines)
    require_same(own, given)
    cut_back(given, 3)
    assert resume(given).finished
    require_same(own, given)


def test_a_rank_that_is_lost_ends_all_in_a_line(tmp_path: Path) -> None:
    process = torchrun("train", "quickstart", *settings(tmp_path, name="lost", steps=100_000))
    rows = tmp_path / "runs" / "lost" / "metrics.jsonl"
    until = time.monotonic() + 60
    while time.monotonic() < until and not (rows.exists() and rows.read_text().count("\n") > 3):
        time.sleep(0.1)
    os.kill(follower_of(process.pid), signal.SIGKILL)
    begin = time.monotonic()
    lines = said(process)
    assert time.monotonic() - begin < 30
    assert process.returncode != 0
    (line,) = errors(lines)
    assert line.startswith("groupwise: one of 2 ranks ended, or kept the others waiting for 600 seconds: torchrun says")
    assert line.endswith(f"go on from the newest checkpoint with: groupwise train --resume {rows.parent}")
    assert resume(rows.parent, {"steps": rows.read_text().count("\n") + 1}).finished


def follower_of(torchrun_pid: int) -> int:
    for entry in Path("/proc").iterdir():
        try:
            told = (entry / "environ").read_bytes().split(b"\0")
            parent = f"PPid:\t{torchrun_pid}\n" in (entry / "status").read_text()
        except (OSError, ValueError):
            continue
        if parent and b"RANK=1" in told:
            return int(entry.name)
    raise AssertionError("there is no rank 1")


def test_ranks_that_were_asked_for_different_runs_are_refused_once(tmp_path: Path) -> None:
    asked = " ".join(map(shlex.quote, settings(tmp_path, name="other")))
    shell = f"exec {shlex.quote(sys.executable)} -m groupwise.cli train quickstart {asked} --set steps=$((3 + RANK))"
    process = torchrun(shell, script=("--no-python", "sh", "-c"))
    lines = said(process)
    assert process.returncode != 0
    assert errors(lines) == ["groupwise: rank 1 was asked for another run than rank 0: steps 3 -> 4; give all the same"]
    assert not (tmp_path / "runs").exists()


def test_another_number_of_ranks_than_the_recipe_says_is_refused_once(tmp_path: Path) -> None:
    process = torchrun("train", "quickstart", *settings(tmp_path, name="other", learner__ranks=3))
    lines = said(process)
    assert process.returncode != 0
    (line,) = errors(lines)
    assert line.startswith("groupwise: learner.ranks = 3: torchrun has started 2 processes; set it to 2, or start 3")
    assert not (tmp_path / "runs").exists()
