"""No moment of a run that learns soundly is told that its held-out problems are another matter; a real gap is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from groupwise.health.symptoms.base import NEUTRAL, History
from groupwise.health.symptoms.progress import held_out_apart
from tests.health.health_rows import RECIPE, evaluation, rates

EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence"


def sound() -> dict[str, dict[str, Any]]:
    """The curves of the runs that docs/collapse.md counts as sound: every step, an evaluation every second one."""
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
        assert not [one for one in seen if one and one.tone != NEUTRAL], name


@pytest.mark.parametrize("last", [20, 23, 40])
def test_a_real_gap_is_seen_from_either_side_and_at_the_end(last: int) -> None:
    steps = rates((20, 0.9), (20, 0.9), spread=0.01)
    assert "it learns the training problems" in look(steps, [evaluation(0, 0.9), evaluation(20, 0.5)], last).words


def test_one_or_two_steps_say_nothing() -> None:
    steps = rates((2, 0.9))
    assert look(steps, [evaluation(1, 0.2), evaluation(2, 0.2)], last=2) is None
