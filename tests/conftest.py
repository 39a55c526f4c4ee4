"""What the tests share: a tiny random policy, and a recipe that trains in seconds."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import groupwise
from groupwise.models.load import Policy, load_policy
from groupwise.models.tiny import TinySpec

# A job that a shell runs in the background ignores Ctrl-C, and one under nohup the end of its terminal; so would every
# run that a test stops by these.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

# Tensors here are tiny: a second thread costs more than it brings. Runs in processes of their own use the default.
torch.set_num_threads(1)

# What is imported and collected stays to the end: to look through it again and again took half of the collection.
gc.disable()


def pytest_collection_finish() -> None:
    """Leave what was collected out of every later search for garbage."""
    gc.freeze()
    gc.enable()


#: Imports verifiers, which an interpreter of its own has.
collect_ignore = ["rollout/gateway/taskset_that_counts.py"]

#: A run of seconds: sums of two small operands, a short warm start, four small steps.
SMALL: dict[str, Any] = {
    "steps": 4,
    "prompts_per_step": 8,
    "samples_per_prompt": 4,
    "updates_per_batch": 2,
    "task.operands": [2, 3],
    "task.largest": 4,
    "warm_start.steps": 30,
    "warm_start.demonstrations": 500,
    "sampling.max_new_tokens": 12,
    "evaluation.problems": 16,
    "evaluation.samples": 2,
    "evaluation.every": 0,
    "checkpoint.every": 1,
    "journal.report": False,
    "learner.learning_rate": 1e-3,
}


@pytest.fixture(scope="session", autouse=True)
def _unsynced() -> Iterator[None]:
    """Write no file through to the disk: that a machine loses its power is in no test, and a killed process loses none.

    Processes that tests start write through as users' do.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def policy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random tiny policy over the arithmetic alphabet, with large weights so that its distributions are uneven."""
    folder = tmp_path_factory.mktemp("policy") / "tiny"
    TinySpec(initializer_range=0.3).build("0123456789+-=", folder, seed=3)
    return folder


@pytest.fixture
def policy(policy_folder: Path) -> Policy:
    return load_policy(policy_folder)


@pytest.fixture(scope="session")
def warm_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A runs folder whose cache holds SMALL's warm-started policy, to be shared by link."""
    runs = tmp_path_factory.mktemp("warm")
    groupwise.train("quickstart", {**SMALL, "steps": 1, "runs": str(runs)})
    return runs / ".cache"


@pytest.fixture
def small(tmp_path: Path, warm_cache: Path) -> Callable[..., dict[str, Any]]:
    """Overrides for a small run in an empty runs folder of this test's own."""
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / ".cache").symlink_to(warm_cache)
    return lambda **changes: {**SMALL, "runs": str(runs), **{k.replace("__", "."): v for k, v in changes.items()}}
