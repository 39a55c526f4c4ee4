"""Experiments that train: one row a run, the same run again from its seed, and what is wrong said in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from groupwise.claims.claim import Effort, Experiment
from groupwise.claims.trained import trained
from groupwise.core.errors import RunError

SEEDS = {Effort.STANDARD: 1}
TINY: dict[str, object] = {
    "steps": 2,
    "prompts_per_step": 4,
    "samples_per_prompt": 4,
    "updates_per_batch": 2,
    "warm_start.steps": 5,
    "warm_start.batch_size": 8,
    "warm_start.demonstrations": 50,
    "sampling.max_new_tokens": 8,
    "evaluation.problems": 4,
    "evaluation.samples": 1,
    "evaluation.every": 1,
}


def tiny(name: str = "a/run", **keys: object) -> Experiment:
    return trained(name, "quickstart", {**TINY, **keys}, SEEDS)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="module")
def measured(work: Path) -> dict[str, Any]:
    return dict(tiny().measure(0, work))


def test_a_run_becomes_numbers_and_leaves_no_folder(measured: dict[str, Any], work: Path) -> None:
    assert [step for step, _ in measured["heldout"]] == [0, 1, 2]
    assert len(measured["curves"]["length_mean"]) == 2
    assert measured["memory_peak_mib"] > 100
    assert "variance_above" in measured
    assert not list(work.glob("a-run-*"))


def test_the_same_seed_gives_the_same_numbers(measured: dict[str, Any], work: Path) -> None:
    """All but what the machine decides."""
    again = dict(tiny().measure(0, work))
    costs = {name for name in measured if name.startswith(("seconds", "memory"))}
    assert {k: v for k, v in again.items() if k not in costs} == {k: v for k, v in measured.items() if k not in costs}


def test_another_key_another_recipe_and_another_reading_are_other_experiments(monkeypatch: pytest.MonkeyPatch) -> None:
    same, other = tiny(), tiny(steps=3)
    assert same.fingerprint == tiny("b").fingerprint != other.fingerprint
    assert trained("a", "reasoning-gym", TINY, SEEDS).fingerprint != same.fingerprint
    monkeypatch.setattr("groupwise.claims.readings.VERSION", 0)
    assert tiny().fingerprint != same.fingerprint


def test_runs_of_one_seed_share_their_warm_start(measured: dict[str, Any], work: Path) -> None:
    made = list((work / ".cache").glob("*"))
    other = dict(tiny("b", **{"algorithm.name": "gspo"}).measure(0, work))
    assert other["heldout"][0] == measured["heldout"][0]
    assert list((work / ".cache").glob("*")) == made
    assert len(made) == 1


def test_a_run_that_fails_says_why_in_one_line(work: Path) -> None:
    with pytest.raises(RunError, match="there is no such algorithm") as refusal:
        tiny("c", **{"algorithm.name": "grop"}).measure(0, work)
    assert "\n" not in str(refusal.value)
