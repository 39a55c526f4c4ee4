"""Runs made of a user's own code: one file, in no repository; the run keeps it, and goes on with what it kept."""

from __future__ import annotations

import json
import shutil
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import groupwise
from groupwise.commands.algorithm import explain
from groupwise.commands.evaluate import evaluate_policies
from groupwise.commands.train.train import resume
from groupwise.core.errors import RunError, UsageError
from groupwise.journal.journal import read_metrics
from groupwise.reports.make import make
from groupwise.training.optimizer import silent
from groupwise.training.start.initial_policy import starting_policy
from groupwise.training.start.warm_start import WarmStart
from tests.command_process import CommandProcess
from tests.runs.tiny_runs import rollouts

CODE = Path(__file__).parent / "code_of_a_user.py"
RECIPE = """
steps = 4
prompts_per_step = 8
samples_per_prompt = 4
updates_per_batch = 2
runs = "RUNS"
task = { use = "mine.py:Doubles", largest = 40 }
warm_start = { steps = 20, demonstrations = 200 }
sampling.max_new_tokens = 5
evaluation.problems = 8
checkpoint = { every = 1, keep = 9 }
journal.report = false
learner.learning_rate = 1e-3

[algorithm]
name = "grpo"
trust = { use = "mine.py:StaleClip", delta = 0.3 }
advantage.use = "mine.py:Scaled"
filter.use = "mine.py:SomeRight"
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of a user's with the file and a recipe, which is where the command is given."""
    place = tmp_path / "theirs"
    place.mkdir()
    shutil.copy(CODE, place / "mine.py")
    (place / "own.toml").write_text(RECIPE.replace("RUNS", str(tmp_path / "runs")))
    monkeypatch.chdir(place)
    return place / "own.toml"


def columns(folder: Path) -> list[Any]:
    keys = ("step", "tokens", "advantage", "score", "ratio")
    return [[row.get(key) for key in keys] for row in rollouts(folder)]


def killed(recipe: Path, name: str, runs: Path) -> Path:
    command = CommandProcess("train", str(recipe), "--set", f"name={name}")
    until = time.monotonic() + 240
    while not list((runs / name / "checkpoints").glob("*2")) and command.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    command.kill()
    said = command.communicate()
    assert (runs / name / "checkpoints").is_dir(), said
    return runs / name


def test_a_killed_run_goes_on_with_the_file_it_began_with(recipe: Path, capsys: Any) -> None:
    runs, file = recipe.parents[1] / "runs", recipe.parent / "mine.py"
    whole = groupwise.train(str(recipe), {"name": "whole"}).folder
    assert "own code     " + str(file) in (whole / "log.txt").read_text()
    run = killed(recipe, "killed", runs)
    recipe.unlink()
    file.write_text("raise ValueError('another file now')")
    assert resume(run).finished
    changed, gone = f"{file} was changed since the run began", f"{file} is no longer there since the run began"
    assert changed in capsys.readouterr().err
    assert changed in (run / "log.txt").read_text()
    assert columns(run) == columns(whole)
    file.unlink()
    assert evaluate_policies([str(run)]).evaluation.avg_at_k == read_metrics(whole)[-1]["evaluation"]["avg_at_k"]
    assert gone in capsys.readouterr().err
    lines: list[str] = []
    text = explain(str(run), {}, lines.append)
    assert [line[: len(gone)] for line in lines] == [gone]
    assert "StaleClip(epsilon_low=0.2, epsilon_high=0.2, dual_clip=0.0, delta=0.3)" in text
    page = make([run]).path.read_text()
    for shown in ("StaleClip", "A_i = factor (R_i - mean_group R)", "The task Doubles", str(file)):
        assert shown in page


def test_the_run_folder_has_the_file_with_its_hash_and_a_recipe_that_names_it_from_anywhere(
    recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, file = groupwise.train(str(recipe), {"steps": 1}).folder, recipe.parent / "mine.py"
    (row,) = json.loads((run / "code" / "files.json").read_text())
    assert (run / "code" / row["file"]).read_bytes() == file.read_bytes()
    assert (row["file"], row["path"]) == ("mine.py", str(file))
    (about,) = json.loads((run / "about.json").read_text())["code"]
    assert about == {"path": str(file), "sha256": row["sha256"]}
    table = tomllib.loads((run / "recipe.toml").read_text())
    assert table["task"] == {"use": f"{file}:Doubles", "largest": 40}
    assert table["algorithm"]["trust"]["use"] == f"{file}:StaleClip"
    assert table["algorithm"]["advantage"] == {"use": f"{file}:Scaled", "factor": 0.5, "whiten": False}
    monkeypatch.chdir("/")
    assert evaluate_policies([str(run)]).evaluation.problems == 8
    (run / "code" / "mine.py").write_text("changed = True")
    with pytest.raises(UsageError, match=r"code/mine\.py: it is not the file that the run began with: its hash"):
        resume(run)
    (run / "code" / "files.json").write_text("[{")
    with pytest.raises(UsageError, match=r"code/files\.json: damaged"):
        evaluate_policies([str(run)])


def test_an_edited_file_has_a_warm_start_of_its_own(recipe: Path, tmp_path: Path) -> None:
    """The demonstrations are what the file says."""
    file, cache = recipe.parent / "mine.py", tmp_path / "cache"
    for edited in ("", "# a line more"):
        file.write_text(file.read_text() + edited)
        problems, warm = groupwise.task(None, {"use": "mine.py:Doubles"}), WarmStart(steps=1, demonstrations=4)
        starting_policy("tiny-dense", problems, warm, seed=0, cache=cache, device="cpu", on_step=silent)
    assert len([place for place in cache.iterdir() if place.is_dir()]) == 2


BROKEN = '''
import torch, groupwise
from dataclasses import dataclass
from groupwise.algorithms.parts.trust import Clip

@dataclass(frozen=True)
class Late(Clip):
    """Wrong once the policy has moved."""

    def __call__(self, log_ratio, advantage, logp_live, mask):
        value, share = super().__call__(log_ratio, advantage, logp_live, mask)
        return groupwise.Surrogate(value / (log_ratio == 0).all(), share)
'''


def test_a_part_that_goes_wrong_in_a_run_stops_it_in_one_line(
    tmp_path: Path, small: Callable[..., dict[str, Any]]
) -> None:
    (tmp_path / "late.py").write_text(BROKEN)
    changes = small(steps=2, algorithm__trust={"use": f"{tmp_path}/late.py:Late"}, algorithm__name="dapo")
    words = (
        r"^algorithm\.trust: Late returned a value that is not finite at \d+ of \d+ trained tokens; try: groupwise laws"
    )
    with pytest.raises(RunError, match=words) as told:
        groupwise.train("quickstart", changes)
    assert str(told.value).endswith(f"groupwise laws {tmp_path}/late.py:Late")
    assert "error: algorithm.trust: Late returned" in (Path(changes["runs"]) / "quickstart" / "log.txt").read_text()


@pytest.mark.slow
def test_a_reward_and_a_task_from_the_same_file_score_in_processes(recipe: Path) -> None:
    """Each process that scores imports the file, and torch with it, which takes seconds where no core is free."""
    file = recipe.parent / "mine.py"
    file.write_text(file.read_text().replace("    quick = True\n", ""))
    rewards = {"rewards.task": {}, "rewards.brevity": {"use": "mine.py:brevity", "weight": 0.1}, "scoring.workers": 1}
    run = groupwise.train(str(recipe), {**rewards, "steps": 2}).folder
    file.unlink()
    assert resume(run, {"steps": 4}).finished
    rows = rollouts(run)
    assert {row["step"] for row in rows} == {1, 2, 3, 4}
    for row in rows:
        assert row["parts"]["brevity"] == pytest.approx(1 / (1 + len(row["completion"])))
        assert row["score"] == float(row["completion"] == row["answer"])
