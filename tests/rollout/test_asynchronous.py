"""An engine that goes on sampling: whatever the clock does, groups train in order, each once, and none too old."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import pytest

from groupwise.algorithms.parts.filters import DropUniform, KeepAll
from groupwise.core.engine import Request, Sampling
from groupwise.core.errors import RunError
from groupwise.rollout.batches import AsynchronousBatches
from tests.rollout.made import IMPOSSIBLE, ByLengths, keys, rollout_of, saved

LIMIT, WANTED = 16, 5


class Lazy(ByLengths):
    """One whose calls take between nothing and a few milliseconds, and that counts the groups it begins."""

    def __init__(self, seconds: float, seed: int = 0) -> None:
        super().__init__()
        self._seconds, self._lot = seconds, random.Random(seed)
        self.groups_begun: list[int] = []

    def generate(self, requests: Sequence[Request], sampling: Sampling, on_finish: Any = None) -> Any:
        self.groups_begun.append(sum(r.drawn == 0 for r in requests))
        version = self.version
        time.sleep(self._seconds * self._lot.random())
        assert self.version == version, "weights were loaded in the middle of a turn"
        return super().generate(requests, sampling, on_finish)


def trained(batches: AsynchronousBatches, engine: Lazy, steps: range, training: float, lag: int) -> list[str]:
    """The keys of the groups that these steps train, in order; training takes up to so many seconds."""
    lot, order = random.Random(1), []
    for step in steps:
        sampled = batches.take(WANTED)
        result = sampled.result
        assert len(result.groups) == WANTED
        assert all(step - 1 - c.version <= lag for g in result.groups for c in g.completions)
        assert engine.version == step - 1
        order += keys(result.groups)
        if step < steps[-1]:
            batches.begin(WANTED)
            time.sleep(training * lot.random())
        batches.finish()
        engine.version = step
    return order


@pytest.mark.parametrize("filter", [KeepAll(), DropUniform(max_rounds=20)], ids=repr)
@pytest.mark.parametrize("tokens", [None, 4])
@pytest.mark.parametrize(("sampling", "training"), [(0.0, 0.004), (0.004, 0.0), (0.003, 0.003)])
@pytest.mark.parametrize("lag", [1, 3])
def test_groups_train_in_the_order_of_their_draws_and_are_never_too_old(
    filter: Any, tokens: int | None, sampling: float, training: float, lag: int
) -> None:
    engine = Lazy(sampling)
    batches = AsynchronousBatches(rollout_of(engine, LIMIT, tokens, filter), lag)
    order = trained(batches, engine, range(1, 16), training, lag)
    whole = rollout_of(ByLengths(), LIMIT, None, filter)
    assert order == [key for _ in range(15) for key in keys(whole.collect(WANTED).groups)]
    batches.close()


def test_no_more_is_begun_than_can_train_in_time() -> None:
    """An engine that is always done first: B (1 + lag) groups before the first step, then B a step."""
    engine = Lazy(0.0)
    batches = AsynchronousBatches(rollout_of(engine, LIMIT, None), 2)
    for step in range(1, 6):
        batches.take(WANTED)
        batches.begin(WANTED)
        time.sleep(0.05)
        batches.finish()
        assert sum(engine.groups_begun) == WANTED * (step + 2)
        engine.version = step
    batches.close()


def test_what_waits_and_what_has_not_ended_is_saved_and_trains_once() -> None:
    engine = Lazy(0.002)
    batches = AsynchronousBatches(rollout_of(engine, LIMIT, 4, DropUniform(max_rounds=20)), 2)
    first = trained(batches, engine, range(1, 6), 0.004, lag=2)
    state = saved(batches.state)
    batches.close()
    assert state.begun
    engine = Lazy(0.002, seed=9)
    engine.version = 5
    again = AsynchronousBatches(rollout_of(engine, LIMIT, 4, DropUniform(max_rounds=20)), 2)
    again.state = state
    later = trained(again, engine, range(6, 11), 0.0, lag=2)
    whole = rollout_of(ByLengths(), LIMIT, None, DropUniform(max_rounds=20))
    assert [*first, *later] == [key for _ in range(10) for key in keys(whole.collect(WANTED).groups)]
    again.close()


def test_a_task_without_signal_trains_what_there_is_once_the_budget_is_spent() -> None:
    engine = Lazy(0.0)
    batches = AsynchronousBatches(rollout_of(engine, LIMIT, None, DropUniform(max_rounds=3), IMPOSSIBLE), 1)
    result = batches.take(WANTED).result
    assert result.fallback == len(result.groups) == WANTED
    assert result.dropped >= 3 * WANTED
    batches.close()


@pytest.mark.parametrize("waits", ["take", "finish"])
def test_what_goes_wrong_beside_training_is_raised_where_the_step_waits(waits: str) -> None:
    engine = Lazy(0.0)
    batches = AsynchronousBatches(rollout_of(engine, LIMIT, 4), 3)
    if waits == "finish":
        batches.take(WANTED)
        engine.version = 1  # more may be begun then

    def broken(*given: Any) -> Any:
        raise RunError("the engine is lost")

    engine.generate = broken  # type: ignore[method-assign]
    if waits == "finish":
        batches.begin(WANTED)
        time.sleep(0.05)
    with pytest.raises(RunError, match="the engine is lost"):
        batches.take(WANTED) if waits == "take" else batches.finish()
    batches.close()


def test_sampling_lies_beside_training_and_says_when() -> None:
    engine = Lazy(0.0)
    batches = AsynchronousBatches(rollout_of(engine, LIMIT, 4), 2)
    assert 0 < (batches.take(WANTED).ahead_seconds or 0) < 1
    batches.take_extents()
    engine.version = 1  # more may be begun then
    began = time.perf_counter()
    batches.begin(WANTED)
    time.sleep(0.05)
    batches.finish()
    extents = batches.take_extents()
    assert {"generate", "score"} <= extents.keys()
    assert began <= extents["generate"].begin < extents["score"].end <= time.perf_counter()
    engine.version = 2
    spent = batches.take(WANTED).ahead_seconds or 0
    assert spent <= extents["score"].end - extents["generate"].begin
    batches.close()
