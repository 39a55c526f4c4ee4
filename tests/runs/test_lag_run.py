"""Runs whose completions are older than what trains on them: the ages that the plan says, the same bits after stops."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import groupwise
from groupwise.commands.build import engine
from groupwise.commands.train.train import resume
from groupwise.config import recipe
from groupwise.config.resolve import resolve
from groupwise.core.errors import CheckFailed
from groupwise.engines.make import make_engine
from groupwise.reports.folder.columns import steps as curves
from groupwise.rollout.collect import Rollout
from tests.rollout.test_batches import Slow
from tests.runs.test_run import assert_goes_on, assert_same_run
from tests.runs.tiny_runs import cut_back, rollouts, step_rows, tiny_run

#: Completions of at most 4 tokens in turns of 2: a token is one version old at most, and 4 with turns of 1.
CHANGES: dict[str, Any] = {"steps": 6, "rollout__turn_tokens": 2, "learner__learning_rate": 1e-3}
AGE = "tokens are no older than the recipe says"


def test_turns_as_long_as_completions_change_no_bit(tmp_path: Path) -> None:
    whole = groupwise.train("quickstart", tiny_run(tmp_path, name="whole", steps=3)).folder
    for tokens in (4, 100):
        turns = {"name": f"turns-{tokens}", "rollout__turn_tokens": tokens}
        assert_same_run(whole, groupwise.train("quickstart", tiny_run(tmp_path, steps=3, **turns)).folder)
    assert {(row["checks"][AGE]["value"], row["checks"][AGE]["limit"]) for row in step_rows(whole)} == {(0.0, 0.0)}


@pytest.mark.parametrize(
    ("ahead", "tokens", "most"),
    [*(pytest.param(*case, marks=pytest.mark.slow) for case in ((0, 2, 1), (0, 1, 3))), (1, 2, 2)],
)
def test_each_token_says_its_version_and_a_stop_changes_nothing(
    ahead: int, tokens: int, most: int, tmp_path: Path
) -> None:
    changes = {**CHANGES, "rollout__turn_tokens": tokens, "rollout__ahead": ahead}
    whole = groupwise.train("quickstart", tiny_run(tmp_path, name="whole", **changes)).folder
    for row in rollouts(whole):
        spans = row.get("spans", [{"start": 0, "stop": row["tokens"], "own": True, "version": row["version"]}])
        began = max(0, row["step"] - 1 - most)
        turns = -(-row["tokens"] // tokens)
        versions = [max(0, row["step"] - 1 - most + turn) for turn in range(turns)]
        assert row["version"] == began
        assert [v for span in spans for v in [span["version"]] * (span["stop"] - span["start"])] == [
            versions[at // tokens] for at in range(row["tokens"])
        ]
    steps = step_rows(whole)
    assert [row["checks"][AGE]["value"] for row in steps] == [min(step, most) for step in range(6)]
    assert steps[-1]["token_age_max"] == most
    assert most - 1 <= steps[-1]["token_age_mean"] <= most or tokens == 1
    assert {row["checks"][AGE]["verdict"] for row in steps} == {"pass"}
    assert_goes_on(whole, 5, 2)


def test_what_the_newest_weights_sampled_of_a_completion_is_compared_with_the_learner(tmp_path: Path) -> None:
    """Each step's batch has tokens of the newest weights, in completions that older ones began."""
    folder = groupwise.train("quickstart", tiny_run(tmp_path, **CHANGES)).folder
    assert {row["checks"]["learner = engine"]["verdict"] for row in step_rows(folder)} == {"pass"}


def test_dapos_filter_and_refill_in_turns(tmp_path: Path) -> None:
    changes = {**CHANGES, "algorithm__name": "dapo", "rollout__turn_tokens": 1}
    whole = groupwise.train("quickstart", tiny_run(tmp_path, name="whole", **changes)).folder
    assert {row["checks"][AGE]["verdict"] for row in step_rows(whole)} == {"pass"}
    assert {row["fate"] for row in rollouts(whole)} >= {"trained", "dropped"}
    assert_goes_on(whole, 4)


def test_completions_that_wait_longer_than_the_plan_says_stop_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault planted in the engine: in step 3 it has the weights of two versions before."""
    collect, calls = Rollout.collect, []

    def late(self: Rollout, wanted: int, *more: Any) -> Any:
        calls.append(wanted)
        if len(calls) == 3:
            self.engine._engine.version -= 2  # type: ignore[attr-defined]
        return collect(self, wanted, *more)

    monkeypatch.setattr(Rollout, "collect", late)
    with pytest.raises(CheckFailed, match=f"step 3: .*'{AGE}' is 2, limit 1: completions waited longer"):
        groupwise.train("quickstart", tiny_run(tmp_path, **CHANGES))


def test_the_plan_says_how_old_tokens_may_be_and_what_is_corrected() -> None:
    def said(**changes: Any) -> str:
        return resolve(recipe.load("quickstart", {key.replace("__", "."): v for key, v in changes.items()})).describe()

    limit = recipe.load("quickstart").sampling.max_new_tokens
    words = said(rollout__turn_tokens=limit // 2)
    assert f"completions are sampled in turns of {limit // 2} tokens, one a step" in words
    assert "a token is at most 1 version older than the weights that train on it" in words
    assert "nothing corrects pi_old / pi_engine" in words
    assert "at most 2 versions older" in said(rollout__turn_tokens=limit // 2, rollout__ahead=1)
    assert "in turns of" not in said(rollout__turn_tokens=limit)


def test_the_page_says_which_tokens_are_how_old(tmp_path: Path) -> None:
    folder = groupwise.train("quickstart", tiny_run(tmp_path, **CHANGES, journal__report=True)).folder
    page = (folder / "report.html").read_text()
    assert "Age of the trained tokens" in page
    assert json.dumps({"start": 0, "stop": 2, "version": 3}, separators=(",", ":")) in page.replace(" ", "")


FREE: dict[str, Any] = {**CHANGES, "rollout__free": 2, "rollout__turn_tokens": 1}


def test_an_engine_that_goes_on_sampling_keeps_to_its_lag_and_a_stopped_run_goes_on(tmp_path: Path) -> None:
    folder = groupwise.train("quickstart", tiny_run(tmp_path, **FREE)).folder
    steps = step_rows(folder)
    assert len(steps) == 6
    assert {(row["checks"][AGE]["verdict"], row["checks"][AGE]["limit"]) for row in steps} == {("pass", 2.0)}
    assert max(row["token_age_max"] for row in steps) > 0
    cut_back(folder, 4)
    assert resume(folder).finished
    assert [row["step"] for row in step_rows(folder)] == [1, 2, 3, 4, 5, 6]
    groups = [(row["step"], row["group"], row["key"]) for row in rollouts(folder) if row["fate"] == "trained"]
    assert len({key for *_, key in groups}) * 16 <= len(groups)


def test_the_plan_says_what_a_free_lag_means() -> None:
    plan = resolve(recipe.load("quickstart", {"rollout.free": 2, "rollout.turn_tokens": 8})).describe()
    assert "turn after turn of 8 tokens while training goes on" in plan
    assert "a resumed run is not the same to the bit" in plan
    assert "at most 2 versions older" in plan


AHEAD: dict[str, Any] = {"steps": 5, "rollout__ahead": 1, "learner__learning_rate": 1e-3}


def test_each_batch_is_of_the_weights_before_those_that_it_trains_and_a_stop_changes_nothing(tmp_path: Path) -> None:
    whole = groupwise.train("quickstart", tiny_run(tmp_path, name="whole", **AHEAD)).folder
    assert {(row["step"], row["version"]) for row in rollouts(whole)} == {(1, 0), (2, 0), (3, 1), (4, 2), (5, 3)}
    steps = step_rows(whole)
    engine = [row["checks"]["learner = engine"]["verdict"] for row in steps]
    assert engine == ["pass"] + ["not measured"] * 4
    probed = [row["checks"]["engine and learner agree after a weight load"]["verdict"] for row in steps]
    assert probed == ["pass"] * 4 + ["not measured"]  # checks.probe_every
    assert_goes_on(whole, 4, 2)


def test_which_of_both_is_faster_changes_no_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sampling that takes far longer than training is not given the weights that training has made meanwhile."""
    quick = groupwise.train("quickstart", tiny_run(tmp_path, name="quick", **AHEAD)).folder
    monkeypatch.setattr(engine, "make_engine", lambda **given: Slow(make_engine(**given), 0.2))
    slow = groupwise.train("quickstart", tiny_run(tmp_path, name="slow", **AHEAD)).folder
    assert_same_run(quick, slow)


def test_the_timeline_says_that_sampling_lies_beside_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "make_engine", lambda **given: Slow(make_engine(**given), 0.2))
    folder = groupwise.train("quickstart", tiny_run(tmp_path, **AHEAD, journal__report=True)).folder
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
    changes = {**AHEAD, "algorithm__name": "dapo", "algorithm__mismatch__kind": "tis"}
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
