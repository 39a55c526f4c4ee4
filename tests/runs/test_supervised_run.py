"""Runs with supervised rows: alone, in a mix, as the start of another run, and what is refused before one begins."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import groupwise
from groupwise.journal.journal import read_metrics
from groupwise.tasks.arithmetic import Arithmetic
from tests.refusals import refused
from tests.runs.test_run import weights
from tests.runs.tiny_runs import tiny_policy, tiny_run

#: Keys of a run with a few demonstrations.
ROWS: dict[str, Any] = {
    "supervised__demonstrations": 40,
    "supervised__rows_per_step": 8,
    "supervised__held_out": 8.0,
    "evaluation__every": 1,
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("supervised")
    tiny_policy(folder / "model")
    return folder


@pytest.fixture(scope="module")
def alone(place: Path) -> groupwise.Run:
    changes = tiny_run(place, name="alone", mix__reinforced=0.0, steps=4, journal__report=True, **ROWS)
    return groupwise.train("quickstart", changes, quiet=True)


def of_file(place: Path) -> dict[str, Any]:
    """A recipe of chats alone, whose file has the demonstrations that `alone` trains on."""
    task = Arithmetic(operands=(2, 2), largest=2, heldout_share=0.3)
    rows = [{"prompt": d.prompt, "completion": d.completion} for d in task.demonstrations(40, 1)]
    path = place / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    own = {"path": str(path), "rows_per_step": 8, "held_out": 8.0}
    of_run = {"seed": 1, "steps": 4, "model": str(place / "model"), "runs": str(place / "runs"), "name": "chats"}
    return {**of_run, "task": {"name": "chats", "path": str(path)}, "supervised": own,
            "learner": {"learning_rate": 0.1}, "evaluation": {"every": 1}}  # fmt: skip


def same_policy(one: groupwise.Run, other: groupwise.Run) -> bool:
    pairs = weights(one.folder), weights(other.folder)
    return pairs[0].keys() == pairs[1].keys() and all(torch.equal(pairs[0][k], pairs[1][k]) for k in pairs[0])


def test_a_run_of_supervised_rows_learns_them_and_samples_for_evaluations_alone(alone: groupwise.Run) -> None:
    rows = read_metrics(alone.folder)
    steps = [row for row in rows if "evaluation" not in row]
    assert [row["step"] for row in steps] == [1, 2, 3, 4]
    assert all(row["supervised_tokens"] > 8 and row["gradient_norm"] > 0 < row["learning_rate"] for row in steps)
    losses = [row["evaluation"]["supervised_loss"] for row in rows if "evaluation" in row]
    assert len(losses) == 5
    assert losses[-1] < losses[0]
    assert not (alone.folder / "rollouts.jsonl").exists()
    s = alone.summary
    assert (s["algorithm"], s["supervised_loss_before"], s["supervised_loss_after"]) == ("supervised", *losses[::4])
    assert s["heldout_after"] >= 0, "the task's problems are sampled"


def test_the_rows_of_a_file_are_the_same_run_to_the_bit(alone: groupwise.Run, place: Path) -> None:
    chats = groupwise.train(of_file(place), quiet=True)
    assert same_policy(alone, chats)
    own, theirs = (
        [row["supervised_loss"] for row in read_metrics(run.folder) if "checks" in row] for run in (alone, chats)
    )
    assert own == theirs
    assert "heldout_after" not in chats.summary
    assert "algorithm" not in (chats.folder / "recipe.toml").read_text()


def test_its_page_says_nothing_of_groups_or_completions(alone: groupwise.Run) -> None:
    page = (alone.folder / "report.html").read_text()
    said = re.findall(r'"answer":"([^"]*)"', page)
    assert any("8 supervised rows train, of the task's demonstrations" in answer for answer in said)
    assert any("supervised rows alone train" in answer for answer in said)
    assert not any("reinforce" in answer or "?" in answer for answer in said)
    assert "rollouts.jsonl is missing" not in page
    log = (alone.folder / "log.txt").read_text()
    assert "«" in log, "an example is said before the run"
    assert not re.search(r"^algorithm |prompts x|witness ", log, re.MULTILINE)


def test_a_run_starts_from_it(alone: groupwise.Run, place: Path) -> None:
    changes = tiny_run(place, name="from", start=str(alone.folder), steps=1)
    run = groupwise.train("quickstart", changes, quiet=True)
    assert run.summary["heldout_before"] == alone.summary["heldout_after"]


def test_a_mix_with_one_weight_is_that_run_to_the_bit(place: Path) -> None:
    plain = groupwise.train("quickstart", tiny_run(place, name="plain"), quiet=True)
    weighed = tiny_run(place, name="weighed", mix__reinforced=1.0, mix__supervised=0.0, **ROWS)
    mix = groupwise.train("quickstart", {**weighed, "evaluation.every": 0}, quiet=True)
    assert same_policy(plain, mix)
    rows = ([{k: v for k, v in row.items() if k != "seconds"} for row in read_metrics(run.folder) if "loss" in row]
            for run in (plain, mix))  # fmt: skip
    assert next(rows) == next(rows)


def test_a_mix_has_both_losses_and_its_checks_are_of_what_was_sampled(place: Path) -> None:
    mix = groupwise.train("quickstart", tiny_run(place, name="mix", **ROWS), quiet=True)
    plain = [row for row in read_metrics(place / "runs" / "plain") if "loss" in row]
    steps = [row for row in read_metrics(mix.folder) if "loss" in row]
    assert steps[0]["loss"] != steps[0]["supervised_loss"] > 0
    same = ("reward_mean", "generated_tokens", "trained_tokens", "advantage_abs_mean", "updates")
    assert [steps[0][name] for name in same] == [plain[0][name] for name in same]
    assert steps[0]["gradient_norm"] != plain[0]["gradient_norm"]
    assert not [c for row in steps for c in row["checks"].values() if c["verdict"] == "fail"]
    assert "witness" in (mix.folder / "machine.jsonl").read_text()


def test_rows_that_changed_are_not_gone_on_with(alone: groupwise.Run, place: Path, tmp_path: Path) -> None:
    recipe = {**of_file(place), "name": "changed", "steps": 2, "checkpoint": {"every": 1}}
    run = groupwise.train(recipe, quiet=True)
    with (place / "rows.jsonl").open("a") as file:
        file.write('{"prompt": "1+1=", "completion": "2"}\n')
    with refused("the rows of [supervised] were others"):
        groupwise.resume(run, {"steps": 3}, quiet=True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mix.reinforced": 0.0, "mix.supervised": 0.0}, "all its weights are 0"),
        ({"mix.supervised": 1.0}, "mix.supervised = 1: there are no rows"),
        ({"mix.distilled": 0.5}, "mix.distilled = 0.5: the loss has no KL term to a teacher"),
        ({"supervised.path": "none.jsonl"}, "supervised.path = 'none.jsonl': there is no such file"),
        ({"supervised.path": "no"}, "supervised.path = 'no': no such file or folder"),
        ({"supervised.rows_per_step": 1, "updates_per_batch": 2}, "supervised.rows_per_step = 1: a step has 2 updates"),
        ({"task": {"name": "chats", "path": "x.jsonl"}, "mix.reinforced": 1.0}, "nothing scores chats"),
    ],
)
def test_what_cannot_be_mixed_is_refused_in_one_line(changes: dict[str, Any], words: str, place: Path) -> None:
    with refused(words):
        groupwise.train("quickstart", {**tiny_run(place, name="refused"), **changes}, quiet=True)
    assert not (place / "runs" / "refused").exists()


def test_a_recipe_needs_a_task_unless_its_rows_have_a_file(place: Path) -> None:
    with refused("task.name is missing"):
        groupwise.train({"steps": 1, "supervised": {"rows_per_step": 2}}, quiet=True)
    recipe = of_file(place)
    del recipe["task"]
    assert groupwise.train({**recipe, "name": "bare", "steps": 1}, quiet=True).finished
