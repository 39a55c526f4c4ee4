"""A sleep of the engine while the learner trains: who sleeps, what is refused, and that no bit of a run changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import groupwise
from groupwise.config import recipe
from groupwise.config.resolve import resolve
from groupwise.core.errors import UsageError
from groupwise.engines.local.engine import LocalEngine
from groupwise.engines.settings import EngineSettings
from groupwise.journal.journal import read_metrics
from tests.runs.test_run import timeless
from tests.runs.tiny_runs import tiny_run, weights_after


@pytest.mark.parametrize(
    ("settings", "on_gpu", "beside", "sleeps"),
    [
        ({}, True, False, False),
        ({"process": "child"}, True, False, False),
        ({"process": "child", "sleep": True}, True, False, True),
        ({"name": "vllm", "process": "child"}, True, False, True),
        ({"name": "vllm", "process": "child"}, False, False, False),
        ({"name": "vllm", "process": "child"}, True, True, False),
        ({"name": "vllm", "process": "child", "sleep": False}, True, False, False),
        ({"address": "far:1"}, True, False, False),
        ({"sleep": True}, False, False, True),
    ],
)
def test_by_itself_vllm_on_the_gpu_of_the_run_sleeps(
    settings: dict[str, Any], on_gpu: bool, beside: bool, sleeps: bool
) -> None:
    assert EngineSettings(**settings).sleeps(on_gpu, beside) is sleeps


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"rollout.ahead": 1}, r"^engine.sleep = true: with rollout.ahead = 1 the engine samples while the learner"),
        ({"rollout.free": 2}, r"^engine.sleep = true: with rollout.free = 2 the engine samples while the learner"),
        ({"engine.address": "far:1"}, r"^engine.sleep: set, but nothing in this run reads it"),
    ],
    ids=repr,
)
def test_a_sleep_that_cannot_be_is_refused(keys: dict[str, Any], words: str) -> None:
    resolve(recipe.load("quickstart", {**keys, "engine.sleep": "auto"} if "engine.address" not in keys else keys))
    with pytest.raises(UsageError, match=words):
        resolve(recipe.load("quickstart", {**keys, "engine.sleep": True}))


def test_a_run_whose_engine_sleeps_has_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[int] = []
    real = LocalEngine.sleep
    monkeypatch.setattr(LocalEngine, "sleep", lambda self: (slept.append(self.version), real(self)))
    runs = [
        groupwise.train("quickstart", tiny_run(tmp_path, steps=2, name=name, **{"engine.sleep": sleep}))
        for name, sleep in (("awake", False), ("asleep", True))
    ]
    assert slept == [0, 1], "once a step, before the new weights"
    assert timeless(runs[0].folder) == timeless(runs[1].folder)
    assert weights_after(runs[0].folder, 2) == weights_after(runs[1].folder, 2)
    counts = [sum("sleep" in row["seconds"] for row in read_metrics(run.folder)) for run in runs]
    assert counts == [0, 2]
