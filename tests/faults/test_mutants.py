"""Twenty mutants, the same ones every time: what `make test-fuzz` does with ten thousand fresh ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
#: Kinds of mutants that cost least, and the others.
QUICK, OTHERS = ("recipe", "line", "data", "run", "model"), ("tokenizer", "index", "parquet", "answer", "frame")


@pytest.mark.skipif(sys.platform != "linux", reason="forks with limits, as Linux has them")
@pytest.mark.skipif(torch.version.cuda is not None, reason="torch for GPUs has threads that no fork has")
@pytest.mark.parametrize(
    ("kinds", "count", "seconds"), [(QUICK, 20, 120), pytest.param(OTHERS, 50, 300, marks=pytest.mark.slow)]
)
def test_mutants_are_refused_in_one_line_or_give_a_right_result(
    kinds: tuple[str, ...], count: int, seconds: float, tmp_path: Path
) -> None:
    options = {"--mutants": count, "--seed": 0, "--shrink": 0, "--out": tmp_path / "faults"}
    words = [str(word) for option in options.items() for word in option]
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults", *words, "--kinds", *kinds],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
