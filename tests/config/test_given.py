"""A recipe as a program gives it: the same plan as its keys, and one line where it cannot be."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import groupwise
from groupwise.algorithms.catalog import CATALOG
from groupwise.algorithms.parts.trust import Clip
from groupwise.algorithms.settings import algorithm, as_keys
from groupwise.config import recipe_files
from groupwise.config.given import Given, given
from groupwise.config.resolve import resolve, resolved_recipe
from groupwise.core.errors import UsageError
from tests.core.test_live_code import notebook

CODE = Path(__file__).parents[1] / "runs" / "code_of_a_user.py"
CELL = "def brief(sample, completion):\n    return -len(completion)\n"


@dataclass(frozen=True)
class OfThisProgram(Clip):
    """A trust region that no file is known to have."""


OfThisProgram.__module__ = "__main__"


def table(one: Given) -> dict[str, Any]:
    recipe, files = one.placed(one.recipe)
    return resolved_recipe(resolve(recipe, files=files))


@pytest.mark.parametrize("name", sorted(CATALOG))
def test_an_algorithm_that_nobody_changed_is_its_name(name: str) -> None:
    """What the run fills in, such as the limit of an overlong penalty, is filled in for both."""
    teacher = {"reference.model": "runs/teacher"} if name == "opd" else {}
    by_name = table(given("quickstart", {"algorithm.name": name, **teacher}))
    assert table(given("quickstart", teacher, algorithm=groupwise.algorithm(name))) == by_name


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("grpo", {"trust.epsilon_high": 0.28, "kl.beta": 0.0}),
        ("grpo", {"trust.kind": "soft", "trust.tau_negative": 1.1, "mismatch.kind": "tis"}),
        ("dapo", {"filter.max_rounds": 3, "shaping.overlong_cache": 0.0, "entropy_coefficient": 0.01}),
        ("gspo", {"kl.estimator": "k1", "kl.beta": 0.1, "kl.place": "reward"}),
        ("grpo", {"kl.estimator": "top-k", "kl.k": 9, "kl.tail": False}),
        ("grpo", {"kl.estimator": "full", "kl.mixture": 0.5, "kl.beta": 0.1}),
        ("ppo", {"advantage.lam": 0.9, "mismatch.kind": "none"}),
    ],
)
def test_an_algorithm_is_the_keys_that_made_it(name: str, keys: dict[str, Any]) -> None:
    by_keys = table(given("quickstart", {"algorithm": {"name": name, **keys}}))
    assert table(given("quickstart", algorithm=groupwise.algorithm(name, keys))) == by_keys
    row = groupwise.algorithm(name, keys)
    chosen = as_keys(row)
    assert algorithm(chosen.pop("name"), chosen) == row


def test_overrides_are_laid_over_the_algorithm() -> None:
    one = table(given("quickstart", {"algorithm.kl.beta": 0.5}, algorithm=groupwise.algorithm("gspo")))
    assert (one["algorithm"]["name"], one["algorithm"]["kl"]["beta"]) == ("gspo", 0.5)


def test_an_algorithm_takes_the_place_of_the_recipes() -> None:
    other = {**recipe_files.read_table(recipe_files.find("quickstart")), "algorithm": {"name": "grpo", "kl.beta": 0.3}}
    row = groupwise.algorithm("grpo", {"trust.epsilon_high": 0.28})
    assert table(given({**other, "name": "quickstart"}, algorithm=row)) == table(given("quickstart", algorithm=row))


def test_another_number_of_passes_goes_with_the_algorithm() -> None:
    row = dataclasses.replace(groupwise.algorithm("grpo"), passes=3)
    assert table(given("quickstart", algorithm=row))["passes_per_batch"] == 3
    assert table(given("quickstart", {"passes_per_batch": 2}, groupwise.algorithm("grpo")))["passes_per_batch"] == 2


def test_a_part_of_the_users_own_is_named_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "parts_of_a_program.py").write_text(CODE.read_text())
    monkeypatch.syspath_prepend(str(tmp_path))
    module: Any = __import__("parts_of_a_program")
    row = dataclasses.replace(groupwise.algorithm("grpo"), trust=module.StaleClip(delta=0.3))
    keys = as_keys(row)["trust"]
    assert keys == {"use": f"{tmp_path / 'parts_of_a_program.py'}:StaleClip", "delta": 0.3}
    plan = resolve(given("quickstart", algorithm=row).recipe)
    assert plan.algorithm.trust.delta == 0.3  # type: ignore[attr-defined]
    assert [source.path.name for source in plan.code] == ["parts_of_a_program.py"]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (
            lambda: dataclasses.replace(groupwise.algorithm("grpo"), trust=OfThisProgram()),
            r'^algorithm.trust: OfThisProgram is a class of this program, .*{"trust.use": "parts.py:OfThisProgram"}',
        ),
        (
            lambda: dataclasses.replace(groupwise.algorithm("grpo"), name="mine"),
            r"algorithm.name = 'mine': there is no",
        ),
        (lambda: "grpo", r"algorithm = 'grpo': give what groupwise.algorithm\(NAME\) makes"),
    ],
)
def test_an_algorithm_that_no_recipe_can_say_is_refused_in_one_line(row: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words) as error:
        given("quickstart", algorithm=row())
    assert "\n" not in str(error.value)


def test_a_function_may_stand_wherever_a_recipe_says_use() -> None:
    """In the dictionary, in the overrides, or beside the rewards that a recipe names."""
    brief = notebook(CELL)["brief"]
    base = recipe_files.read_table(recipe_files.find("quickstart"))
    expected = {"task": {}, "mine": {"use": f"{Path.cwd() / 'runs/sums/code/mine.py'}:brief", "weight": 0.5}}
    named = {"name": "sums"}
    for one in (
        given({**base, **named, "rewards": {"task": {}, "mine": {"use": brief, "weight": 0.5}}}),
        given(base, {**named, "rewards.task": {}, "rewards.mine.use": brief, "rewards.mine.weight": 0.5}),
        given({**base, **named, "rewards.task": {}}, rewards={"mine": {"use": brief, "weight": 0.5}}),
    ):
        assert table(one)["rewards"] == expected
    with pytest.raises(UsageError, match=r"rewards.mine: the recipe has a reward of this name; give yours another"):
        given({**base, "rewards.mine.kind": "format"}, rewards={"mine": brief})
    single = table(given(base, named, rewards=brief))
    assert single["rewards"]["brief"]["use"].endswith("/code/brief.py:brief")


def test_numbers_of_numpy_and_paths_are_values_of_a_recipe(tmp_path: Path) -> None:
    """As loops over np.logspace and np.arange give them."""
    changes = {
        "steps": np.int64(3),
        "learner": {"learning_rate": np.float32(1e-4)},
        "task": {"name": "data", "path": tmp_path / "a.jsonl", "limit": np.int32(9), "repeats": np.bool_(True)},
        "runs": tmp_path,
    }
    found = given("quickstart", changes).recipe
    assert (found.steps, found.runs) == (3, str(tmp_path))
    assert found.learner.learning_rate == 1e-4
    assert found.task["path"] == str(tmp_path / "a.jsonl")
    assert (found.task["limit"], found.task["repeats"]) == (9, True)
    assert groupwise.algorithm("grpo", {"trust": {"epsilon_high": np.float32(0.28)}}).trust.epsilon_high == 0.28  # type: ignore[attr-defined]
    (tmp_path / "a.jsonl").write_text('{"prompt": "1?", "answer": "1"}\n')
    task = groupwise.task("data", {"path": tmp_path / "a.jsonl", "heldout_share": np.float32(0.0)})
    assert len(task.samples("train")) == 1
    with pytest.raises(UsageError, match=r"steps = array\(\[3\]\): a ndarray is no value of a recipe"):
        given("quickstart", {"steps": np.array([3])})


def test_a_function_whose_file_was_edited_since_is_not_taken_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "edited_rewards_of_a_program.py"
    path.write_text(CELL)
    monkeypatch.syspath_prepend(str(tmp_path))
    module: Any = __import__(path.stem)
    assert given("quickstart", rewards=[module.brief]).recipe.rewards == {"brief": {"use": f"{path}:brief"}}
    path.write_text(CELL.replace("-len", "len"))
    with pytest.raises(UsageError, match=r"^rewards.brief.use: .* was changed since brief was imported from it"):
        given("quickstart", rewards=[module.brief])


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({}, 1000),
        ({"model": "tiny-moe"}, 1000),
        ({"model": "models/smollm2"}, 0),
        ({"model": Path("runs/quickstart")}, 0),
        ({"model": "models/smollm2", "warm_start.steps": 50}, 50),
        ({"model": "models/smollm2", "warm_start.batch_size": 8}, 1000),
        ({"model": "models/smollm2", "warm_start": {"steps": 7}}, 7),
    ],
)
def test_a_warm_start_made_for_a_tiny_policy_is_left_out_for_another_model_and_that_is_said(
    changes: dict[str, Any], steps: int
) -> None:
    one = given("quickstart", changes)
    assert one.recipe.warm_start.steps == steps
    assert bool(one.notes) == (steps == 0)
    assert all(
        "1,000 steps for tiny-dense" in note and "keep them with warm_start.steps = 1000" in note for note in one.notes
    )


def test_a_warm_start_of_a_recipe_for_that_model_stays() -> None:
    own = {"model": "models/smollm2", "warm_start": {"steps": 5}, "algorithm": {"name": "grpo"}, "steps": 1}
    one = given({**own, "task": {"name": "arithmetic"}}, {"model": "models/other"})
    assert (one.recipe.warm_start.steps, one.notes) == (5, ())


def test_a_recipe_object_is_its_recipe() -> None:
    changes = {"critic.clip": 0.3, "algorithm.name": "ppo", "steps": 3}
    recipe = groupwise.Recipe.load("quickstart", changes)
    assert table(given(recipe)) == table(given("quickstart", changes))
    assert table(given(recipe.replace(seed=7), {"steps": 4})) == table(
        given("quickstart", {**changes, "seed": 7, "steps": 4})
    )
