"""The disk that a run's checkpoints take: the estimate is what is written, and no room is said before a run begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import groupwise
from groupwise.commands.build.machine import DiskPlan, disk_plan
from groupwise.commands.build.policy import base_policy
from groupwise.config.plan import Plan
from groupwise.config.recipe import load
from groupwise.config.resolve import resolve
from groupwise.core.errors import UsageError
from groupwise.models.load import load_policy
from groupwise.training.checkpoint import CHECKPOINTS, POLICY, folder_of


def disk_of(plan: Plan, policy: Any, critic: Any = None) -> DiskPlan:
    return disk_plan(plan.recipe, plan.folder, policy, critic, plan.copies_reference)


def test_the_estimate_is_what_a_checkpoint_takes(small: Callable[..., dict[str, Any]]) -> None:
    changes = small(name="mine", steps=1, algorithm__name="ppo")
    folder = folder_of(groupwise.train("quickstart", changes).folder / CHECKPOINTS, 1)
    plan, policy = resolve(load("quickstart", changes)), load_policy(folder / POLICY).model
    critic = policy  # of the same size, but for a head of one number instead of a vocabulary
    disk = disk_of(plan, policy, critic)
    written = sum(path.stat().st_size for path in folder.rglob("*.safetensors"))
    assert disk.checkpoint == pytest.approx(written, rel=0.05)
    assert disk_of(plan, policy).checkpoint == disk.checkpoint / 2


def test_a_checkpoint_of_adapters_holds_these_alone(small: Callable[..., dict[str, Any]]) -> None:
    changes = small(name="mine", steps=1, algorithm__kl__beta=0.0, adapter__rank=4)
    folder = folder_of(groupwise.train("quickstart", changes).folder / CHECKPOINTS, 1)
    plan = resolve(load("quickstart", changes))
    policy = base_policy(plan.recipe, plan.task, plan.recipe.model, plan.cache, note=lambda line: None).model
    written = sum(path.stat().st_size for path in folder.rglob("*.safetensors"))
    assert disk_of(plan, policy).checkpoint == pytest.approx(written, rel=0.1)


@pytest.mark.parametrize(
    ("steps", "every", "keep", "count"), [(1, 50, 2, 1), (60, 20, 1, 2), (60, 20, 2, 3), (60, 20, 9, 3)]
)
def test_those_that_stay_and_one_that_is_written(steps: int, every: int, keep: int, count: int, policy: Any) -> None:
    changes = {"steps": steps, "checkpoint.every": every, "checkpoint.keep": keep, "runs": "nowhere"}
    disk = disk_of(resolve(load("quickstart", changes)), policy.model)
    assert disk.more == count * disk.checkpoint


def test_no_room_is_one_line_with_the_numbers() -> None:
    DiskPlan(checkpoint=10, more=20, free=20).require()
    words = "disk: a checkpoint takes about 1,614 MB, those to come 3,228 MB at once, and 2,000 MB are free; set "
    with pytest.raises(UsageError, match=words):
        DiskPlan(checkpoint=1_614_000_000, more=3_228_000_000, free=2_000_000_000).require()
