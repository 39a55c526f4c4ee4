"""Laws of the six examples beside their recipes: files of one's own that any folder finds, and that a run keeps."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

import groupwise
from groupwise.config.recipe import load, parse
from groupwise.config.recipe_files import read_table
from groupwise.config.resolve import resolve, resolved_recipe
from groupwise.core.errors import UsageError
from groupwise.core.files.paths import recipe_folder
from groupwise.tasks.make import ENVIRONMENTS, EXAMPLES, task

FILES = sorted(path.stem for path in recipe_folder().glob("*.py"))
#: The recipe of each name; what has a chat model is not run here.
RECIPES = {name: "times-tables" if name == "products" else name for name in (*EXAMPLES, *ENVIRONMENTS)}
#: Recipes of the task `agent`, whose file is who plays.
AGENTS = ("two-questions",)
WITHOUT_MODEL = {"model": "tiny-dense", "adapter.rank": 0}


def problems(one: Any) -> list[Any]:
    return [*one.samples("train"), *one.samples("heldout")]


def test_every_example_has_a_file_and_every_file_is_an_example() -> None:
    assert sorted(name.replace("-", "_") for name in (*RECIPES, *AGENTS)) == FILES


@pytest.mark.parametrize("name", FILES)
def test_an_example_needs_public_names_alone(name: str) -> None:
    tree = ast.parse((recipe_folder() / f"{name}.py").read_text())
    imported = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert {module for module in imported if str(module).startswith("groupwise")} == {"groupwise"}


@pytest.mark.parametrize("name", RECIPES)
def test_a_name_and_its_recipe_are_one_task_from_any_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of the same name in the folder that a command is given in is another one."""
    for file in FILES:
        (tmp_path / f"{file}.py").write_text("raise RuntimeError('not this one')")
    monkeypatch.chdir(tmp_path)
    keys = read_table(recipe_folder() / f"{RECIPES[name]}.toml")["task"]
    assert keys["use"].startswith(f"{name.replace('-', '_')}.py:"), "the recipe names its file as a user's would"
    by_recipe = resolve(load(RECIPES[name], WITHOUT_MODEL)).task
    by_name = groupwise.task(name, {key: keys[key] for key in keys.keys() & {"turn_tokens"}})
    assert problems(by_name) == problems(by_recipe)
    assert repr(by_name) == repr(by_recipe)


@pytest.mark.parametrize("name", RECIPES)
def test_a_run_keeps_the_file_and_goes_on_with_it(name: str) -> None:
    """Whatever the recipe says, `use` or the name: what a run of it is resolved to says the same again."""
    recipe = load(RECIPES[name], WITHOUT_MODEL)
    for table in (recipe.task, {"name": name}):
        plan = resolve(recipe.replace(task=table))
        file = recipe_folder() / f"{name.replace('-', '_')}.py"
        assert [source.path for source in plan.code] == [file]
        again = resolve(parse(resolved_recipe(plan), "recipe.toml"))
        assert again.recipe.task == plan.recipe.task


def test_a_files_own_kept_text_stands_in_for_the_file() -> None:
    (source,) = resolve(load("chain")).code
    kept = {source.path: type(source)(source.path, source.content.replace(b"MODULUS = 10", b"MODULUS = 9"))}
    for name, keys in (("chain", {}), (None, {"use": f"{source.path}:Chain"})):
        answers = {sample.answer for sample in task(name, keys, kept).samples("train")}
        assert answers == set("012345678"), "nothing of the file as it lies there"


def test_a_recipe_of_ones_own_names_files_by_the_folder_that_a_command_is_given_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    text = (recipe_folder() / "chain.toml").read_text()
    (own / "mine.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=rf"no file {tmp_path}/chain.py"):
        resolve(load("own/mine.toml"))
    (tmp_path / "chain.py").write_text((recipe_folder() / "chain.py").read_text())
    assert resolve(load("own/mine.toml")).code[0].path == tmp_path / "chain.py"


def test_lists_of_a_recipe_are_pairs_by_name_and_by_use() -> None:
    by_use = resolve(load("chain", {"task.operations": [5, 9]})).task
    assert groupwise.task("chain", {"operations": [5, 9]}).samples("train") == by_use.samples("train")
