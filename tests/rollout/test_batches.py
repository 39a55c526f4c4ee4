"""Batches that are sampled while the one before trains: the same ones, at the same versions, beside other work."""

from __future__ import annotations

import dataclasses
import threading
import time
from typing import Any

import pytest

from groupwise.algorithms.parts.filters import DropUniform
from groupwise.core.errors import RunError
from groupwise.core.stream import Sampled
from groupwise.rollout.batches import Batches
from groupwise.rollout.collect import Rollout
from tests.engines.outside.made import fields
from tests.rollout.made import make, saved

WANTED = 4
#: Seconds after which what is waited for will never come.
HANGS = 60.0


class Slow:
    """The real engine, which takes a while longer, as one elsewhere does."""

    def __init__(self, engine: Any, seconds: float) -> None:
        self._engine, self._seconds = engine, seconds
        self.asked_in: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def generate(self, requests: Any, sampling: Any, on_finish: Any = None) -> Any:
        self.asked_in.append(threading.current_thread().name)
        time.sleep(self._seconds)
        return self._engine.generate(requests, sampling, on_finish)


def slowed(policy: Any, seconds: float) -> Rollout:
    rollout = make(policy, DropUniform())
    rollout.engine = Slow(rollout.engine, seconds)
    return rollout


def of_steps(rollout: Rollout, ahead: int, steps: int) -> list[Sampled]:
    """The batches of a run's steps."""
    batches, taken = Batches(rollout, ahead), []
    for step in range(1, steps + 1):
        taken.append(dataclasses.replace(batches.take(WANTED), ahead_seconds=None))
        if step < steps:
            batches.begin(WANTED)
        batches.finish()
    return taken


def test_the_batches_are_those_that_are_sampled_in_turn(policy: Any) -> None:
    """With one set of weights ahead changes nothing but the time: draws, groups that wait, and order are the same."""
    together, ahead = slowed(policy, 0.0), slowed(policy, 0.0)
    assert list(map(fields, of_steps(together, 0, 4))) == list(map(fields, of_steps(ahead, 1, 4)))
    assert {*together.engine.asked_in} == {threading.current_thread().name}  # type: ignore[attr-defined]
    assert ahead.engine.asked_in[0] == threading.current_thread().name  # type: ignore[attr-defined]
    assert "rollout ahead" in ahead.engine.asked_in[1:]  # type: ignore[attr-defined]
    assert together.state.cursor == ahead.state.cursor


class Held:
    """The real engine, which begins to answer when it is let go on, and says when it has answered."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.asked, self.let_go, self.answered = (threading.Event() for _ in range(3))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def generate(self, requests: Any, sampling: Any, on_finish: Any = None) -> Any:
        self.asked.set()
        assert self.let_go.wait(HANGS), "what it waits for never came"
        finished = self._engine.generate(requests, sampling, on_finish)
        self.answered.set()
        return finished


@pytest.mark.parametrize("longer", ["sampling", "training"])
def test_a_batch_is_sampled_while_a_step_trains_whichever_takes_longer(policy: Any, longer: str) -> None:
    """The learner trains all of its step with the engine at work, and the engine ends with the learner at work."""
    rollout = make(policy, DropUniform(max_rounds=1))
    rollout.engine = held = Held(rollout.engine)  # type: ignore[assignment]
    held.let_go.set()
    batches = Batches(rollout, 1)
    batches.take(WANTED)  # the first has nothing to run beside
    for event in (held.asked, held.let_go, held.answered):
        event.clear()
    batches.begin(WANTED)
    assert held.asked.wait(HANGS), "the engine is at work before the step has trained"
    assert not held.answered.is_set()
    if longer == "training":
        held.let_go.set()
        assert held.answered.wait(HANGS), "the engine ends while the step trains, and waits for no one"
    else:
        threading.Timer(0.05, held.let_go.set).start()  # the step has trained
    batches.finish()
    held.let_go.clear()  # an engine that is asked once more would hang
    held.asked.clear()
    assert len(batches.take(WANTED).result.groups) == WANTED
    assert not held.asked.is_set()


@pytest.mark.slow
def test_a_step_takes_as_long_as_the_longer_of_sampling_and_training(policy: Any) -> None:
    for sampling, training in ((0.3, 0.2), (0.2, 0.3)):
        rollout = slowed(policy, sampling)
        rollout.filter = DropUniform(max_rounds=1)
        batches = Batches(rollout, 1)
        batches.take(WANTED)  # the first has nothing to run beside
        seconds = []
        for _ in range(3):
            began = time.perf_counter()
            batches.begin(WANTED)
            time.sleep(training)
            batches.finish()
            batches.take(WANTED)
            seconds.append(time.perf_counter() - began)
        assert min(seconds) < 1.1 * max(sampling, training) + 0.02


def test_a_batch_that_waits_is_saved_and_comes_back_with_its_step(policy: Any) -> None:
    batches = Batches(make(policy, DropUniform()), 1)
    batches.take(WANTED)
    batches.begin(WANTED)
    batches.finish()
    state = saved(batches.state)
    again = Batches(make(policy, DropUniform()), 1)
    again.state = state
    for _ in range(2):
        one, other = batches.take(WANTED), again.take(WANTED)
        assert fields(one) == fields(other)
        result = other.result
        known = {id(group) for group in other.every}
        assert {id(g) for g in (*result.groups, *result.generated, *result.surplus)} == known
        assert len(other.every) == len(known)
    assert Batches(make(policy, DropUniform()), 1).state.ahead is None


def test_what_goes_wrong_ahead_is_raised_where_the_batch_is_waited_for(policy: Any) -> None:
    rollout = make(policy, DropUniform())
    batches = Batches(rollout, 1)
    batches.take(WANTED)
    rollout.engine.close()
    batches.begin(WANTED)
    with pytest.raises(RunError, match="the engine is closed"):
        batches.finish()
    batches.close()
