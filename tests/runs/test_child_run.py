"""A run whose engine has a process of its own is the run with the engine inside, to the bit, also where it dies."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import groupwise
from groupwise.commands.train.train import resume
from tests.runs.test_run import assert_same_run
from tests.runs.tiny_runs import cut_back, own_processes, rollouts, step_rows, tiny_run
from tests.warm import warm_starts

SERVER = "groupwise.engines.outside.server"


@pytest.fixture(scope="module", autouse=True)
def _forked() -> Iterator[None]:
    with warm_starts():
        yield


def engine_processes() -> list[int]:
    return own_processes(SERVER)


class Kills:
    """A callback: after some of the steps, a moment later, the engine's process is killed."""

    def __init__(self, steps: set[int], seed: int) -> None:
        self._steps, self._random = steps, random.Random(seed)
        self.pids: list[int] = []
        self._threads: list[threading.Thread] = []

    def __call__(self, record: Any) -> None:
        if record.step in self._steps:
            thread = threading.Thread(target=self._kill, args=(self._random.uniform(0.0, 0.03),))
            thread.start()
            self._threads.append(thread)

    def _kill(self, seconds: float) -> None:
        time.sleep(seconds)
        for pid in engine_processes():
            os.kill(pid, signal.SIGKILL)
            self.pids.append(pid)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()


def lost(run: Path) -> list[str]:
    return [line for line in (run / "log.txt").read_text().splitlines() if "its process is lost" in line]


def trained(place: Path, name: str, callbacks: Any = (), **changes: Any) -> Path:
    return groupwise.train("quickstart", tiny_run(place, name=name, **changes), callbacks=callbacks).folder


def test_a_run_with_two_engines_has_the_completions_of_one(tmp_path: Path) -> None:
    """Of the same weights: what they are after an update is up to rounding, as log-probabilities are."""
    one = trained(tmp_path, "one", steps=1)
    two = trained(tmp_path, "two", steps=1, engine__process="child", engine__count=2)
    texts = [[(row["key"], row["completion"]) for row in rollouts(run)] for run in (one, two)]
    assert texts[0] == texts[1]
    assert len(texts[0]) > 20
    metrics = [step_rows(run)[0] for run in (one, two)]
    for name in ("pass_rate", "loss", "gradient_norm", "length_mean", "generated_tokens"):
        assert metrics[0][name] == pytest.approx(metrics[1][name], rel=1e-4, abs=1e-7)


def test_grpo_with_its_engine_killed_ends_with_the_bits_of_the_run_inside(tmp_path: Path) -> None:
    changes = {"steps": 4, "algorithm__name": "grpo", "evaluation__every": 2}
    inside = trained(tmp_path, "inside", **changes)
    kills = Kills({2}, seed=0)
    child = trained(tmp_path, "child", [kills], engine__process="child", **changes)
    kills.join()
    assert len(kills.pids) == len(lost(child)) == 1
    assert_same_run(inside, child)
    assert not engine_processes()


@pytest.mark.slow
def test_dapo_in_another_interpreter_resumes_with_the_bits_of_the_run_inside(tmp_path: Path) -> None:
    """The interpreter is this one, told as another: it gets groupwise from the run, and its libraries from its own."""
    changes = {"steps": 4, "algorithm__name": "dapo", "sampling__top_p": 0.95, "learner__learning_rate": 1e-3}
    inside = trained(tmp_path, "inside", **changes)
    child = trained(tmp_path, "child", engine__process="child", engine__python=sys.executable, **changes)
    assert_same_run(inside, child)
    cut_back(child, 2)
    assert resume(child).finished
    assert_same_run(inside, child)
    assert not lost(child)
    assert not engine_processes()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grpo", "dapo"])
def test_ten_kills_of_the_engine_at_random_moments(name: str, tmp_path: Path) -> None:
    changes = {"steps": 25, "algorithm__name": name, "learner__learning_rate": 1e-3}
    inside = trained(tmp_path, "inside", **changes)
    kills = Kills(set(range(2, 22, 2)), seed=1)
    child = trained(tmp_path, "child", [kills], engine__process="child", **changes)
    kills.join()
    assert len(kills.pids) == len(lost(child)) == 10
    assert_same_run(inside, child)
