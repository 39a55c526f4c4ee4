"""Whole runs under every option of sampling: their checks hold, and what ended a completion stands in their files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import groupwise
from groupwise.commands.evaluate import evaluate_policies
from groupwise.core.errors import RunError
from groupwise.health.checks import ENGINE_IS_LOADED, LEARNER_IS_ENGINE, LIVE_IS_OLD
from groupwise.models.forward.adjustment import UNADJUSTED
from groupwise.training.learner import Learner
from tests.runs.tiny_runs import rollouts

OPTIONS: dict[str, Any] = {
    "sampling__min_p": 0.02,
    "sampling__top_p": 0.95,
    "sampling__temperature": 1.2,
    "sampling__logit_bias": {"5": 1.0, "9": -0.5},
    "sampling__min_new_tokens": 2,
    "sampling__stop": ["1", "+2"],
    "sampling__stop_ids": [7],
    "steps": 2,
}


def test_a_run_under_every_option_passes_its_checks_and_says_what_ended_each_completion(small: Callable[..., Any]):
    """The checks: live = old, learner = engine, the probe after each load, every step."""
    run = groupwise.train("quickstart", small(**OPTIONS, checkpoint__every=1))
    rows = rollouts(run.folder)
    ended = [row for row in rows if "stop" in row]
    assert {row["stop"] for row in ended} <= {"1", "+2"}
    assert len(ended) > 10
    for row in rows:
        assert row["tokens"] > 2 or row["finish"] == "length"
        if "stop" in row:
            assert row["finish"] == "stop"
            assert row["completion"].endswith(row["stop"])
    for invariant in (LIVE_IS_OLD, LEARNER_IS_ENGINE, ENGINE_IS_LOADED):
        measured = run.summary["checks"][invariant.name]
        assert measured["steps"] == 2
        assert measured["largest"] <= measured["limit"] <= 1e-4
    again = evaluate_policies([str(run.folder)]).evaluation
    assert again.avg_at_k == pytest.approx(run.summary["heldout_after"])
    longer = evaluate_policies(
        [str(run.folder)], overrides={"evaluation.stop": [], "evaluation.stop_ids": []}
    ).evaluation
    assert longer.length_mean > again.length_mean


@pytest.mark.parametrize("key", ["sampling__logit_bias", "sampling__min_new_tokens"])
def test_a_learner_that_does_not_know_of_it_ends_the_run(
    key: str, small: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    made = Learner.__init__

    def plain(*args: Any, **named: Any) -> None:
        made(*args, **{**named, "adjustment": UNADJUSTED})

    monkeypatch.setattr(Learner, "__init__", plain)
    with pytest.raises(RunError, match="learner = engine"):
        groupwise.train("quickstart", small(steps=1, **{key: OPTIONS[key]}))


def test_a_penalty_changes_an_evaluation_and_nothing_else(small: Callable[..., Any]):
    run = groupwise.train("quickstart", small(steps=1))
    before = evaluate_policies([str(run.folder)]).evaluation
    penalty = {"evaluation.repetition_penalty": 3.0}
    other = evaluate_policies([str(run.folder)], overrides=penalty).evaluation
    assert (before.length_mean, before.avg_at_k) != (other.length_mean, other.avg_at_k)
