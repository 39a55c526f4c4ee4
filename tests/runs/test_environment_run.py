"""Runs whose problems are played in turns: resumed to the bit, and with environments that fail."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import groupwise
from tests.runs.test_run import assert_goes_on, assert_same_run, kill_again_and_again
from tests.runs.tiny_runs import rollouts, step_rows

ENVIRONMENT = f"{Path(__file__).parent / 'environment_of_a_run.py'}:Sum"
CHANGES: dict[str, Any] = {
    "seed": 1,
    "steps": 4,
    "model": "tiny-dense",
    "warm_start.steps": 0,
    "prompts_per_step": 6,
    "samples_per_prompt": 4,
    "updates_per_batch": 1,
    "sampling.stop": ["\n"],
    "sampling.max_new_tokens": 24,
    "task": {"name": "environment", "use": ENVIRONMENT, "max_turns": 3, "turn_tokens": 4},
    "evaluation.problems": 3,
    "evaluation.samples": 2,
    "evaluation.every": 0,
    "checkpoint.every": 1,
    "checkpoint.keep": 9,
    "journal.report": False,
    "scoring.workers": 2,
    "scoring.deadline": 1.0,
}


def changes(place: Path, **more: Any) -> dict[str, Any]:
    dotted = {key.replace("__", "."): value for key, value in more.items()}
    return {**CHANGES, "runs": str(place), **dotted}


def test_a_run_of_a_users_own_environment_goes_on_to_the_bit(tmp_path: Path) -> None:
    """With the file that it began with, whatever becomes of it."""
    own = tmp_path / "mine.py"
    shutil.copy(ENVIRONMENT.rpartition(":")[0], own)
    task = {**CHANGES["task"], "use": f"{own}:Sum"}
    whole = groupwise.train("quickstart", {**changes(tmp_path, name="whole"), "task": task}).folder
    lines = rollouts(whole)
    assert max(len(line["turns"]) for line in lines) == 3
    assert all(line["ended"] in ("done", "turns", "tokens") for line in lines)
    own.unlink()
    assert_goes_on(whole, 3, 2)


ONE_STEP = {"steps": 1, "prompts_per_step": 18, "scoring.fault_limit": 0.5}


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return groupwise.train("quickstart", {**changes(tmp_path_factory.mktemp("clean")), **ONE_STEP}).folder


SLOW = ("garbage", "flood", "exit", "leave")


@pytest.mark.parametrize(
    "fault", ["raise", "hang", "crash", *(pytest.param(fault, marks=pytest.mark.slow) for fault in SLOW)]
)
def test_a_fault_is_counted_by_cause_and_nothing_else_of_the_step_is_lost(
    fault: str, clean: Path, tmp_path: Path
) -> None:
    task = {**CHANGES["task"], "settings": {"fault": fault, "on": "2+1"}}
    run = groupwise.train("quickstart", {**changes(tmp_path), **ONE_STEP, "task": task}).folder
    if fault == "leave":  # processes that it leaves behind are no fault, and end with the pool
        assert_same_run(run, clean)
        return
    causes = {"hang": "timeout", "crash": "crash", "garbage": "wrong type", "flood": "too large"}
    cause = causes.get(fault, "exception")
    (metrics,) = step_rows(run)
    faulty = [line for line in rollouts(run) if line["ended"] == "fault"]
    assert metrics["ended.fault"] == metrics[f"turn_faults.{cause}"] == len(faulty) > 0
    assert {line["key"] for line in faulty} == {"2+1"}
    assert all(line["score"] is None for line in faulty)
    for line, other in zip(rollouts(run), rollouts(clean), strict=True):
        if line["ended"] != "fault":
            assert (line["completion"], line["turns"][-1]["stop"]) == (other["completion"], other["turns"][-1]["stop"])
            assert [t["reward"] for t in line["turns"]] == [t["reward"] for t in other["turns"]]
    assert (run / "log.txt").read_text().count(f"step 1: {cause} in ") == 1, "one kind, and the environment's"


@pytest.mark.parametrize("rollout", [{"rollout.ahead": 1}, {"rollout.free": 2}])
def test_episodes_may_be_played_while_the_learner_trains(rollout: dict[str, int], tmp_path: Path) -> None:
    folder = groupwise.train("quickstart", {**changes(tmp_path), **rollout}).folder
    last = step_rows(folder)[-1]
    assert {check["verdict"] for check in last["checks"].values()} <= {"pass", "not measured"}
    assert last["turns_max"] == 3


@pytest.mark.slow
def test_ten_kills_and_resumes_during_episodes(tmp_path: Path) -> None:
    more = {"steps": 24, "prompts_per_step": 16, "threads": 1}
    whole = groupwise.train("quickstart", {**changes(tmp_path, name="whole"), **more}).folder
    cut = kill_again_and_again({**changes(tmp_path, name="cut"), **more}, 10, seed=5)
    assert_same_run(whole, cut)
    assert json.loads((cut / "summary.json").read_text())["steps"] == 24
