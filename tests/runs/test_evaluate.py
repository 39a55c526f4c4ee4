"""Evaluation of runs and folders: one alone, a step of a run, several on the same problems, and what is kept of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from statistics import fmean

import pytest

import groupwise
from groupwise.commands.evaluate import Results, difference, evaluate_policies, result_lines, with_step, write_results
from groupwise.core.errors import UsageError
from tests.command_process import CommandProcess
from tests.runs.tiny_runs import cut_back, tiny_policy, tiny_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> groupwise.Run:
    """Two steps, both checkpoints kept."""
    return groupwise.train("quickstart", tiny_run(tmp_path_factory.mktemp("evaluated")))


@pytest.fixture(scope="module")
def pair(run: groupwise.Run, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The policy that the run began with, a folder, and the one that it made, on the recipe of the run."""
    begun = tiny_policy(tmp_path_factory.mktemp("begun") / "model")
    return evaluate_policies([str(begun), str(run.folder)], recipe=str(run.folder))


def test_two_folders_on_the_same_problems_and_what_is_kept(run: groupwise.Run, tmp_path: Path, monkeypatch):
    """The command, as a person types it."""
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
