"""A run over two ranks is the run of one process up to rounding, and ends in one line where the other rank is lost."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import groupwise
from groupwise.commands.ranks import MODULE
from groupwise.commands.train import resume
from groupwise.core.errors import RunError, UsageError
from groupwise.journal.journal import read_metrics
from groupwise.training import checkpoint
from tests.moe_policy import save_moe
from tests.runs.tiny_runs import cut_back, own_processes, tiny_run, weights_after

#: A rate at which rounding does not grow from step to step.
CHANGES: dict[str, Any] = {"steps": 3, "learner__learning_rate": 1e-3, "algorithm__name": "ppo"}


def other_ranks() -> list[int]:
    """The processes of other ranks that this one has started and that live."""
    return own_processes(MODULE)


class Signals:
    """A callback: after a step, and some time, the other rank gets a signal."""

    def __init__(self, number: int, step: int, seconds: float = 0.0) -> None:
        self._number, self._step, self._seconds = number, step, seconds

    def __call__(self, record: Any) -> None:
        if record.step == self._step:
            threading.Thread(target=self._send).start()

    def _send(self) -> None:
        time.sleep(self._seconds)
        for pid in other_ranks():
            os.kill(pid, self._number)


def trained(place: Path, name: str, callbacks: Any = (), **changes: Any) -> Path:
    return groupwise.train(
        "quickstart", tiny_run(place, name=name, **{**CHANGES, **changes}), callbacks=callbacks
    ).folder


def numbers(value: Any) -> Any:
    """What a row of metrics.jsonl says, without the time that it took."""
    if isinstance(value, dict):
        return {key: numbers(entry) for key, entry in value.items() if key != "seconds"}
    return value


def require_same(one: Path, other: Path) -> None:
    """The same metrics and rollouts, and the same files of policy and optimizer, to the byte."""
    assert [numbers(row) for row in read_metrics(one)] == [numbers(row) for row in read_metrics(other)]
    names = [sorted(p.relative_to(run) for p in (run / "checkpoints").rglob("*.safetensors")) for run in (one, other)]
    assert names[0] == names[1] != []
    for name in (*names[0], "rollouts.jsonl"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def require_near(one: Any, other: Any, where: str = "") -> None:
    """The same but for rounding, which the largest differences between two passes are made of."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            require_near(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, float) and isinstance(other, float) and not math.isnan(one):
        assert other == pytest.approx(one, rel=1e-3, abs=2e-5), where
    else:
        assert json.dumps(one) == json.dumps(other), where


def test_a_killed_rank_is_named_and_the_run_goes_on_to_the_metrics_of_one_process(tmp_path: Path) -> None:
    """PPO: policy, reference and critic are in shards; killed after the second step, resumed from its checkpoint."""
    alone = trained(tmp_path, "alone")
    with pytest.raises(RunError) as ended:
        trained(tmp_path, "over", [Signals(signal.SIGKILL, step=2)], learner__ranks=2)
    over = tmp_path / "runs" / "over"
    again = f"groupwise train --resume {over}"
    assert str(ended.value) == f"rank 1 of 2 ended: killed by SIGKILL; go on from the newest checkpoint with: {again}"
    assert not other_ranks()
    assert checkpoint.steps(over / "checkpoints")[-1] in (1, 2)
    assert resume(over).finished
    assert not other_ranks()
    rows = [[numbers(row) for row in read_metrics(run)] for run in (alone, over)]
    assert len(rows[0]) == len(rows[1]) == 5
    for one, other in zip(*rows, strict=True):
        require_near(one, other)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"learner__precision": "bf16"}, r"^learner.ranks = 2 with learner.precision: rounding cannot be measured"),
        ({"reference__every": 2}, r"^learner.ranks = 2 with reference.every: .* set it to 0, or learner.ranks to 1$"),
        ({"learner__compile": True}, r"^learner.ranks = 2 with learner.compile: "),
    ],
)
def test_what_is_not_there_yet_is_refused_in_one_line(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        trained(tmp_path, "refused", learner__ranks=2, **changes)
    assert not (tmp_path / "runs" / "refused").exists()


@pytest.mark.slow
def test_a_rank_that_stalls_is_named_within_the_deadline(tmp_path: Path) -> None:
    begin = time.monotonic()
    with pytest.raises(RunError, match=r"^rank 1 of 2 kept the others waiting for 2 seconds; go on from "):
        trained(tmp_path, "stalled", [Signals(signal.SIGSTOP, step=1)], learner__ranks=2, learner__rank_deadline=2.0)
    assert time.monotonic() - begin < 40
    assert not other_ranks()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dense", "adapters", "experts"])
def test_a_run_that_is_resumed_at_two_ranks_has_the_bits_of_one_that_never_stopped(tmp_path: Path, kind: str) -> None:
    own: dict[str, Any] = {"algorithm__name": "grpo", "learner__ranks": 2}
    if kind == "adapters":
        own["adapter__rank"] = 2
    if kind == "experts":
        own |= {"model": str(save_moe(tmp_path / "experts")), "routing__replay": "engine", "routing__load_balance": 0.1}
    whole, cut = (trained(tmp_path, part, **own) for part in ("whole", "cut"))
    require_same(whole, cut)
    cut_back(cut, 2)
    assert resume(cut).finished
    require_same(whole, cut)


@pytest.mark.slow
def test_a_run_goes_on_in_one_process_up_to_rounding(tmp_path: Path) -> None:
    alone, over = trained(tmp_path, "alone"), trained(tmp_path, "over", learner__ranks=2)
    cut_back(over, 2)
    assert resume(over, {"learner.ranks": 1}).finished
    for one, other in zip(*(read_metrics(run) for run in (alone, over)), strict=True):
        require_near(numbers(one), numbers(other))


@pytest.mark.slow
def test_a_rank_that_is_killed_at_any_moment_leaves_a_run_that_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    whole = trained(tmp_path, "whole", learner__ranks=2)
    moments = random.Random(0)
    for number in range(10):
        name, step, seconds = f"killed-{number}", moments.randint(1, 2), moments.uniform(0, 0.4)
        with pytest.raises(RunError, match=r"^rank 1 of 2 ended: killed by SIGKILL; go on from "):
            trained(tmp_path, name, [Signals(signal.SIGKILL, step, seconds)], learner__ranks=2)
        assert not other_ranks()
        assert resume(tmp_path / "runs" / name).finished
        assert weights_after(tmp_path / "runs" / name, 3) == weights_after(whole, 3)
