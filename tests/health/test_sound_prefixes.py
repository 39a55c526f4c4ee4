"""Sound runs at every step of theirs: no look at what is known until then finds more than a note."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from groupwise.health.symptoms.base import BAD, WARN, Finding, History
from groupwise.health.watch import Watch, findings

#: Written by benchmarks/sound_runs.py.
RUNS = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "docs" / "evidence" / "sound-runs.jsonl").read_text().splitlines()
]
runs = pytest.mark.parametrize("run", RUNS, ids=[run["recipe"]["name"] for run in RUNS])


def prefix(run: dict[str, Any], last: int) -> History:
    """What is known of a run after a step."""
    steps, evaluations = ([row for row in run[rows] if row["step"] <= last] for rows in ("steps", "evaluations"))
    return History(steps, evaluations, run["recipe"], run["compares_within_group"])


def above_a_note(found: tuple[Finding, ...]) -> list[str]:
    return [f"{one.name}: {one.words}" for one in found if one.tone in (WARN, BAD)]


def test_the_quickstart_and_a_real_model_are_there_whole() -> None:
    assert {run["recipe"]["name"]: len(run["steps"]) for run in RUNS} == {"quickstart": 60, "times-tables": 16}
    assert all(run["evaluations"][-1]["step"] == len(run["steps"]) for run in RUNS)


@runs
def test_no_prefix_of_a_sound_run_has_a_finding_above_a_note(run: dict[str, Any]) -> None:
    seen = {last: above_a_note(findings(prefix(run, last))) for last in range(1, len(run["steps"]) + 1)}
    assert {last: words for last, words in seen.items() if words} == {}


@runs
def test_a_sound_run_warns_of_nothing_while_it_goes_on(run: dict[str, Any]) -> None:
    watch = Watch(run["recipe"], run["compares_within_group"])
    assert [words for row in run["steps"] for words in above_a_note(watch(row))] == []


@pytest.mark.parametrize(
    ("shares", "warned"),
    [
        ([0.8], False),
        ([0.8, 0.8, 0.8], True),
        ([0.8, 0.6, 0.5], False),
        ([0.8, 0.7, 0.7, 0.7], True),
        ([0.9] * 5 + [0.2] * 5, False),
        ([0.2] * 5 + [0.9] * 5, True),
        ([0.9] * 5 + [0.2] * 15, True),
    ],
)
def test_completions_that_are_cut_off_are_a_warning_unless_the_policy_learns_to_end(
    shares: list[float], warned: bool
) -> None:
    rows = [{"step": at, "truncated_share": share} for at, share in enumerate(shares, start=1)]
    found = {one.name: one for one in findings(History(rows))}["completions cut off"]
    assert (found.tone == WARN) == warned == bool(found.advice)
    assert warned or "learns to end" in found.words
