"""What a worker writes is data from a stranger: a user's function can write to its connection whatever it likes."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from groupwise.core.channel import FrameError, pack
from groupwise.core.errors import UsageError
from groupwise.core.samples import Attempt, Cause, Sample, ScoreResult
from groupwise.rewards.pool.pool import Pool
from groupwise.rewards.pool.work import Limits, results_of
from tests.rewards.pool.test_reward_pool import attempts, left, own, score

__all__ = ["left"]

linux = pytest.mark.skipif(sys.platform != "linux", reason="descriptors are found in /proc")

WRITES = """
import os, socket, stat, time
def f(attempt):
    if attempt.completion == "good":
        return 1.0
    for descriptor in range(3, 256):
        try:
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            with socket.socket(fileno=os.dup(descriptor)) as line:
                line.sendall(bytes.fromhex(attempt.completion))
        except OSError:
            continue
    time.sleep(0.3)
    return 0.5
"""
GOOD = [1.0, None, "", {}, {}, 1]
#: What is written, and none of it may reach more than the completion that wrote it.
FRAMES: dict[str, bytes] = {
    "no JSON": (4).to_bytes(4, "big") + b"\0\1\2\3",
    "a length above the limit": b"\xff" * 4 + b"x" * 100,
    "an array": (2).to_bytes(4, "big") + b"[]",
    "an unknown word": pack({"do": "this"}),
    "a type": pack({"loaded": 3}),
    "results of another type": pack({"results": {"a": 1}}),
    "more results than it was given": pack({"results": [GOOD] * 50}),
    "a score that is text": pack({"results": [["1", None, "", {}, {}, 1]]}),
    "an unknown cause": pack({"results": [[1.0, "bored", "", {}, {}, 1]]}),
    "a column that is a list": pack({"results": [[1.0, None, "", {"a": [1]}, {}, 1]]}),
    "a failure without a result": pack({"failed": True}),
    "nested": (200_000).to_bytes(4, "big") + b"[" * 200_000,
}


@linux
def test_what_a_worker_should_not_write_costs_its_own_completion(tmp_path: Path, left: Callable[[], list[int]]) -> None:
    given = attempts(*[text for frame in FRAMES.values() for text in ("good", frame.hex())], "good")
    with Pool({"mine": own(tmp_path, WRITES)}, Limits(workers=2, seconds=5.0)) as pool:
        results = score(pool, "mine", given)
    assert [result.value for result in results[::2]] == [1.0] * (len(FRAMES) + 1)
    causes = dict(zip(FRAMES, (result.cause for result in results[1::2]), strict=True))
    assert causes == dict.fromkeys(FRAMES, Cause.CRASH)


@linux
def test_one_that_writes_without_end_is_ended(tmp_path: Path, left: Callable[[], list[int]]) -> None:
    endless = WRITES.replace(
        "line.sendall(bytes.fromhex(attempt.completion))", "[line.sendall(b'z' * 2**20) for _ in iter(int, 1)]"
    )
    with Pool({"mine": own(tmp_path, endless)}, Limits(workers=1, seconds=5.0)) as pool:
        results = score(pool, "mine", attempts("good", "writes", "good"))
    assert [result.cause for result in results] == [None, Cause.CRASH, None]


@pytest.mark.parametrize(
    "said", [None, {}, [1], [[1.0]], [[True, None, "", {}, {}]], [["1", None, "", {}, {}, 1]],
             [[1.0, "bored", "", {}, {}, 1]], [[1.0, None, "", {}, {"a": 1.0}, 1]],
             [[1.0, None, "", {}, {"a": ["1"]}, 1]], [[1.0, None, None, {}, {}, 1]]], ids=repr,
)  # fmt: skip
def test_what_is_no_result_is_refused(said: Any) -> None:
    with pytest.raises(FrameError, match=r"^what is no (result|list of results)"):
        results_of(said)


def test_a_result_comes_as_it_was_said() -> None:
    said = [
        [0.5, None, "", {"a": "b", "c": 1.0, "d": None}, {"m": [1.0, 2]}, 3],
        [float("nan"), "timeout", "late", {}, {}, 1],
    ]
    first, second = results_of(json.loads(json.dumps(said)))
    assert first == ScoreResult(0.5, None, "", {"a": "b", "c": 1.0, "d": None}, {"m": [1.0, 2]}, 3)
    assert (second.votes, second.cause, second.detail) == (False, Cause.TIMEOUT, "late")


def test_a_sample_that_no_process_can_have_is_one_line(tmp_path: Path) -> None:
    sample = Sample("k", "p", "a", {"lock": threading.Lock()})
    with (
        Pool({"mine": own(tmp_path, "def f(attempt): return 1.0\n")}, Limits(workers=1)) as pool,
        pytest.raises(UsageError) as refused,
    ):
        score(pool, "mine", [Attempt(sample, "good")])
    words = "a value of type lock; hold text, numbers, lists or tables instead"
    assert str(refused.value) == f"rewards: what mine is given cannot be sent to another process: {words}"


def test_a_reward_is_given_what_a_sample_holds(tmp_path: Path) -> None:
    mine = own(
        tmp_path,
        "def f(sample, completion):\n    e = sample.extra\n"
        "    assert type(e['pair']) is tuple and e['pair'] == (1, 2)\n"
        "    e['array'][0] = 5\n    return float(e['array'].sum() + e['tensor'].sum() + e['keys'][1])\n",
    )
    import numpy as np
    import torch

    extra = {"pair": (1, 2), "array": np.arange(3), "tensor": torch.ones(2), "keys": {1: 0.5}}
    with Pool({"mine": mine}, Limits(workers=1)) as pool:
        (result,) = score(pool, "mine", [Attempt(Sample("k", "p", "a", extra), "good")])
    assert (result.value, result.detail) == (10.5, "")
