"""Runs whose reward is a judge: what it says is kept and counted, and a judge that is gone ends a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import groupwise
from groupwise.core.errors import RunError, UsageError
from tests.rewards.judge.server import CRITERIA, Reply, answer_of, judge_server, scores
from tests.runs.tiny_runs import rollouts, step_rows, tiny_run


def run(place: Path, url: str, **changes: Any) -> groupwise.Run:
    judge = {"url": url, "model": "m", "criteria": CRITERIA, "cache": str(place / "cache"), "retries": 0}
    rewards = {"judge": judge, "task": {"weight": 0.0}}
    return groupwise.train(
        "quickstart", tiny_run(place, **{"rewards": rewards, "scoring.workers": 1, **changes}), quiet=True
    )


def by_length(body: dict[str, Any], number: int) -> Reply:
    return scores(len(answer_of(body)), 0, f"{len(answer_of(body))} characters.")


def test_a_judge_trains_its_words_are_kept_and_the_second_time_costs_no_request(tmp_path: Path) -> None:
    with judge_server(by_length) as served:
        folder = run(tmp_path, served.url).folder
        asked = len(served.bodies)
        again = run(tmp_path, served.url, name="again").folder
        assert len(served.bodies) == asked + 1, "the one before the run"
    lines = rollouts(folder)
    for row in lines:
        assert row["parts"]["judge"] == pytest.approx(len(row["completion"]) / 4 / 10)
        assert row["logged"]["judge.reason"] == f"{len(row['completion'])} characters."
    for row in step_rows(folder):
        fresh = [line["logged"] for line in lines if line["step"] == row["step"] and line["fresh"]]
        for column in ("requests", "hits"):
            assert row[f"logged_total.judge.{column}"] == sum(one[f"judge.{column}"] for one in fresh)
        assert {"logged.judge.clear", "logged.judge.hits"} <= row.keys()
    totals = json.loads((folder / "summary.json").read_text())["logged_total"]
    assert (totals["judge.requests"], totals["judge.tokens"]) == (asked - 1, 50 * (asked - 1))
    assert [row["parts"] for row in rollouts(again)] == [row["parts"] for row in lines]
    assert json.loads((again / "summary.json").read_text())["logged_total"]["judge.requests"] == 0


def test_a_judge_that_is_not_there_begins_no_run(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"^rewards\.judge: http://127\.0\.0\.1:1/v1 is no judge: unreachable: "
    ) as told:
        run(tmp_path, "http://127.0.0.1:1/v1")
    assert "\n" not in str(told.value)
    assert not any((tmp_path / "runs").glob("*/metrics.jsonl"))


def test_a_judge_that_goes_away_ends_the_run_at_its_fault_limit(tmp_path: Path) -> None:
    def reply(body: dict[str, Any], number: int) -> Reply:
        return by_length(body, number) if number < 3 else (503, b"gone")

    words = r"completions could not be scored \(\d+ unreachable in judge\), more than scoring.fault_limit = 0.05 allows"
    with judge_server(reply) as served, pytest.raises(RunError, match=words) as told:
        run(tmp_path, served.url)
    assert "Try: a judge whose server runs, or fewer requests at once (reward judge)" in str(told.value)
    (log,) = (tmp_path / "runs").glob("*/log.txt")
    assert "unreachable in judge: HTTP 503: 'gone' (the last of 1 requests)" in log.read_text()
