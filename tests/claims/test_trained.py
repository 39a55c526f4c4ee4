"""Experiments that train: one row a run, the same run again from its seed, and what is wrong said in one line."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from groupwise.claims.experiments import COSTS, Effort, Experiment, trained
from groupwise.core.errors import RunError
from groupwise.core.machine.facts import peak_bytes
from tests.runs.tiny_runs import own_processes
from tests.warm import warm_starts

SEEDS = {Effort.STANDARD: 1}
#: Bytes, more than a tiny run holds.
LARGE = 1 << 30
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


@pytest.fixture
def forked(measured: dict[str, Any]) -> Iterator[None]:
    """Later runs in forks of one process that has imported everything; `measured` was in a fresh one."""
    with warm_starts():
        yield


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="module")
def measured(work: Path) -> dict[str, Any]:
    """Of a run that a large process starts."""
    held = bytearray(b"1") * LARGE
    numbers = dict(tiny().measure(0, work))
    assert len(held) == LARGE < peak_bytes()
    return numbers


def test_a_run_becomes_numbers_and_leaves_no_folder(measured: dict[str, Any], work: Path) -> None:
    assert [step for step, _ in measured["heldout"]] == [0, 1, 2]
    assert len(measured["curves"]["length_mean"]) == 2
    assert measured["memory_peak_mib"] > 100
    assert "variance_above" in measured
    assert not list(work.glob("a-run-*"))


def test_a_runs_memory_is_its_own(measured: dict[str, Any]) -> None:
    """And not that of the process which started it."""
    assert measured["memory_peak_mib"] < LARGE / 2**20


@pytest.mark.skipif(sys.platform != "linux", reason="the most that was held can be counted anew on Linux alone")
@pytest.mark.slow
def test_the_run_that_makes_the_starting_policy_has_the_memory_of_one_that_finds_it(tmp_path: Path) -> None:
    """The first condition of a seed would look large beside the others, for the same training."""
    keys = {**TINY, "warm_start.steps": 2, "warm_start.batch_size": 1024, "warm_start.demonstrations": 1024}
    large = trained("a/run", "quickstart", keys, SEEDS)
    makes, finds = (dict(large.measure(0, tmp_path))["memory_peak_mib"] for _ in range(2))
    assert makes == pytest.approx(finds, rel=0.1)


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_what_a_kill_left_is_gone_on_with_and_gives_the_same_numbers(measured: dict[str, Any], work: Path) -> None:
    """All but what the machine decides."""
    killing = threading.Thread(target=kill_after_the_first_evaluation, args=(work,))
    killing.start()
    with pytest.raises(RunError, match=r"it ended: killed by SIGKILL; .* is resumed the next time"):
        tiny("killed").measure(0, work)
    killing.join()
    assert len(list(work.glob("killed-*"))) == 1
    again = dict(tiny("killed").measure(0, work))
    assert not list(work.glob("killed-*"))
    assert {k: v for k, v in again.items() if k not in COSTS} == {k: v for k, v in measured.items() if k not in COSTS}


def kill_after_the_first_evaluation(work: Path) -> None:
    """The process of the run, which the system knows by the folder in its command."""
    while not any(path.stat().st_size for path in work.glob("killed-*/metrics.jsonl")):
        time.sleep(0.005)
    for process in own_processes("killed-"):
        os.kill(process, signal.SIGKILL)


def test_another_key_another_recipe_and_another_reading_are_other_experiments(monkeypatch: pytest.MonkeyPatch) -> None:
    same, other = tiny(), tiny(steps=3)
    assert same.fingerprint == tiny("b").fingerprint != other.fingerprint
    assert trained("a", "reasoning-gym", TINY, SEEDS).fingerprint != same.fingerprint
    monkeypatch.setattr("groupwise.claims.readings.VERSION", 0)
    assert tiny().fingerprint != same.fingerprint


@pytest.mark.usefixtures("forked")
def test_runs_of_one_seed_share_their_warm_start(measured: dict[str, Any], work: Path) -> None:
    made = list((work / ".cache").glob("*"))
    other = dict(tiny("b", **{"algorithm.name": "gspo"}).measure(0, work))
    assert other["heldout"][0] == measured["heldout"][0]
    assert list((work / ".cache").glob("*")) == made
    assert len(made) == 1


@pytest.mark.usefixtures("forked")
def test_a_run_that_fails_says_why_in_one_line(work: Path) -> None:
    with pytest.raises(RunError, match="there is no such algorithm") as refusal:
        tiny("c", **{"algorithm.name": "grop"}).measure(0, work)
    assert "\n" not in str(refusal.value)
