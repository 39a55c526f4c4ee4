"""Sixty mutants, the same ones every time: what `make test-fuzz` does with ten thousand fresh ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(sys.platform != "linux", reason="forks with limits, as Linux has them")
@pytest.mark.skipif(torch.version.cuda is not None, reason="torch for GPUs has threads that no fork has")
def test_sixty_mutants_are_refused_in_one_line_or_give_a_right_result(tmp_path: Path) -> None:
    words = ["--mutants", "100", "--seed", "0", "--shrink", "0", "--out", str(tmp_path / "faults")]
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
