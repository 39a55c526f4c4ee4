"""Values out of the ordinary are questioned, and no recipe that comes along has one."""

from __future__ import annotations

import pytest

from groupwise.config.keys import sections
from groupwise.config.resolve import resolved_recipe
from groupwise.config.validate import USUAL, unusual
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
