"""Values out of the ordinary are questioned, and no recipe that comes along has one."""

from __future__ import annotations

import pytest

from groupwise.config.keys import sections
from groupwise.config.recipe import load
from groupwise.config.resolve import resolve, resolved_recipe
from groupwise.config.validate import USUAL, unusual


def questions(**changes: object) -> list[str]:
    overrides = {key.replace("__", "."): value for key, value in changes.items()}
    return unusual(resolved_recipe(resolve(load("quickstart", overrides))))


def test_a_rate_of_a_half_is_questioned_with_the_reason():
    (question,) = questions(learner__learning_rate=0.5)
    assert question.startswith(
        "learner.learning_rate = 0.5: usual is 1e-08 to 0.003; real models learn at 1e-7 to 1e-5"
    )


def test_the_usual_is_not():
    assert questions() == []
    assert questions(algorithm__name="ppo", adapter__rank=8) == []


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
    (question,) = unusual(resolved_recipe(resolve(load("quickstart", trained))))
    assert question.startswith(f"sampling.{key} is set and evaluation.{key} is not: ")
    for settled in ({f"evaluation.{key}": value}, {"evaluation": {"problems": 0}}):
        assert unusual(resolved_recipe(resolve(load("quickstart", {**trained, **settled})))) == []


RECIPES = ["quickstart", "quickstart-moe", "rlhf", "code-tiny", "moe-stability/grpo", "guess-number"]


@pytest.mark.parametrize("name", RECIPES)
def test_the_recipes_that_come_along_are_usual(name):
    assert unusual(resolved_recipe(resolve(load(name)))) == []


def test_the_plan_says_what_people_tune():
    changes = {"learner.schedule": "cosine", "learner.warmup_updates": 3, "sampling.top_k": 5, "learner.clip_norm": 0.0}
    lines = resolve(load("quickstart", {**changes, "algorithm.entropy_coefficient": 0.01})).describe().splitlines()
    assert "learning     rate 0.0003, cosine after 3 updates of warmup, any gradient norm" in lines
    assert "sampling     temperature 1, top_k 5" in lines
    assert "  entropy    0.01" in lines
    assert "precision    learner fp32, engine fp32, reference fp32" in lines
