"""A run with and without evaluations has the same bits: an evaluation reads what trains and leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import groupwise
from groupwise.training import checkpoint
from tests.runs.test_environment_run import CHANGES as EPISODES
from tests.runs.tiny_runs import laid_over, step_rows, tiny_run

#: What each run has that the others do not; most of it keeps something between steps that an evaluation could touch.
RUNS: dict[str, dict[str, Any]] = {
    "turns of tokens, ahead": {"rollout.ahead": 1, "rollout.turn_tokens": 2, "learner.learning_rate": 1e-3},
    "surplus groups": {"algorithm.name": "dapo", "learner.learning_rate": 1e-3},
}
EPISODE: dict[str, Any] = {**EPISODES, "checkpoint.every": 3}
SLOW: dict[str, dict[str, Any]] = {
    "plain": {},
    "episodes": EPISODE,
    "a critic": {"algorithm.name": "ppo", "learner.learning_rate": 1e-3},
    "ranks": {"learner.ranks": 2},
    "an engine in a child": {"engine.process": "child"},
    "episodes, ahead": {**EPISODE, "rollout.ahead": 1},
}


@pytest.mark.parametrize("name", [*RUNS, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_a_run_with_and_without_evaluations_has_the_same_bits(name: str, tmp_path: Path) -> None:
    own = {"steps": 3, "checkpoint.every": 3, **{**RUNS, **SLOW}[name]}
    settings = laid_over(tiny_run(tmp_path), own)
    none = {key: value for key, value in settings.items() if not key.startswith("evaluation.")}
    without = groupwise.train("quickstart", {**none, "evaluation": {"problems": 0}, "name": "without"}).folder
    every = {"evaluation.every": 1, "evaluation.problems": 3, "evaluation.samples": 4, "name": "with"}
    having = groupwise.train("quickstart", {**settings, **every}).folder
    evaluated = [json.loads(line) for line in (having / "metrics.jsonl").read_text().splitlines() if "avg_at_k" in line]
    assert len(evaluated) > own["steps"]
    assert rows(without) == rows(having)
    assert (without / "rollouts.jsonl").read_bytes() == (having / "rollouts.jsonl").read_bytes()
    last = [checkpoint.folder_of(folder / checkpoint.CHECKPOINTS, own["steps"]) for folder in (without, having)]
    first, second = ({str(p.relative_to(at)): p.read_bytes() for p in files(at)} for at in last)
    assert first == second


def rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of steps without what the clock has to do with."""
    return [{key: value for key, value in row.items() if "seconds" not in key} for row in step_rows(folder)]


def files(folder: Path) -> list[Path]:
    """The files of a checkpoint, without those that hold how long the run took."""
    return [p for p in folder.rglob("*") if p.is_file() and p.name not in ("state.json", checkpoint.MANIFEST)]
