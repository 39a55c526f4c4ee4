"""A run that goes on with other settings: which may change, what is kept of it, and a recipe edited by hand."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import groupwise
from groupwise.commands.train.resume import changeable_keys, differences, fixed_because
from groupwise.commands.train.train import resume
from groupwise.config.recipe import Recipe
from groupwise.core.errors import UsageError
from groupwise.journal.journal import read_metrics
from groupwise.journal.kept import COPY, as_written, replace_recipe
from groupwise.reports.folder import facts
from groupwise.reports.folder.read import read
from tests.command_process import CommandProcess
from tests.runs.test_run import assert_same_run, timeless
from tests.runs.tiny_runs import cut_back, tiny_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps under a linear schedule, which is at 0 where they end."""
    place = tmp_path_factory.mktemp("going-on")
    changes = tiny_run(place, learner__schedule="linear", learner__learning_rate=0.01)
    return groupwise.train("quickstart", changes).folder


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Callable[[str], Path]:
    def copied(name: str = "again") -> Path:
        shutil.copytree(run, tmp_path / name)
        return tmp_path / name

    return copied


def rates(folder: Path) -> list[float]:
    return [row["learning_rate"] for row in read_metrics(folder) if "learning_rate" in row]


def test_more_steps_at_another_rate(copy, capsys):
    """The command, as a person types it; what changed is in the log, about.json, the report and recipe.toml."""
    folder = copy()
    done = CommandProcess("train", "--resume", str(folder), "--set", "steps=4", "--set", "learner.learning_rate=0.005")
    said = done.communicate()
    assert done.returncode == 0, said
    assert [row["step"] for row in read_metrics(folder) if "loss" in row] == [1, 2, 3, 4]
    assert json.loads((folder / "summary.json").read_text())["steps"] == 4
    # Two updates a step: of eight in all, the last ones of steps 3 and 4 are numbers 5 and 7, counted from 0.
    assert rates(folder)[2:] == pytest.approx([0.005 * 3 / 8, 0.005 * 1 / 8])
    lines = ["changed after step 2: steps 2 -> 4", "changed after step 2: learner.learning_rate 0.01 -> 0.005"]
    lines.append("the learning rate of the next update is 0.0025, and would have been 0")
    for line in lines:
        assert line in said
        assert line in (folder / "log.txt").read_text()
    changed = {"steps": ["2", "4"], "learner.learning_rate": ["0.01", "0.005"]}
    resumed = json.loads((folder / "about.json").read_text())["resumed"]
    assert [(entry["step"], entry["changed"]) for entry in resumed] == [(2, changed)]
    (table, *_) = facts.tables(read(folder))
    assert "; steps 2 -> 4; learner.learning_rate 0.01 -> 0.005" in next(
        row[1] for row in table.rows if row[0] == "resumed"
    )
    text = (folder / "recipe.toml").read_text()
    assert "\n# after step 2: steps 2 -> 4, learner.learning_rate 0.01 -> 0.005\n" in text
    assert "\n# from quickstart\n" in text
    recipe = tomllib.loads(text)
    assert (recipe["steps"], recipe["learner"]["learning_rate"]) == (4, 0.005)
    assert as_written(folder / "recipe.toml")


def test_a_changed_run_that_is_stopped_goes_on_with_the_change(copy):
    """Its second process reads the new values from recipe.toml: the same bits as without a stop."""
    whole, cut = copy("whole"), copy("cut")
    changes = {"steps": 4, "learner.learning_rate": 5e-3}
    for folder in (whole, cut):
        resume(folder, changes)
    cut_back(cut, 3)
    resume(cut)
    assert_same_run(whole, cut)
    assert [list(e.get("changed", {})) for e in json.loads((cut / "about.json").read_text())["resumed"]] == [
        ["steps", "learner.learning_rate"],
        [],
    ]


def test_more_steps_are_the_run_that_had_them_from_the_start(tmp_path: Path):
    """Without a schedule nothing depends on how many steps were asked for at first."""
    long = groupwise.train("quickstart", tiny_run(tmp_path, name="long", steps=3)).folder
    short = groupwise.train("quickstart", tiny_run(tmp_path, name="short")).folder
    resume(short, {"steps": 3})
    assert [row for row in timeless(short) if "loss" in row] == [row for row in timeless(long) if "loss" in row]


def test_a_value_that_is_set_to_what_it_was_is_no_change(copy):
    folder = copy()
    before = (folder / "recipe.toml").read_bytes()
    resume(folder, {"steps": 2, "sampling.max_new_tokens": 4})
    assert (folder / "recipe.toml").read_bytes() == before
    assert "changed" not in (folder / "log.txt").read_text()


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (
            "seed",
            7,
            r"^seed 1 -> 7: cannot change in a run that goes on: groups that wait .*"
            r"What may: steps, guard; rollout: gateway; scoring: ",
        ),
        ("algorithm.kl.beta", 0.5, r"trained for another goal.*begin a run with this one's weights: groupwise train "),
        ("sampling.temperature", 0.5, r"sampling.temperature 1.0 -> 0.5: cannot change"),
        ("evaluation.problems", 9, r"evaluations before and after the change would not compare"),
        ("learner.precision", "bf16", r"the limits of the run's checks"),
        ("task.operands", [2, 3], r"task.operands \[2, 2\] -> \[2, 3\]: cannot change"),
        ("learner.learning_rat", 1.0, r"did you mean 'learning_rate'"),
        ("steps", 1, r"^steps = 1: .* is after step 2 already; set steps = 2 or more"),
        ("steps", 0, r"--set: steps = 0"),
        ("critic.learning_rate", 1.0, r"critic.learning_rate: set, but nothing in this run reads it"),
    ],
)
def test_what_may_not_change_is_refused_with_the_reason(key: str, value: Any, words: str, run: Path):
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match=words) as error:
        resume(run, {key: value})
    assert "\n" not in str(error.value)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_every_key_may_change_or_says_why_it_may_not():
    def keys(section: Any, prefix: str = ""):
        for name, field in section.model_fields.items():
            inner = next((k for k in getattr(field.annotation, "__args__", ()) if hasattr(k, "model_fields")), None)
            inner = inner or field.annotation
            yield from keys(inner, f"{prefix}{name}.") if hasattr(inner, "model_fields") else [prefix + name]

    every, free = list(keys(Recipe)), list(changeable_keys())
    assert {"steps", "learner.learning_rate", "critic.clip", "checkpoint.every"} <= set(free) <= set(every)
    assert [key for key in every if not fixed_because(key)] == free
    assert not [key for key in every if fixed_because(key).startswith("the run depends on it")]
    page = (Path(__file__).parents[2] / "docs" / "howto" / "runs.md").read_text()
    assert not [key for key in free if f"`{key.rpartition('.')[2]}`" not in page]


def test_a_recipe_edited_by_hand_is_noticed(copy):
    folder = copy()
    path = folder / "recipe.toml"
    text = path.read_text()
    path.write_text(
        text.replace("learning_rate = 0.01\n", "learning_rate = 0.1\n").replace("\nsteps = 2", "\nsteps = 3")
    )
    with pytest.raises(UsageError) as error:
        resume(folder)
    said = str(error.value)
    assert "edited by hand (steps 2 -> 3; learner.learning_rate 0.01 -> 0.1)" in said
    assert said.endswith(f"--resume {folder} --set steps=3 --set learner.learning_rate=0.1")
    command = re.search(r"put it back: cp (\S+) (\S+), then", said)
    assert command
    shutil.copy(command[1], command[2])
    assert path.read_text() == text
    resume(folder, {"steps": 3})
    assert [row["step"] for row in read_metrics(folder) if "loss" in row] == [1, 2, 3]


def test_an_edit_that_changes_no_value_is_none_and_a_lost_copy_hides_no_edit(copy):
    folder = copy()
    path = folder / "recipe.toml"
    text = path.read_text()
    path.write_text(f"# mine\n{text}")
    resume(folder)
    path.write_text(text)
    (folder / COPY).unlink()
    resume(folder)
    path.write_text(text.replace("steps = 2", "steps = 3"))
    with pytest.raises(UsageError, match=r"edited by hand, and what it was is not known, for .recipe.toml"):
        resume(folder)


def test_a_kill_between_the_copy_and_the_recipe_is_no_edit(copy):
    """The copy is written first; the recipe knows its own hash."""
    folder = copy()
    whole = (folder / "recipe.toml").read_bytes()
    replace_recipe(folder, whole.decode().replace("steps = 2", "steps = 9"))
    (folder / "recipe.toml").write_bytes(whole)
    assert resume(folder).finished


def test_differences_of_tables():
    assert [
        str(c) for c in differences({"a": {"b": [1, 2], "c": "x"}, "d": None}, {"a": {"b": [1, 3]}, "e": True})
    ] == ["a.b [1, 2] -> [1, 3]", "e unset -> true", 'a.c "x" -> unset']
    assert differences({"a": (1, 2)}, {"a": [1, 2]}) == ()
