"""Runs of every kind that are killed again and again, at any moment, have the bits of one that never was."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from groupwise.journal.journal import read_metrics
from tests.moe_policy import save_moe
from tests.runs.test_environment_run import CHANGES as EPISODES
from tests.runs.test_run import assert_same_run, go_on, start, wait_for
from tests.runs.tiny_runs import laid_over

LONG: dict[str, Any] = {"steps": 40, "prompts_per_step": 16}
TURNS: dict[str, Any] = {**LONG, "rollout.turn_tokens": 3}
EXPERTS: dict[str, Any] = {"model": "tiny-moe", "steps": 20}
IMITATES: dict[str, Any] = {
    "supervised.demonstrations": 64, "supervised.rows_per_step": 8, "supervised.held_out": 8.0, "mix.supervised": 0.5,
    "evaluation.every": 500,
}  # fmt: skip
#: What each run has that others do not, and how often it is killed.
RUNS: dict[str, tuple[dict[str, Any], int]] = {
    "dapo, short": ({"algorithm.name": "dapo", "steps": 8}, 2),
    "mix, short": ({**IMITATES, "steps": 24}, 2),
    "supervised alone": ({**IMITATES, "mix.reinforced": 0.0, "steps": 1500, "checkpoint.every": 50}, 4),
    "grpo": (LONG, 10),
    "dapo": ({**LONG, "algorithm.name": "dapo"}, 10),
    "grpo, ahead": ({**LONG, "rollout.ahead": 1}, 10),
    "dapo, ahead": ({**LONG, "rollout.ahead": 1, "algorithm.name": "dapo"}, 10),
    "turns": (TURNS, 10),
    "episodes": ({**EPISODES, **LONG}, 10),
    "adapters": ({"steps": 8, "adapter.rank": 4}, 4),
    "adapters of experts": ({"steps": 8, "adapter.rank": 4, "model": "EXPERTS", "routing.replay": "engine"}, 4),
    "the learner's routes": ({**EXPERTS, "routing.replay": "learner"}, 5),
    "the engine's routes": ({**EXPERTS, "routing.replay": "engine", "algorithm.name": "dapo"}, 5),
}


def kill_again_and_again(changes: dict[str, Any], kills: int, seed: int) -> Path:
    """kill -9 at moments drawn from `seed`, every second one inside a save; then to the end."""
    folder = Path(changes["runs"]) / changes["name"]
    generator = torch.Generator().manual_seed(seed)
    for killed in range(kills):
        process = go_on(folder, threads=1) if (folder / "recipe.toml").is_file() else start(changes, threads=1)
        if killed % 2:
            wait_for(lambda: list((folder / "checkpoints").glob(".partial-*")), process)
        else:
            begun = len(read_metrics(folder))
            wait_for(lambda begun=begun: len(read_metrics(folder)) > begun, process)
            time.sleep(0.15 * float(torch.rand((), generator=generator)))
        process.kill()
        output = process.communicate()
        assert process.returncode == -signal.SIGKILL, f"the run ended after {killed} kills; make it longer: {output}"
    process = go_on(folder, threads=1)
    output = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert not list((folder / "checkpoints").glob(".partial-*"))
    return folder


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n == "dapo, short" else pytest.mark.slow) for n in RUNS])
def test_kills_and_resumes_give_the_same_bits(name: str, small: Any, tmp_path: Path) -> None:
    changes, kills = RUNS[name]
    if changes.get("model") == "EXPERTS":
        changes = {**changes, "model": str(save_moe(tmp_path / "policy", initializer_range=0.1))}
    settings = laid_over({**small(), "threads": 1}, changes)
    whole = start({**settings, "name": "whole"}, threads=1)
    told = whole.communicate(timeout=300)
    assert whole.returncode == 0, told
    cut = kill_again_and_again({**settings, "name": "cut"}, kills, seed=2)
    assert_same_run(Path(settings["runs"]) / "whole", cut)
