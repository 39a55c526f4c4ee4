"""Values out of the ordinary are questioned, and no recipe that comes along has one; what reads turns and states."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

import groupwise
from groupwise.config.keys import sections
from groupwise.config.recipe import load
from groupwise.config.resolve import resolved_recipe
from groupwise.config.usual import USUAL, unusual
from groupwise.config.validate import of_turns, require_offloadable
from groupwise.core.errors import UsageError
from tests.config.made import plan


def questions(changes: dict[str, object] | None = None, name: str = "quickstart") -> list[str]:
    return unusual(resolved_recipe(plan(changes, name)))


def test_a_rate_of_a_half_is_questioned_with_the_reason():
    (question,) = questions({"learner.learning_rate": 0.5})
    assert question.startswith(
        "learner.learning_rate = 0.5: usual is 1e-08 to 0.003; real models learn at 1e-7 to 1e-5"
    )


def test_the_usual_is_not():
    assert questions() == []
    assert questions({"algorithm.name": "ppo", "adapter.rank": 8}) == []


@pytest.mark.parametrize("usual", USUAL, ids=lambda usual: usual.key)
def test_every_row_is_of_a_key_that_there_is_and_has_its_range(usual):
    assert usual.key in {key.name for section in sections() for key in section.keys}
    table: object = usual.high * 2 + 1
    for name in reversed(usual.key.split(".")):
        table = {name: table}
    assert usual.question(table).startswith(f"{usual.key} = ")
    assert usual.low < usual.high


@pytest.mark.parametrize(("key", "value"), [("logit_bias", {1: -100.0}), ("min_new_tokens", 3)])
def test_what_a_policy_trains_with_and_is_evaluated_without_is_questioned(key, value):
    trained = {f"sampling.{key}": value}
    (question,) = questions(trained)
    assert question.startswith(f"sampling.{key} is set and evaluation.{key} is not: ")
    for settled in ({f"evaluation.{key}": value}, {"evaluation": {"problems": 0}}):
        assert questions({**trained, **settled}) == []


RECIPES = ["quickstart", "quickstart-moe", "rlhf", "code-tiny", "moe-stability/grpo", "guess-number"]


@pytest.mark.parametrize("name", RECIPES)
def test_the_recipes_that_come_along_are_usual(name):
    assert questions(name=name) == []


#: A task of episodes, one that scores steps, and one that does neither.
EPISODES = SimpleNamespace(max_turns=3)
STEPS = SimpleNamespace(steps=lambda sample, completion: [])
NEITHER = SimpleNamespace()
NO_STEPS = "it needs scores of steps, and "
NO_TURNS = " in one state, and "
NONE_THERE = 'set algorithm.shaping.kind = "steps"'
#: ppo reads rewards of steps and the score; an episode's score is the sum of those of its steps.
TWICE = "algorithm.shaping: an episode's score is what its turns brought, and step_scale = 1 "


@pytest.mark.parametrize(
    ("name", "keys", "task", "given", "words"),
    [
        *(
            ("grpo", {"advantage.kind": kind}, task, {}, NO_STEPS if task is NEITHER else "")
            for kind in ("turn-to-go", "process-zscore")
            for task in (EPISODES, STEPS, NEITHER)
        ),
        ("grpo", {"advantage.kind": "turn-to-go", "shaping.kind": "outcome"}, EPISODES, {}, NONE_THERE),
        ("grpo", {"advantage.kind": "gigpo"}, EPISODES, {}, ""),
        ("grpo", {"advantage.kind": "gigpo"}, STEPS, {}, NO_TURNS),
        ("ppo", {}, EPISODES, {}, TWICE),
        ("ppo", {}, EPISODES, {"rewards": ("task", "form")}, TWICE),
        ("ppo", {"shaping.step_scale": 1.0, "advantage.lam": 0.9}, EPISODES, {}, TWICE),
        ("ppo", {}, STEPS, {}, ""),
        ("ppo", {}, EPISODES, {"rewards": ("form",)}, ""),
        ("ppo", {}, EPISODES, {"learned": True}, ""),
        ("ppo", {"shaping.kind": "steps"}, EPISODES, {}, ""),
        ("ppo", {"shaping.step_scale": 0.0}, EPISODES, {}, ""),
        ("ppo", {"shaping.scale": 0.0}, EPISODES, {}, ""),
    ],
)
def test_rewards_of_turns_and_their_states_come_from_what_has_them_and_count_once(
    name: str, keys: dict[str, Any], task: Any, given: dict[str, Any], words: str
):
    rewards: Any = SimpleNamespace(weights=dict.fromkeys(given.get("rewards", ()), 1.0))
    refusals = list(of_turns(groupwise.algorithm(name, keys), task, rewards, given.get("learned", False)))
    assert len(refusals) == bool(words)
    assert all(words in refusal for refusal in refusals)


AWAY = ["learner.moments", "critic.moments", "reference.offload", "critic.offload", "preference.offload"]


@pytest.mark.parametrize("key", AWAY)
def test_what_lies_elsewhere_goes_with_one_gpu_and_with_no_ranks_and_no_processor(key: str):
    value = "host" if key.endswith("moments") else True
    recipe = load("rlhf", {key: value}).replace(device="cuda")
    require_offloadable(recipe)
    said = re.escape(f"{key} = {'true' if value is True else repr(value)} with ")
    with pytest.raises(UsageError, match=rf"^{said}device = 'cpu': a processor has one memory; take it out$"):
        require_offloadable(recipe.replace(device="cpu"))
    with pytest.raises(UsageError, match=rf"^{said}learner.ranks = 2: .*; take it out, or set learner.ranks to 1$"):
        require_offloadable(recipe.replace(learner=recipe.learner.replace(ranks=2)))
