"""No moment of a run that learns soundly is told that its held-out problems are another matter; a real gap is."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from groupwise.health.symptoms.base import History
from groupwise.health.symptoms.progress import held_out_apart
from tests.health.health_rows import RECIPE, evaluation, rates

EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence"


def sound() -> dict[str, dict[str, Any]]:
    """The curves of the runs that docs/findings/collapse.md counts as sound, with an evaluation every second step."""
    rows = map(json.loads, (EVIDENCE / "collapse.jsonl").read_text().splitlines())
    return {f"{row['kind']}, seed {row['seed']}": row for row in rows if row["kind"].startswith("sound")}


def look(steps: list[dict[str, Any]], evaluations: list[dict[str, Any]], last: int) -> Any:
    """What is seen after a step."""
    known = [row for row in evaluations if row["step"] <= last]
    return held_out_apart.look(History([row for row in steps if row["step"] <= last], known, RECIPE))


@pytest.mark.parametrize("name", sound())
def test_no_prefix_of_a_sound_run_is_warned_of_its_held_out_problems(name: str) -> None:
    run = sound()[name]
    steps = [{"step": at, "pass_rate": rate} for at, rate in enumerate(run["curves"]["pass_rate"], start=1)]
    for kept in (run["heldout"], run["heldout"][:1], run["heldout"][::10]):
        evaluations = [evaluation(step, rate, problems=128) for step, rate in kept]
        seen = [look(steps, evaluations, last) for last in range(1, len(steps) + 1)]
        assert not [one for one in seen if one], name


@pytest.mark.parametrize("last", [20, 23, 40])
def test_a_real_gap_is_seen_from_either_side_and_at_the_end(last: int) -> None:
    steps = rates((20, 0.9), (20, 0.9), spread=0.01)
    assert "it learns the training problems" in look(steps, [evaluation(0, 0.9), evaluation(20, 0.5)], last).words


def test_one_or_two_steps_say_nothing() -> None:
    steps = rates((2, 0.9))
    assert look(steps, [evaluation(1, 0.2), evaluation(2, 0.2)], last=2) is None


def share_after(step: float, speed: float) -> float:
    """The share that the weights after a step pass: its odds grow by one factor a step, and are even at step 12."""
    return 1 / (1 + math.exp(speed * (12 - step)))


@pytest.mark.parametrize("lag", [0, 1, 3])
@pytest.mark.parametrize("speed", [0.1, 0.3, 0.6, 0.9, 1.2, -0.1, -0.3, -0.6, -0.9, -1.2])
def test_no_prefix_of_a_run_that_rises_or_falls_fast_is_told_of_its_held_out_problems(speed: float, lag: int) -> None:
    """The training samples of a step come from the weights after the step before it, or from older ones."""
    steps = [
        {"step": at, "pass_rate": share_after(at - 1 - lag, speed), "token_age_mean": float(lag)} for at in range(1, 25)
    ]
    for at in range(1, 25):
        evaluations = [evaluation(at, share_after(at, speed), problems=512)]
        seen = [look(steps, evaluations, last) for last in range(at, 25)]
        assert not [one for one in seen if one], at


def test_easier_problems_held_out_are_seen_in_a_run_that_stands_still() -> None:
    steps = rates((20, 0.5), spread=0.01)
    for last in (10, 20):
        assert "the held-out problems are easier" in look(steps, [evaluation(10, 0.9)], last).words


def test_a_few_problems_that_all_fail_say_nothing() -> None:
    steps = rates((10, 0.2), spread=0.01)
    none_right = evaluation(5, 0.0, problems=8, standard_error=0.0)
    assert look(steps, [none_right], last=10) is None
    assert look(steps, [{**none_right, "evaluation": {**none_right["evaluation"], "problems": 512}}], last=10)
