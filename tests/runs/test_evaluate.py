"""What a run evaluates, and policies evaluated beside one another on the same problems, and what is kept of it."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from pathlib import Path
from statistics import fmean

import pytest

import groupwise
from groupwise.commands.build.rollout import selected
from groupwise.commands.evaluate import Results, difference, evaluate_policies, result_lines, with_step, write_results
from groupwise.commands.train.train import resume
from groupwise.config import recipe, recipe_files
from groupwise.config.resolve import resolve, resolved_recipe
from groupwise.core.errors import UsageError
from groupwise.core.files import jsonl
from groupwise.journal.journal import read_metrics
from groupwise.models.chat.prompts import Chat
from groupwise.models.load import load_policy
from tests.command_process import CommandProcess
from tests.runs.tiny_runs import cut_back, tiny_policy, tiny_run
from tests.tasks.test_nested_columns import FLAT, verl_row, write


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> groupwise.Run:
    return groupwise.train("quickstart", tiny_run(tmp_path_factory.mktemp("evaluated")))


@pytest.fixture(scope="module")
def pair(run: groupwise.Run, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The policy that the run began with, a folder, and the one that it made, on the recipe of the run."""
    begun = tiny_policy(tmp_path_factory.mktemp("begun") / "model")
    return evaluate_policies([str(begun), str(run.folder)], recipe=str(run.folder))


def test_two_folders_on_the_same_problems_and_what_is_kept(run: groupwise.Run, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny_policy(tmp_path / "before")
    shutil.copytree(run.folder / "checkpoints" / "step-000002" / "policy", tmp_path / "after")
    process = CommandProcess("eval", "before", "after", "--recipe", str(run.folder))
    said = process.communicate()
    assert process.returncode == 0, said
    assert said.splitlines()[-1] == "results.json and completions.jsonl are in evaluations/before-against-after"
    folder = tmp_path / "evaluations" / "before-against-after"
    results = json.loads((folder / "results.json").read_text())
    rates = [policy["avg_at_k"] for policy in results["policies"]]
    assert rates == [run.summary["heldout_before"], run.summary["heldout_after"]]
    (apart,) = results["differences"]
    assert (apart["first"], apart["second"], apart["problems"]) == ("before", "after", 3)
    assert apart["value"] == pytest.approx(rates[1] - rates[0])
    assert apart["interval"]["low"] <= apart["value"] <= apart["interval"]["high"]
    assert f"after - before: {apart['value']:+.4f} on the same 3 problems (95 % " in said
    rows = [json.loads(line) for line in (folder / "completions.jsonl").read_text().splitlines()]
    assert len(rows) == 2 * 3 * 16
    for name, rate in zip(("before", "after"), rates, strict=True):
        own = [row for row in rows if row["policy"] == name]
        assert fmean(row["score"] == 1 for row in own) == pytest.approx(rate)
        assert [(row["problem"], row["sample"]) for row in own] == [(i, j) for i in range(3) for j in range(16)]
    keys = [{row["key"] for row in rows if row["policy"] == name} for name in ("before", "after")]
    assert keys[0] == keys[1]
    assert results["recipe"]["task"]["name"] == "arithmetic"


def test_a_step_of_a_run_is_the_policy_of_that_step(run: groupwise.Run, pair: Results, tmp_path: Path):
    earlier = tmp_path / "earlier"
    shutil.copytree(run.folder, earlier)
    cut_back(earlier, 2)
    (name,) = with_step([str(run.folder)], 1)
    assert name == f"{run.folder}:1"
    first = evaluate_policies([name])
    assert first.policies[0].name == name
    assert first.evaluation == evaluate_policies([str(earlier)]).evaluation != pair.policies[1].evaluation
    assert pair.policies[1].name == f"{run.folder}:2"
    for names, words in (
        ([name], r"--step 1: of one run"),
        ([str(run.folder)] * 2, r"write RUN:STEP, such as runs/NAME:1"),
        ([str(tmp_path)], r"--step 1: of one run"),
    ):
        with pytest.raises(UsageError, match=words):
            with_step(names, 1)
    with pytest.raises(UsageError, match=r"it has no checkpoint of step 7; there are 1, 2"):
        evaluate_policies([f"{run.folder}:7"])


def test_a_policy_against_itself_differs_by_nothing(run: groupwise.Run, pair: Results):
    same = difference(pair.policies[1], pair.policies[1])
    assert same.value == 0
    assert same.interval is not None
    assert same.interval.low < 0 < same.interval.high, "with 3 problems nothing is certain"
    (apart,) = pair.differences
    assert f": {apart.change.verdict}" in result_lines(pair)[-1]
    run_says = run.summary["heldout_change"]
    assert {**apart.change.row, "value": pytest.approx(apart.value)} == run_says, "the run and `eval` say one thing"


def test_only_problems_of_both_are_compared(pair: Results):
    """As where each tokenizer leaves out other prompts."""
    from dataclasses import replace

    first, second = pair.policies
    fewer = replace(second, groups=second.groups[1:])
    apart = difference(first, fewer)
    assert apart.problems == 2
    rates = [[fmean(c.score == 1 for c in g.completions) for g in result.groups[1:]] for result in (first, second)]
    assert apart.value == pytest.approx(fmean(rates[1]) - fmean(rates[0]))
    with pytest.raises(UsageError, match="have no problem in common"):
        difference(replace(first, groups=first.groups[:1]), fewer)


def test_a_folder_of_an_evaluation_is_never_written_over(pair: Results, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = [write_results(pair, None).name for _ in range(2)]
    assert names == ["model-against-quickstart-step-2", "model-against-quickstart-step-2-2"]
    assert write_results(pair, tmp_path / "mine").name == "mine"
    assert not list(tmp_path.rglob(".partial*"))


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
    assert (
        "evaluation   none" in resolve(recipe.load("quickstart", dict([recipe_files.assignment(words[1])]))).describe()
    )


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
    assert selected(plan.recipe, plan.task, chat).encode(sample) == chat.encode(sample)[-limit:]
    assert chat.text(sample).endswith(chat.tokenizer.decode(chat.encode(sample)[-limit:]))
    with pytest.raises(UsageError, match="prompt_truncation = 'left': no prompt is too long without max_prompt_tokens"):
        resolve(recipe.load("gsm8k-tiny", {**cut, "max_prompt_tokens": 0}))
