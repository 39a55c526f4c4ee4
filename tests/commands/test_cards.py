"""Where a run's processes are on GPUs that this machine does not have, and how a GPU that fails ends a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import groupwise
from groupwise.commands.build.engine import engine_devices
from groupwise.commands.build.learner import take_part
from groupwise.commands.build.machine import cards_of
from groupwise.commands.build.policy import start_device
from groupwise.config import recipe as recipes
from groupwise.config.plan import Plan
from groupwise.config.resolve import resolve
from groupwise.core.errors import RunError, UsageError
from groupwise.training.mesh import Mesh
from groupwise.training.ranks.followers import GivenRanks
from groupwise.training.start.reward_model import PreferenceSettings

FAILED = "CUDA error: unspecified launch failure\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."


def on_cards(**changes: Any) -> Plan:
    """A plan as it is on a machine with GPUs."""
    plan = resolve(recipes.load("quickstart", {key.replace("__", "."): value for key, value in changes.items()}))
    return dataclasses.replace(plan, recipe=plan.recipe.replace(device="cuda"))


@pytest.mark.parametrize(
    ("count", "changes", "ranks", "engines"),
    [
        (1, {}, (0,), ()),
        (1, {"learner__ranks": 2, "placement__share_cards": True}, (0, 0), ()),
        (2, {"learner__ranks": 2, "engine__process": "child"}, (0, 1), (0,)),
        (8, {"learner__ranks": 4, "engine__process": "child", "engine__count": 2}, (0, 1, 2, 3), (4, 5)),
        (8, {"engine__process": "child", "engine__count": 2}, (0,), (1, 2)),
    ],
)
def test_ranks_and_engines_in_children_have_cards(
    count: int, changes: dict[str, Any], ranks: tuple[int, ...], engines: tuple[int, ...]
) -> None:
    cards = cards_of(on_cards(**changes), count)
    assert cards is not None
    assert (cards.ranks, cards.engines) == (ranks, engines)


@pytest.mark.parametrize(
    ("changes", "count", "devices"),
    [
        ({}, 8, []),
        ({"engine__address": "one:7001, two:7001"}, 8, []),
        ({"engine__process": "child", "engine__count": 2}, 1, ["cuda:0", "cuda:0"]),
        ({"engine__process": "child", "engine__count": 2, "learner__ranks": 2}, 4, ["cuda:2", "cuda:3"]),
        ({"engine__process": "child", "engine__count": 2, "placement__ray": "auto"}, 8, ["cuda:0", "cuda:0"]),
    ],
)
def test_an_engine_in_a_child_is_told_its_device(changes: dict[str, Any], count: int, devices: list[str]) -> None:
    plan = on_cards(**changes)
    assert engine_devices(plan.recipe, cards_of(plan, count)) == devices


def test_models_that_ranks_will_hold_are_whole_on_the_host_alone() -> None:
    devices = [start_device(on_cards(**changes).recipe) for changes in ({}, {"learner__ranks": 2})]
    assert devices == ["cuda", "cpu"]
    trained = on_cards().recipe.replace(
        learner=on_cards(learner__ranks=2).recipe.learner, preference=PreferenceSettings(path="a")
    )
    assert start_device(trained) == "cuda", "a reward model is trained on it first"


def test_of_ranks_that_torchrun_has_started_those_of_this_machine_have_its_cards() -> None:
    given = GivenRanks(rank=0, size=16, host="one", port=1, local=0, local_size=8)
    cards = cards_of(on_cards(learner__ranks=16), 8, given)
    assert cards is not None
    assert cards.ranks == tuple(range(8))


def test_a_processor_has_no_cards_and_a_ray_places_them() -> None:
    assert cards_of(resolve(recipes.load("quickstart", {"device": "cpu"})), 8) is None
    assert cards_of(on_cards(engine__process="child", placement__ray="auto"), 8) is None


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"learner__ranks": 3},
            r"^learner.ranks = 3: each rank takes a GPU of its own, and torch sees 2 GPUs here; set ",
        ),
        ({"device": "cuda:3"}, r"device = 'cuda:3': set 'cuda', and CUDA_VISIBLE_DEVICES=3 before the command"),
        ({"placement__share_cards": True}, r"^placement.share_cards: set, but nothing in this run reads it"),
    ],
)
def test_what_cannot_be_placed_is_one_line(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told) as refused:
        cards_of(on_cards(**changes), 2)
    assert "\n" not in str(refused.value)


def test_an_actor_without_a_gpu_cannot_be_a_rank_on_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    words = (
        "learner.ranks = 2 with placement.ray: an actor sees the GPUs that it is given alone: set placement.rank_gpus"
    )
    with pytest.raises(UsageError, match=f"^{words} to 1, or"):
        resolve(recipes.load("quickstart", {"learner.ranks": 2, "placement.ray": "auto", "device": "cuda"}))


def test_a_card_that_fails_ends_the_run_in_one_line_and_the_run_goes_on_elsewhere(
    small: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = small(steps=2, name="failed", evaluation__problems=4, updates_per_batch=1)
    step, count = torch.optim.AdamW.step, iter(range(9))

    def fails(self: Any, *given: Any) -> Any:
        if next(count) == 1:
            raise torch.AcceleratorError(FAILED)
        return step(self, *given)

    fails.hooked = True  # type: ignore[attr-defined]  # else torch calls its hooks around this one too
    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", fails)
        with pytest.raises(RunError) as ended:
            groupwise.train("quickstart", changes, quiet=True)
    folder = Path(changes["runs"]) / "failed"
    assert str(ended.value) == (
        "rank 0's GPU failed: CUDA error: unspecified launch failure; step 1 is saved; go on with: "
        f"groupwise train --resume {folder}"
    )
    assert "in fails" in (folder / "log.txt").read_text(), "the traceback is kept"
    assert groupwise.resume(folder, quiet=True).finished


class FailedMesh(Mesh):
    def plain(self, value: Any) -> Any:
        raise torch.AcceleratorError(FAILED)


def test_another_rank_says_which_card_failed_as_its_last_words() -> None:
    with pytest.raises(SystemExit, match=r"^error: its GPU, cuda:1, failed: CUDA error: unspecified launch failure$"):
        take_part(FailedMesh(1, 2, "cuda:1"))
