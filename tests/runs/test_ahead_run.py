"""A run that samples ahead: each batch by the weights of two updates ago, and the same bits after every stop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import groupwise
from groupwise.commands.build import engine
from groupwise.config import recipe
from groupwise.config.resolve import resolve
from groupwise.engines.make import make_engine
from groupwise.reports.folder.columns import steps as curves
from tests.rollout.test_batches import Slow
from tests.runs.test_run import CORES, assert_goes_on, assert_same_run, kill_again_and_again, start
from tests.runs.tiny_runs import rollouts, step_rows, tiny_run

CHANGES: dict[str, Any] = {"steps": 5, "rollout__ahead": 1, "learner__learning_rate": 1e-3}


def test_each_batch_is_of_the_weights_before_those_that_it_trains_and_a_stop_changes_nothing(tmp_path: Path) -> None:
    whole = groupwise.train("quickstart", tiny_run(tmp_path, name="whole", **CHANGES)).folder
    assert {(row["step"], row["version"]) for row in rollouts(whole)} == {(1, 0), (2, 0), (3, 1), (4, 2), (5, 3)}
    steps = step_rows(whole)
    engine = [row["checks"]["learner = engine"]["verdict"] for row in steps]
    assert engine == ["pass"] + ["not measured"] * 4
    probed = [row["checks"]["engine and learner agree after a weight load"]["verdict"] for row in steps]
    assert probed == ["pass"] * 4 + ["not measured"]  # checks.probe_every
    assert_goes_on(whole, 4, 2)


def test_which_of_both_is_faster_changes_no_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sampling that takes far longer than training is not given the weights that training has made meanwhile."""
    quick = groupwise.train("quickstart", tiny_run(tmp_path, name="quick", **CHANGES)).folder
    monkeypatch.setattr(engine, "make_engine", lambda **given: Slow(make_engine(**given), 0.2))
    slow = groupwise.train("quickstart", tiny_run(tmp_path, name="slow", **CHANGES)).folder
    assert_same_run(quick, slow)


def test_the_timeline_says_that_sampling_lies_beside_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "make_engine", lambda **given: Slow(make_engine(**given), 0.2))
    folder = groupwise.train("quickstart", tiny_run(tmp_path, **CHANGES, journal__report=True)).folder
    lines = [json.loads(line) for line in (folder / "machine.jsonl").read_text().splitlines()]
    work = [line["timeline"] for line in lines]
    assert all(step["sampling"]["begin"] < step["training"]["end"] for step in work[:-1])
    for step in work[:-1]:  # no batch is sampled for a step after the last
        assert step["sampling"]["end"] - step["sampling"]["begin"] > 0.2
        assert step["training"]["end"] <= step["waiting"]["begin"] <= step["waiting"]["end"] <= step["loading"]["begin"]
    assert "waiting" not in work[-1]
    rows_of_steps = step_rows(folder)
    columns = curves(rows_of_steps, lines).columns
    assert columns["timeline.waiting.end"][:-1] == [step["waiting"]["end"] for step in work[:-1]]
    assert [line.get("ahead_seconds", 0) > 0.2 for line in lines] == [False] + [True] * 4
    rate = rows_of_steps[1]["generated_tokens"] / lines[1]["ahead_seconds"]
    assert columns["generate_tokens_per_second"][1] == pytest.approx(rate)
    assert "Who worked when, within a step" in (folder / "report.html").read_text()


def test_dapos_filter_and_refill_ahead(tmp_path: Path) -> None:
    changes = {**CHANGES, "algorithm__name": "dapo", "algorithm__mismatch__kind": "tis"}
    whole = groupwise.train("quickstart", tiny_run(tmp_path, name="whole", **changes)).folder
    assert_goes_on(whole, 3)
    assert all(row["version"] <= max(0, row["step"] - 2) for row in rollouts(whole))


def test_the_plan_says_which_policy_samples_and_from_which_ratios_start() -> None:
    def said(**changes: Any) -> str:
        return resolve(recipe.load("quickstart", {"rollout.ahead": 1, **changes})).describe()

    assert "by the weights before that (behaviour: logp_engine)" in said()
    assert "nothing corrects pi_old / pi_engine (algorithm.mismatch.kind would)" in said()
    corrected = said(**{"algorithm.mismatch.kind": "tis"})
    assert "tis(cap=2.0) corrects pi_old / pi_engine" in corrected
    assert "nothing corrects" not in corrected
    assert "ratios start from logp_engine itself" in said(logp_old="engine")
    assert "\nahead " not in resolve(recipe.load("quickstart")).describe()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grpo", "dapo"])
def test_ten_kills_and_resumes_of_a_run_ahead(name: str, small: Any) -> None:
    changes = small(algorithm__name=name, steps=40, prompts_per_step=16, threads=CORES, rollout__ahead=1)
    whole = start({**changes, "name": "whole"}, CORES)
    whole.communicate(timeout=300)
    cut = kill_again_and_again({**changes, "name": "cut"}, 10, 2, CORES)
    assert_same_run(Path(changes["runs"]) / "whole", cut)
