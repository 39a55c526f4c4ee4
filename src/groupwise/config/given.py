"""Recipes as a program gives them: a name, a dictionary or a Recipe, an Algorithm, functions as rewards."""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.settings import algorithm as row
from groupwise.algorithms.settings import as_keys
from groupwise.config.recipe import Recipe, parse
from groupwise.config.recipe_files import find, named_table, require_overrides, set_key
from groupwise.core.code.live_code import extracted, located, require_as_in_its_file
from groupwise.core.code.user_code import Files, Source
from groupwise.core.errors import UsageError, brief
from groupwise.core.files.plain import of_program
from groupwise.journal.kept import CODE
from groupwise.training.start.initial_policy import TINY

#: A recipe's name or path; its table, nested or with dotted keys; a Recipe.
RecipeLike = str | os.PathLike[str] | Mapping[str, Any] | Recipe
#: A function, a class, or a table of a reward with one as its `use`.
RewardLike = Callable[..., Any] | Mapping[str, Any]
#: By the names of rewards, or functions that are called by their own.
RewardsLike = Mapping[str, RewardLike] | Iterable[Callable[..., Any]] | Callable[..., Any]

#: The name of a dictionary that has none.
NAME = "run"
#: The file that a message advises for rewards.
HOME = "rewards.py"


@dataclass(frozen=True)
class Given:
    """Recipe, its origin, and the functions of the program in it: by reward, the content of a file of each.

    notes  lines for the user about what was left out of the recipe
    """

    recipe: Recipe
    origin: str
    functions: Mapping[str, bytes]
    notes: tuple[str, ...] = ()

    def placed(self, recipe: Recipe) -> tuple[Recipe, Files]:
        """Name each function in the recipe by its file in the run's folder; the recipe, and these files."""
        tables, files = dict(recipe.rewards or {}), {}
        for number, (name, content) in enumerate(self.functions.items()):
            stem = name if name.isidentifier() else f"reward_{number}"
            path = (Path(recipe.runs) / recipe.name / CODE / f"{stem}.py").absolute()
            files[path] = Source(path, content)
            function = tables[name]["use"].rpartition(":")[2]
            tables[name] = {**tables[name], "use": f"{path}:{function}"}
        return (recipe.replace(rewards=tables) if files else recipe), files


def given(
    recipe: RecipeLike,
    overrides: Mapping[str, object] | None = None,
    algorithm: Algorithm | None = None,
    rewards: RewardsLike | None = None,
) -> Given:
    """Take a recipe with an algorithm in the place of its own, dotted keys laid over it, and rewards added.

    A function that another process can import is named by its file; one that only this process has becomes a file.
    Raises UsageError, one line, if anything is off, or a function does not stand by itself.
    """
    changes = {} if overrides is None else overrides
    require_overrides(changes)
    table, where = _table(recipe)
    notes = _unwarmed(table, changes)
    if algorithm is not None:
        _set_algorithm(table, algorithm)
    for key, value in changes.items():
        set_key(table, key, of_program(value))
    if rewards is not None:
        tables = table.setdefault("rewards", {})
        for name, one in _by_name(rewards).items():
            if name in tables:
                raise UsageError(f"rewards.{name}: the recipe has a reward of this name; give yours another")
            tables[name] = one
    functions = _taken(table)
    origin = f"from {os.fspath(recipe) if isinstance(recipe, (str, os.PathLike)) else where}"
    return Given(parse(table, where), origin, functions, notes)


def _unwarmed(table: dict[str, Any], changes: Mapping[str, object]) -> tuple[str, ...]:
    """Take the warm start out of a recipe that makes it for a tiny policy, if another model is set, and say so.

    Random weights need it; those of a trained model it would train away on demonstrations of the tiny policy's task.
    """
    own, warm = table.get("model", Recipe.model_fields["model"].default), table.get("warm_start")
    model, steps = of_program(changes.get("model")), warm.get("steps") if isinstance(warm, dict) else None
    if not isinstance(steps, int) or steps < 1 or not isinstance(own, str) or not isinstance(model, str):
        return ()
    if own not in TINY or model in TINY or any(key.partition(".")[0] == "warm_start" for key in changes):
        return ()
    table["warm_start"] = {**table["warm_start"], "steps": 0}
    why = f"left out: the recipe has {steps:,} steps for {own}, and model is set to {brief(model)}"
    return (f"warm start   {why}; keep them with warm_start.steps = {steps}",)


def _table(recipe: RecipeLike) -> tuple[dict[str, Any], str]:
    """Copy the recipe's table, and say what messages call it."""
    if isinstance(recipe, Recipe):
        return recipe.model_dump(exclude_unset=True, exclude_none=True), "a Recipe"
    if isinstance(recipe, Mapping):
        table: dict[str, Any] = {"name": NAME}
        for key in sorted(map(_text, recipe), key=lambda key: "." in key):  # the tables that dotted keys lie in first
            set_key(table, key, of_program(recipe[key]))
        return table, "a dictionary"
    if not isinstance(recipe, (str, os.PathLike)):
        raise UsageError(f"recipe {brief(recipe)}: give a recipe's name, its path, a dictionary or a groupwise.Recipe")
    path = find(os.fspath(recipe))
    return named_table(path), path.name


def _text(key: object) -> str:
    if not isinstance(key, str):
        raise UsageError(f"recipe: the key {brief(key)} is no text")
    return key


def _set_algorithm(table: dict[str, Any], algorithm: Algorithm) -> None:
    if not isinstance(algorithm, Algorithm):
        raise UsageError(
            f"algorithm = {brief(algorithm)}: give what groupwise.algorithm(NAME) makes, or set the key algorithm.name"
        )
    table["algorithm"] = as_keys(algorithm)
    if algorithm.passes != row(algorithm.name).passes:
        table["passes_per_batch"] = algorithm.passes


def _by_name(rewards: Any) -> dict[str, Any]:
    """Name the rewards; functions have a name of their own."""
    if isinstance(rewards, Mapping):
        return {_text(name): dict(one) if isinstance(one, Mapping) else {"use": one} for name, one in rewards.items()}
    named: dict[str, Any] = {}
    several = isinstance(rewards, Iterable) and not isinstance(rewards, str) and not callable(rewards)
    for one in rewards if several else [rewards]:
        name = getattr(one, "__name__", "")
        if not callable(one) or not name:
            raise UsageError(f"rewards: {brief(one)} is no function; name others: rewards={{NAME: {{...}}}}")
        if name in named:
            raise UsageError(f"rewards: two are called {name}; name them: rewards={{'one': ..., 'other': ...}}")
        named[name] = {"use": one}
    return named


def _taken(table: Mapping[str, Any]) -> dict[str, bytes]:
    """Name every function in [rewards.NAME] by its place; the files of those that are in none, by reward."""
    tables = table.get("rewards")
    functions: dict[str, bytes] = {}
    for name, one in tables.items() if isinstance(tables, Mapping) else ():
        use = one.get("use") if isinstance(one, dict) else None
        if use is None or isinstance(use, str):
            continue
        if not callable(use):
            raise UsageError(f"rewards.{name}.use = {brief(use)}: give a function, or text such as '{HOME}:NAME'")
        one["use"], what = located(use), f"rewards.{name}.use"
        if one["use"]:
            require_as_in_its_file(use, what)
        else:
            functions[name] = extracted(use, what, HOME)
            one["use"] = f"{name}.py:{use.__name__}"
    return functions
