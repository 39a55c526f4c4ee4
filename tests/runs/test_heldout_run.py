"""What a run evaluates: several sets by name, none at all; and prompts that lose their first tokens."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

import groupwise
from groupwise.commands.build.selected import selected
from groupwise.commands.evaluate import evaluate_policies
from groupwise.commands.train.train import resume
from groupwise.config import recipe
from groupwise.config.resolve import resolve, resolved_recipe
from groupwise.core.errors import UsageError
from groupwise.core.files import jsonl
from groupwise.journal.journal import read_metrics
from groupwise.models.chat.prompts import Chat
from groupwise.models.load import load_policy
from tests.tasks.test_nested_columns import FLAT, verl_row, write


@pytest.fixture
def changes(tmp_path: Path) -> dict[str, object]:
    """A step of a random policy on verl's files, scored without a process of its own."""
    rows = [verl_row(row, i) for i, row in enumerate(FLAT)]
    return {
        "task": {
            "name": "verl",
            "check": "exact",
            "path": write(tmp_path / "train.jsonl", rows[:40]),
            "heldout_sets": {
                "first": write(tmp_path / "first.jsonl", rows[40:46]),
                "second": write(tmp_path / "second.jsonl", rows[50:53]),
            },
        },
        "rewards": {"task": {}},
        "algorithm.filter.kind": "none",
        "runs": str(tmp_path / "runs"),
        "steps": 1,
        "prompts_per_step": 2,
        "samples_per_prompt": 4,
        "warm_start.steps": 0,
        "sampling.max_new_tokens": 4,
        "evaluation.problems": 4,
        "checkpoint.every": 1,
        "journal.report": False,
    }


def test_each_held_out_set_is_reported_under_its_name(changes: dict[str, object]) -> None:
    plan = resolve(recipe.load("gsm8k-tiny", changes))
    assert plan.evaluated == {"first": 4, "second": 3}
    assert "evaluation   4 of first, 3 of second x 1 samples" in plan.describe()
    done = groupwise.train("gsm8k-tiny", changes)
    evaluation = next(row["evaluation"] for row in read_metrics(done.folder) if "evaluation" in row)
    by_source = evaluation["by_source"]
    assert {name: row["problems"] for name, row in by_source.items()} == {
        "first": 4,
        "second": 3,
        "openai/gsm8k": by_source["openai/gsm8k"]["problems"],
        "own/doubles": 7 - by_source["openai/gsm8k"]["problems"],
    }
    assert evaluation["problems"] == 7
    assert {"first", "second"} < set(done.summary["heldout_by_source"])
    rows = [row for row in jsonl.rows(done.folder / "heldout.jsonl") if row["step"] == 0]
    assert Counter(row["set"] for row in rows) == {"first": 4, "second": 3}
    assert {row["source"] for row in rows} == {"openai/gsm8k", "own/doubles"}


def test_a_run_that_evaluates_nothing_trains_resumes_and_says_so(changes: dict[str, object]) -> None:
    off = {**changes, "evaluation": {"problems": 0}}
    assert "evaluation   none" in resolve(recipe.load("gsm8k-tiny", off)).describe()
    done = groupwise.train("gsm8k-tiny", {**off, "journal.report": True})
    assert not any("evaluation" in row for row in read_metrics(done.folder))
    assert not any(key.startswith("heldout") for key in done.summary)
    assert (done.folder / "report.html").is_file()
    assert resume(done.folder).finished
    assert "no evaluation before step 1" not in (done.folder / "log.txt").read_text()
    with pytest.raises(UsageError, match=r"evaluation\.problems = 0: there is nothing to evaluate"):
        evaluate_policies([str(done.folder)])
    with pytest.raises(
        UsageError, match=r"evaluation\.every, evaluation\.samples: set, but nothing in this run reads it"
    ):
        resolve(recipe.load("gsm8k-tiny", {**off, "evaluation.every": 1, "evaluation.samples": 2}))


def test_a_recipe_that_evaluates_is_told_on_the_command_line_to_evaluate_nothing() -> None:
    with pytest.raises(UsageError) as error:
        resolve(recipe.load("quickstart", {"evaluation.problems": 0}))
    assert str(error.value).startswith("evaluation.every, evaluation.samples: set, but nothing in this run reads it")
    words = re.search(r"--set '(evaluation=.*)'$", str(error.value))
    assert words is not None
    assert "evaluation   none" in resolve(recipe.load("quickstart", dict([recipe.assignment(words[1])]))).describe()


def test_the_default_is_what_is_held_out_and_stays_so(changes: dict[str, object]) -> None:
    evaluation = {"samples": 2}
    plan = resolve(recipe.load("gsm8k-tiny", {**changes, "evaluation": evaluation}))
    assert plan.evaluated == {"first": 6, "second": 3}
    assert "problems" not in resolved_recipe(plan)["evaluation"]
    with pytest.raises(UsageError, match=r"evaluation\.problems = 7: the task holds out only 6"):
        resolve(recipe.load("gsm8k-tiny", {**changes, "evaluation.problems": 7}))


def test_a_prompt_that_is_too_long_keeps_its_end(
    changes: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    limit = 24
    cut = {**changes, "max_prompt_tokens": limit, "prompt_truncation": "left"}
    done = groupwise.train("gsm8k-tiny", cut)
    assert f"40 of 40 training problems have more than max_prompt_tokens = {limit} and lose" in capsys.readouterr().out
    plan = resolve(recipe.load("gsm8k-tiny", cut))
    chat = Chat(load_policy(Path(done.summary["policy"])).tokenizer)
    sample = plan.task.samples("train")[0]
    assert selected(plan, chat).encode(sample) == chat.encode(sample)[-limit:]
    assert chat.text(sample).endswith(chat.tokenizer.decode(chat.encode(sample)[-limit:]))
    with pytest.raises(UsageError, match="prompt_truncation = 'left': no prompt is too long without max_prompt_tokens"):
        resolve(recipe.load("gsm8k-tiny", {**cut, "max_prompt_tokens": 0}))
