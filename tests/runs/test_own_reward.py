"""Runs whose reward is a user's own, on prompts without answers: what trains is what is measured, filtered and said."""

from __future__ import annotations

import json
import math
import re
import statistics
import tomllib
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

import groupwise
from groupwise.commands.evaluate import evaluate_policies
from groupwise.core.errors import RunError
from groupwise.core.samples import Sample
from groupwise.journal.journal import read_metrics
from groupwise.reports.page.page import page_of_run
from tests.runs.tiny_runs import rollouts, step_rows

MINE = str(Path(__file__).parent / "rewards_without_answers.py")
Row = dict[str, Any]


def written(
    folder: Path, function: str, rows: list[Row], more: str = "", pass_at: float | None = None, steps: int = 2
) -> Path:
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "mine.toml").write_text(f"""
        steps = {steps}
        model = "tiny-bytes"
        prompts_per_step = 6
        samples_per_prompt = 4
        runs = "{folder / "runs"}"
        task = {{ name = "data", path = "{folder / "prompts.jsonl"}", check = "none", heldout_share = 0.25 }}
        learner.learning_rate = 1e-3
        sampling.max_new_tokens = 8
        scoring.workers = 1
        evaluation.problems = 6
        evaluation.samples = 2
        {"" if pass_at is None else f"evaluation.pass_at = {pass_at}"}
        journal.report = false
        rewards.mine.use = "{MINE}:{function}"
        {more}
    """)
    return folder / "mine.toml"


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    return partial(written, tmp_path)


@dataclass(frozen=True)
class Done:
    folder: Path
    summary: Row
    told: str


@pytest.fixture(scope="module")
def distinct(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """DAPO on prompts alone, with one function in TRL's form."""
    path = written(tmp_path_factory.mktemp("distinct"), "distinct", PROMPTS, 'algorithm.name = "dapo"')
    out = StringIO()
    with redirect_stdout(out):
        run = groupwise.train(str(path))
    return Done(run.folder, run.summary, out.getvalue())


PROMPTS: list[Row] = [{"prompt": f"Say {i}"} for i in range(60)]


def said(folder: Path) -> str:
    (run,) = page_of_run(folder).runs
    words = [f"{answer.question} {answer.answer}" for answer in run.answers]
    words += [finding.words for finding in run.findings]
    return "\n".join([(folder / "log.txt").read_text(), *words])


def test_prompts_and_one_function_of_trl_are_a_run_and_all_of_it_speaks_of_the_reward(distinct):
    told, summary, lines = distinct.told, distinct.summary, rollouts(distinct.folder)
    assert summary["heldout_measure"] == "reward"
    assert re.search(r" eval +2/\d+ \| held-out reward ", told)
    assert "measured by the mean of reward" in said(distinct.folder)
    for words in (told, said(distinct.folder)):
        assert "pass rate" not in words.replace("with evaluation.pass_at by a pass rate", "")
        assert "wrong" not in words
    assert "the held-out reward" in said(distinct.folder)

    assert all(row["measured"] == row["parts"]["mine"] == len(set(row["completion"])) for row in lines)
    assert all(row["score"] is None for row in lines)
    for row in step_rows(distinct.folder):
        own = [line for line in lines if line["step"] == row["step"] and line["fresh"]]
        assert row["measured_mean"] == pytest.approx(statistics.fmean(line["measured"] for line in own))
        assert row["advantage_abs_mean"] > 0.1
        assert row["trained_completions"] == 24
        assert "pass_rate" not in row
    recipe = tomllib.loads((distinct.folder / "recipe.toml").read_text())
    assert recipe["evaluation"]["metric"] == recipe["algorithm"]["filter"]["metric"] == "reward"


def test_what_a_function_logs_becomes_metrics_and_columns_of_the_browser(distinct):
    folder = distinct.folder
    for row in rollouts(folder):
        assert row["logged"] == {"mine.first": row["completion"][:1], "mine.characters": len(row["completion"])}
    for row in step_rows(folder):
        fresh = [line for line in rollouts(folder) if line["step"] == row["step"] and line["fresh"]]
        assert row["logged.mine.characters"] == pytest.approx(statistics.fmean(len(r["completion"]) for r in fresh))
        assert row["logged.mine.calls"] == 1.0
        assert row["logged_total.mine.characters"] == sum(len(r["completion"]) for r in fresh)
        assert row["logged_total.mine.calls"] == round(row["logged_total.mine.calls"]) < len(fresh), (
            "a call counts once"
        )
    evaluation = read_metrics(folder)[0]["evaluation"]
    assert evaluation["logged"].keys() == evaluation["logged_total"].keys() == {"mine.characters", "mine.calls"}
    evaluations = [row["evaluation"]["logged_total"] for row in read_metrics(folder) if "evaluation" in row]
    for name, total in distinct.summary["logged_total"].items():
        of_steps = sum(row[f"logged_total.{name}"] for row in step_rows(folder))
        assert total == pytest.approx(of_steps + sum(one[name] for one in evaluations))
    (table,) = [table for table in page_of_run(folder).runs[0].tables if table.title == "Logged by rewards, added up"]
    assert [row[0] for row in table.rows] == ["mine.calls", "mine.characters"]
    whole = page_of_run(folder)
    (run,) = whole.runs
    assert run.rollouts is not None
    assert {group.kind for group in run.rollouts.groups} <= {"rewards differ", "rewards equal"}
    assert all(c.logged.keys() == {"mine.first", "mine.characters"} for g in run.rollouts.groups for c in g.completions)
    assert "logged.mine.characters" in run.steps.columns
    assert {"measured", "logged", "signal"} <= {plot.id for plot in whole.plots}
    assert not {"pass-rate", "groups"} & {plot.id for plot in whole.plots}


def test_a_dictionary_of_verl_is_a_run_and_a_pass_mark_makes_pass_rates(write):
    folder = groupwise.train(str(write("by_length", PROMPTS, 'algorithm.name = "dapo"', pass_at=0.5))).folder
    for row in rollouts(folder):
        assert row["logged"] == {"mine.acc": float(len(row["completion"]) > 4), "mine.source": "prompts"}
    for row in step_rows(folder):
        own = [line for line in rollouts(folder) if line["step"] == row["step"] and line["fresh"]]
        assert row["pass_rate"] == statistics.fmean(line["measured"] >= 0.5 for line in own)
        assert row["logged.mine.acc"] == pytest.approx(statistics.fmean(line["logged"]["mine.acc"] for line in own))
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["heldout_measure"], summary["heldout_metric"]) == ("pass rate", "reward")
    again = evaluate_policies([str(folder)]).evaluation
    assert again.avg_at_k == summary["heldout_after"]
    lower = evaluate_policies([str(folder)], overrides={"evaluation.pass_at": -1.0}).evaluation
    assert (lower.avg_at_k, lower.pass_at_k) == (1.0, {1: 1.0, 2: 1.0})
    assert lower.rewards == again.rewards
    assert lower.measured_mean == pytest.approx(again.rewards["mine"])


KINDS = ("letters", "digits", "neither")


def test_rewards_of_several_tasks_vote_on_their_own_rows_and_none_is_a_fault(write, capsys):
    rows = [{"prompt": f"{kind} {i}", "kind": kind} for i in range(30) for kind in KINDS]
    more = f'algorithm.name = "grpo"\nrewards.other.use = "{MINE}:digits"\nrewards.other.weight = 2.0'
    done = groupwise.train(str(write("letters", rows, more)))
    votes = {"letters": {"mine"}, "digits": {"other"}, "neither": set()}
    met = set()
    for row in rollouts(done.folder):
        kind = row["prompt"].split()[0]
        met.add(kind)
        assert row.get("parts", {}).keys() == votes[kind]
        assert "fault" not in row
        if kind == "neither":
            assert row["advantage"] == 0
        else:
            assert row["measured"] == {"letters": 1.0, "digits": -2.0}[kind] * len(row["completion"])
    assert met == set(KINDS)
    for row in step_rows(done.folder):
        own = [line for line in rollouts(done.folder) if line["step"] == row["step"]]
        unscored = sum("parts" not in line for line in own)
        assert row["unscored_completions"] == unscored
        assert row["trained_completions"] == len(own) - unscored
        assert row["advantage_abs_mean"] > 0
        assert not any(name.startswith("faults.") for name in row)
    log = (done.folder / "log.txt").read_text()
    assert log.count("no vote: mine, other gave no score (None)") == 1
    assert "have no score" in capsys.readouterr().out


def test_a_function_that_forgets_to_return_is_said_and_not_believed(write, capsys):
    done = groupwise.train(str(write("nothing", PROMPTS, 'algorithm.name = "grpo"', steps=1)))
    assert "no completion has a score: nothing trains" in capsys.readouterr().out
    assert math.isnan(done.summary["heldout_after"])


def test_a_constant_reward_ends_a_run_of_dapo_in_words_about_the_reward(write):
    with pytest.raises(RunError) as error:
        groupwise.train(str(write("constant", PROMPTS, 'algorithm.name = "dapo"\nalgorithm.filter.max_rounds = 2')))
    assert "not one that has completions that differ in reward" in str(error.value)
    assert "wrong completions" not in str(error.value)


def test_a_task_with_answers_is_still_measured_by_what_trains_unless_the_recipe_says_otherwise(small):
    own = {**small(steps=1, algorithm__name="dapo"), "rewards.repetition": {"n": 1, "tokens": True}}
    by_reward = groupwise.train("quickstart", {**own, "name": "reward"})
    assert by_reward.summary["heldout_measure"] == "reward"
    assert by_reward.summary["heldout_after"] < 0
    chosen = {"evaluation.metric": "correctness", "algorithm.filter.metric": "correctness", "name": "score"}
    by_score = groupwise.train("quickstart", {**own, **chosen})
    assert by_score.summary["heldout_measure"] == "pass rate"
    assert 0 <= by_score.summary["heldout_after"] <= 1
    assert by_score.summary["heldout_by_reward"].keys() == {"repetition"}


def contains(sample: Sample, completion: str) -> float:
    """Reward 1.0 where the answer stands anywhere in the completion: a check with a hole."""
    return float(sample.answer in completion)


def exact(sample: Sample, completion: str) -> float:
    return float(completion.rpartition("=")[2] == sample.answer)


@pytest.mark.slow
def test_a_policy_that_finds_the_hole_in_a_reward_is_told_of_by_the_reward_that_watches(tmp_path: Path) -> None:
    rewards = {"contains": contains, "exact": {"use": exact, "weight": 0.0}}
    own = {"steps": 32, "prompts_per_step": 16, "updates_per_batch": 1, "algorithm.kl.beta": 0.0, "threads": 1}
    less = {"warm_start.steps": 200, "evaluation": {"problems": 0}, "checkpoint.every": 1000, "journal.report": False}
    changes = {**own, **less, "learner.learning_rate": 1e-3, "runs": str(tmp_path)}
    done = groupwise.train("quickstart", changes, rewards=rewards, quiet=True)
    said = [line for line in (done.folder / "log.txt").read_text().splitlines() if "warning, reward hacking" in line]
    assert len(said) == 1
    assert "while exact, which only watches the same completions, fell" in said[0]
