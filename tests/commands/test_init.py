"""A project begins whole and trains as it is, wherever its folder is and whatever it is called."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import groupwise
from groupwise.commands import init
from groupwise.commands.check.check import check_sections
from groupwise.commands.init import DATA, README, RECIPE, REWARD, write_project
from groupwise.config.recipe import Recipe
from groupwise.core.errors import RunError, UsageError
from groupwise.models.tiny import ByteSpec


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


#: Half of the steps that it has, without what does not train.
SHORT = {"steps": 20, "evaluation.every": 0, "journal.report": False}


def faults(recipe: str, overrides: dict[str, object] | None = None, model: bool = True) -> list[str]:
    return [line for section in check_sections(recipe, overrides, model=model) for line in section.faults]


@pytest.mark.slow
def test_it_trains_as_it_is_and_learns() -> None:
    made = write_project(Path("mine"))
    assert faults(made.recipe) == []
    run = groupwise.train(made.recipe, overrides=SHORT, quiet=True)
    assert run.folder == Path("runs/mine").absolute()
    rewards = [reward for reward in run.metrics()["reward_mean"] if reward is not None]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:2]) / 2 + 0.2


def test_the_data_is_ten_rows_of_which_two_are_held_out() -> None:
    made = write_project(Path("mine"))
    assert len(Path("mine", DATA).read_text().splitlines()) == 10
    keys = tomllib.loads(Path("mine", RECIPE).read_text())["task"]
    task = groupwise.task(keys.pop("name"), keys)
    answers = {split: {sample.answer for sample in task.samples(split)} for split in ("train", "heldout")}
    assert (len(task.samples("train")), len(task.samples("heldout"))) == (8, 2)
    assert answers["heldout"] <= answers["train"]
    assert made.files == (RECIPE, REWARD, DATA, README)


def test_the_reward_runs_by_itself() -> None:
    write_project(Path("mine"))
    done = subprocess.run([sys.executable, "mine/reward.py"], capture_output=True, text=True, check=True)
    assert done.stdout == "'5' 1.0\n'2 + 3 = 5' 1.0\n'6' 0.2\n'five' 0.0\n"


@pytest.mark.parametrize(
    "name", ["a b", 'it\'s "so"', "a/b/c", "back\\slash", "-x", "~me", "x:y", "grüße", ".hidden", "$HOME"]
)
def test_the_recipe_finds_its_files_whatever_the_folder_is_called(name: str) -> None:
    write_project(Path(name))
    place = Path(name, RECIPE) if name != "~me" else Path(f"./{name}/{RECIPE}")
    recipe = Recipe.load(f"./{place}")
    assert os.path.samefile(str(recipe.task["path"]), Path(name, DATA))
    assert faults(f"./{place}", model=False) == []


def test_with_a_real_model_it_is_as_the_comment_says() -> None:
    """The comment names three keys: with them another model's folder passes every check."""
    made = write_project(Path("mine"))
    ByteSpec(chat=True).build("", Path("model"), seed=0)
    comment = (
        "steps = 0 under [warm_start], learning_rate = 1e-5 under [learner] and max_new_tokens = 64 under [sampling]"
    )
    assert comment in Path("mine", RECIPE).read_text()
    keys = {"warm_start.steps": 0, "learner.learning_rate": 1e-5, "sampling.max_new_tokens": 64}
    assert faults(made.recipe, {"model": "model", **keys}) == []


@pytest.mark.parametrize("folder", [".", "empty", "sub/empty"])
def test_an_empty_folder_is_taken(folder: str) -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)
    write_project(Path(folder))
    assert sorted(os.listdir(folder)) == sorted([README, DATA, RECIPE, REWARD])


def test_nothing_is_written_over() -> None:
    Path("full").mkdir()
    Path("full/notes.txt").write_text("mine")
    Path("file").write_text("")
    Path("link").symlink_to("nowhere")
    for name, words in (
        ("full", r"it is not empty \(notes.txt is in it\)"),
        ("file", "no folder"),
        ("link", "no folder"),
    ):
        with pytest.raises(UsageError, match=words):
            write_project(Path(name))
    assert os.listdir("full") == ["notes.txt"]
    assert sorted(os.listdir()) == ["file", "full", "link"]


@pytest.mark.parametrize("name", ["a\x1b[2J", "a\nb", "a\udcff"])
def test_a_name_that_steers_a_terminal_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="steers a terminal"):
        write_project(Path(name))
    assert os.listdir() == []


@pytest.mark.parametrize("there", [False, True])
def test_where_the_disk_refuses_nothing_is_left(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if there:
        Path("mine").mkdir()
    write_text = Path.write_text

    def full(path: Path, text: str, encoding: str | None = None) -> int:
        if path.name == DATA:
            raise OSError(28, "No space left on device")
        return write_text(path, text, encoding)

    monkeypatch.setattr(init.Path, "write_text", full)
    with pytest.raises(RunError, match=r"the project cannot be saved: No space left on device; free space"):
        write_project(Path("mine"))
    assert os.listdir() == (["mine"] if there else [])
    assert not there or os.listdir("mine") == []
