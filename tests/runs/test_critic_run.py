"""Runs with a critic: it learns, it waits and is waited for, and it goes on after a stop as if it had never stopped."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import groupwise
from groupwise.algorithms import settings as catalog
from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.parts.advantage import Advantage, outcome
from groupwise.algorithms.parts.aggregate import TokenMean
from groupwise.algorithms.parts.filters import KeepAll
from groupwise.algorithms.parts.kl import KL
from groupwise.algorithms.parts.ratio import TokenRatio
from groupwise.algorithms.parts.shaping import OutcomeReward, at_last_token
from groupwise.algorithms.parts.trust import Clip
from groupwise.config import recipe
from groupwise.config.resolve import resolve, resolved_recipe
from groupwise.core.errors import RunError
from groupwise.core.masked import keep
from groupwise.core.records import Batch
from groupwise.training import checkpoint
from groupwise.training.critic import Critic, CriticSettings
from tests.runs.test_run import assert_goes_on, assert_same_run
from tests.runs.tiny_runs import step_rows


@dataclass(frozen=True)
class OverValue(Advantage):
    """A = R - V with the completion's reward R: the least that reads a value."""

    equation = "A = R - V"

    smallest_group = 1
    compares_within_group = False
    reads_value = True
    reads_steps = False

    def __call__(
        self, reward: Tensor, value: Tensor | None, mask: Tensor, group: Tensor, step_end: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        assert value is not None
        returns = keep(outcome(reward, mask)[0][:, None].expand_as(reward), mask)
        return keep(returns - value, mask), returns


@dataclass(frozen=True)
class FirstToken:
    """A reward of 1 where the completion's first token has an even id: to be seen from the second token on."""

    equation = "R_i = 1 where the first token is even, at the last token"

    limit: int = 0
    reads_steps = False
    needs_steps = False

    def __call__(self, batch: Batch) -> Tensor:
        first = batch.mask & (batch.mask.cumsum(-1) == 1)
        even = torch.where(first, batch.tokens, 0).sum(-1) % 2 == 0
        return at_last_token(even.double(), batch.mask)


def row() -> Algorithm:
    return Algorithm(
        name="over-value",
        paper="a row of these tests",
        shaping=OutcomeReward(),
        filter=KeepAll(),
        advantage=OverValue(),
        ratio=TokenRatio(),
        trust=Clip(epsilon_low=0.2, epsilon_high=0.2),
        kl=KL(beta=0.01, place="reward"),
        aggregate=TokenMean(),
        passes=2,
    )


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(catalog.CATALOG, "over-value", row())  # type: ignore[arg-type]
    monkeypatch.setitem(catalog.KINDS["shaping"], "first-token", FirstToken)  # type: ignore[arg-type]
    monkeypatch.setitem(catalog.KINDS["advantage"], "over-value", OverValue)  # type: ignore[arg-type]


@pytest.fixture
def changes(small) -> dict[str, Any]:
    return small(algorithm__name="over-value", critic__learning_rate=1e-3, evaluation__problems=4)


def saved(folder: Path, name: str, step: int = 4) -> dict[str, Tensor]:
    return load_file(checkpoint.folder_of(folder / "checkpoints", step) / name)


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.slow
def test_the_critic_learns_what_can_be_predicted(small):
    """The policy stands still, and the reward is there to see for every token but the first."""
    settings = small(
        algorithm__name="over-value",
        algorithm__shaping__kind="first-token",
        algorithm__kl__beta=0.0,
        steps=10,
        prompts_per_step=32,
        learner__learning_rate=0.0,
        critic__learning_rate=3e-3,
        checkpoint__every=100,
    )
    rows = step_rows(groupwise.train("quickstart", settings).folder)
    assert abs(rows[0]["explained_variance"]) < 1e-6
    assert sum(r["explained_variance"] for r in rows[-3:]) / 3 > 0.2
    assert rows[-1]["value_loss"] < 0.7 * rows[0]["value_loss"]
    assert all(r["critic_updates_skipped"] == 0 for r in rows)


def test_a_resumed_run_has_the_same_critic(changes):
    """Under a schedule, so that the count of its updates is seen to go on."""
    settings = {**changes, "critic.schedule": "linear", "critic.warmup_updates": 3}
    whole = groupwise.train("quickstart", {**settings, "checkpoint.keep": 4}).folder
    cut = assert_goes_on(whole, 3)
    for name in (checkpoint.CRITIC, checkpoint.CRITIC_OPTIMIZER):
        assert same(saved(whole, name), saved(cut, name))
    assert not same(saved(whole, checkpoint.CRITIC, step=3), saved(whole, checkpoint.CRITIC))


def test_a_damaged_critic_makes_its_checkpoint_damaged(changes):
    folder = groupwise.train("quickstart", {**changes, "steps": 2}).folder
    newest = checkpoint.folder_of(folder / "checkpoints", 2)
    data = bytearray((newest / checkpoint.CRITIC).read_bytes())
    data[-1] ^= 1
    (newest / checkpoint.CRITIC).write_bytes(data)
    assert checkpoint.damaged(newest) == "critic.safetensors does not match its hash"


def test_the_policy_waits_while_the_critic_learns_alone(changes):
    settings = {**changes, "critic.warmup_steps": 2, "steps": 3, "checkpoint.keep": 3}
    folder = groupwise.train("quickstart", settings).folder
    first, second, third = (saved(folder, "policy/model.safetensors", step) for step in (1, 2, 3))
    assert same(first, second)
    assert not same(second, third)
    assert not same(saved(folder, checkpoint.CRITIC, 1), saved(folder, checkpoint.CRITIC, 2))
    rows = step_rows(folder)
    assert [r["updates"] for r in rows] == [0, 0, 4]
    assert [r["share_passed"] is None for r in rows] == [True, True, False]
    assert rows[2]["checks"]["KL to the reference is 0 at step 0"]["verdict"] == "pass"
    assert rows[2]["checks"]["live = old on the first update"]["verdict"] == "pass"


def test_critic_updates_that_are_not_finite_stop_the_run(changes, monkeypatch):
    monkeypatch.setattr(Critic, "gradients", lambda self, minibatch, tokens: (math.nan, 0))
    with pytest.raises(RunError, match=r"step 1: 3 updates in a row .* lower learner.learning_rate or critic.learn"):
        groupwise.train("quickstart", {**changes, "name": "broken"})
    state = checkpoint.read_state(checkpoint.folder_of(Path(changes["runs"]) / "broken" / "checkpoints", 0))
    assert (state["updates"], state["critic_updates"]) == (0, 0)


def test_a_folder_with_the_policys_weights_is_the_same_start_as_the_policy(changes, policy_folder: Path):
    settings = {**changes, "model": str(policy_folder), "warm_start.steps": 0, "steps": 2}
    a = groupwise.train("quickstart", {**settings, "name": "a"}).folder
    b = groupwise.train("quickstart", {**settings, "name": "b", "critic.start": str(policy_folder)}).folder
    assert_same_run(a, b)
    assert same(saved(a, checkpoint.CRITIC, 2), saved(b, checkpoint.CRITIC, 2))


def test_a_run_without_a_critic_says_nothing_of_one(small):
    folder = groupwise.train("quickstart", small(steps=1)).folder
    assert not [key for key in step_rows(folder)[0] if "critic" in key or "value" in key or "explained" in key]
    assert not list((folder / "checkpoints").rglob("critic*"))
    assert "critic" not in tomllib.loads((folder / "recipe.toml").read_text())


def test_the_critic_is_planned(changes):
    told = resolve(recipe.load("quickstart", {**changes, "steps": 2, "critic.warmup_steps": 1})).describe()
    assert "critic       from the policy, learning rate 0.001, clip 0.2, 1 step before the policy's first" in told


@pytest.mark.parametrize("key", list(CriticSettings.model_fields))
def test_every_key_of_the_critic_changes_it(key: str, changes):
    base = resolve(recipe.load("quickstart", changes))
    now = getattr(base.recipe.critic, key)
    others = {
        "schedule": "cosine",
        "start": ".",
        "beta1": 0.5,
        "beta2": 0.5,
        "tokens_per_microbatch": 9,
        "moments": "host",
        "offload": True,
    }
    other = others[key] if key in others else now * 2 + 1
    changed = resolve(recipe.load("quickstart", {**changes, f"critic.{key}": other}))
    assert vars(changed.recipe.critic) == {**vars(base.recipe.critic), key: other}


def test_a_critic_without_a_rate_of_its_own_learns_ten_times_as_fast(small):
    plan = resolve(recipe.load("quickstart", small(algorithm__name="over-value", learner__learning_rate=3e-4)))
    assert plan.recipe.critic is not None
    assert plan.recipe.critic.learning_rate == pytest.approx(3e-3)
    table = resolved_recipe(plan)
    assert table["critic"]["learning_rate"] == plan.recipe.critic.learning_rate
    assert resolve(recipe.parse(table, "again")).recipe.critic == plan.recipe.critic


def test_the_policys_schedule_is_as_long_as_the_updates_it_makes(changes):
    """Two passes of two updates in each of the three steps in which it does not wait."""
    plan = resolve(recipe.load("quickstart", {**changes, "critic.warmup_steps": 1}))
    assert plan.recipe.total_updates == 3 * 4
    assert "4 steps, 12 optimizer updates" in plan.describe()


@pytest.mark.parametrize(("shaping", "limit"), [({}, 7), ({"limit": 5}, 5), ({"overlong_cache": 0.5}, 7)])
def test_an_overlong_penalty_takes_the_samplings_limit(shaping: dict[str, Any], limit: int):
    settings = {"algorithm": {"name": "dapo", "shaping": shaping}, "sampling.max_new_tokens": 7}
    assert resolve(recipe.load("quickstart", settings)).algorithm.shaping.limit == limit  # type: ignore[attr-defined]
