"""Columns of the plots, and the tables of what was run."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from groupwise.core.numbers.statistics import pass_rate_interval
from groupwise.reports.folder import columns, facts
from groupwise.reports.folder.read import RunFolder
from groupwise.reports.records import Status

ROWS: list[dict[str, Any]] = [
    {"step": 1, "loss": 0.5, "name": "x", "flag": True, "checks": {"a": {"value": 1.0}}},
    {"step": 2, "loss": None, "kl_mean": 0.25, "rewards.mine.mean": 1},
    {"step": 3, "loss": math.nan, "entropy_mean": math.inf, "generated_tokens": 900, "generated_tokens_dropped": 225}
    | {"trained_tokens": 600.0, "seconds": {"generate": 2.0, "load weights": 0.5, "update": 4.0}},
]


def test_a_column_is_as_long_as_the_run_and_has_gaps() -> None:
    found = columns.steps(ROWS, [{"step": 2, "time": 1.0, "memory_peak_mib": 77}])
    assert found.step == [1, 2, 3]
    assert found.columns == {
        "loss": [0.5, None, None],
        "kl_mean": [None, 0.25, None],
        "rewards.mine.mean": [None, 1, None],
        "generated_tokens": [None, None, 900],
        "generated_tokens_dropped": [None, None, 225],
        "trained_tokens": [None, None, 600.0],
        "seconds.generate": [None, None, 2.0],
        "seconds.load weights": [None, None, 0.5],
        "seconds.update": [None, None, 4.0],
        "seconds_total": [None, None, 6.5],
        "generate_tokens_per_second": [None, None, 450.0],
        "train_tokens_per_second": [None, None, 150.0],
        "dropped_tokens_share": [None, None, 0.25],
        "memory_peak_mib": [None, 77, None],
    }


def test_nothing_per_no_time_is_a_gap() -> None:
    row = {"step": 1, "generated_tokens": 0, "generated_tokens_dropped": 0, "seconds": {"generate": 0.0}}
    assert set(columns.steps([row]).columns) == {*row, "seconds.generate", "seconds_total"} - {"step", "seconds"}


def test_evaluations() -> None:
    last: dict[str, Any] = {"avg_at_k": 0.95, "standard_error": 0.03, "pass_at_k": {"1": 0.95, "4": 1.0}}
    last |= {
        "problems": 100,
        "samples": 4,
        "by_source": {"a.b": {"avg_at_k": 0.9, "score_mean": 0.8}},
        "learned_mean": None,
    }
    rows = [
        {"step": 0, "evaluation": {"avg_at_k": 0.5}},
        {"step": 4, "evaluation": last, "seconds": {"evaluate": 2.0}},
    ]
    curves = columns.evaluations(rows).columns
    around = pass_rate_interval(0.95, 100, 4, 0.03)
    assert curves["avg_at_k"] == [0.5, 0.95]
    assert curves["pass_at_k.4"] == [None, 1.0]
    assert curves["by_source.a.b.score_mean"] == [None, 0.8]
    assert (curves["low"], curves["high"]) == ([None, columns.short(around.low)], [None, columns.short(around.high)])
    assert (curves["seconds.evaluate"], curves["seconds_total"]) == ([None, 2.0], [None, 2.0])
    assert "learned_mean" not in curves


@pytest.mark.parametrize("odd", [{"avg_at_k": 1.5}, {"avg_at_k": None}, {"problems": 0}, {"problems": "many"}])
def test_an_evaluation_that_does_not_say_enough_has_no_interval(odd: dict[str, Any]) -> None:
    assert columns.interval({"avg_at_k": 0.5, "problems": 100, "samples": 4, **odd}) is None


@pytest.mark.parametrize(("count", "most"), [(10, 4), (2000, 500), (3, 2), (5, 5), (4, 9), (0, 2), (1, 2)])
def test_a_long_run_keeps_its_ends_and_no_more_rows_than_asked(count: int, most: int) -> None:
    whole = list(range(count))
    found = columns.steps([{"step": i, "loss": i / 8} for i in whole], most=most)
    assert len(found.step) == min(count, most)
    assert found.step == sorted(set(found.step))
    assert found.step[:1] + found.step[-1:] == whole[:1] + whole[-1:]
    assert found.columns.get("loss", []) == [i / 8 for i in found.step]
    gaps = {b - a for a, b in pairwise(found.step)}
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_rounding_keeps_what_a_person_reads() -> None:
    numbers, others = [1 / 3, -2e-17 / 3, 123456.789, 1e99 / 7, 0.0], [None, 7, 10**12, 1, 2]
    rows = [{"step": i, "a": a, "b": b} for i, (a, b) in enumerate(zip(numbers, others, strict=True))]
    found = columns.steps(rows)
    assert found.columns["a"] == pytest.approx(numbers, rel=5e-7, abs=0)
    assert found.columns["a"] != numbers
    assert found.columns["b"] == others


def run(recipe: dict[str, Any], about: dict[str, Any], summary: dict[str, Any] | None) -> RunFolder:
    none: list[dict[str, Any]] = []
    told = ("seed = 3\n", about, summary, none, none, none, (), Status("stopped", ""))
    return RunFolder(Path("runs/x"), "x", recipe, *told)


RECIPE: dict[str, Any] = {"steps": 60, "seed": 3, "model": "tiny", "prompts_per_step": 64, "samples_per_prompt": 8}
RECIPE |= {"updates_per_batch": 2, "passes_per_batch": 4, "task": {"name": "arithmetic"}}
RECIPE |= {"algorithm": {"name": "grpo", "trust": {"kind": "clip", "epsilon_low": 0.2, "hard": True}}}
ABOUT: dict[str, Any] = {"groupwise": "0.1.0", "started": 1_700_000_000.5, "machine": "x86_64, 2 threads, cpu"}
ABOUT |= {"versions": {"python": "3.11.7", "torch": "2.13.0"}, "task": "arithmetic"}
ABOUT["resumed"] = [{"step": 40, "started": 1_700_003_600, "machine": "a larger one", "versions": {}}]
PARTS = [
    {"slot": "trust", "kind": "clip", "value": "epsilon_low=0.2", "equation": "min(r A, clip(r) A)"},
    {"slot": "passes", "kind": "", "value": "4", "equation": "passes over a batch"},
]
ABOUT["algorithm"] = {"name": "grpo", "paper": "a paper, 2024", "watch": "share_passed.", "objective": "J = r A"}
ABOUT["algorithm"]["parts"] = PARTS


@pytest.fixture
def in_tokyo() -> Iterator[None]:
    """A place whose clocks show another time than UTC."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        yield
    time.tzset()


def test_what_was_run(in_tokyo: None) -> None:
    short, _, parts = facts.tables(run(RECIPE, ABOUT, None))
    assert dict(short.rows) == {
        "folder": "runs/x",
        "started": "2023-11-14 22:13 UTC",
        "resumed": "after step 40 at 2023-11-14 23:13 UTC on a larger one",
        "task": "arithmetic",
        "model": "tiny",
        "algorithm": "grpo",
        "a step": "64 prompts x 8 samples, 8 updates in 4 passes",
        "steps": "60",
        "seed": "3",
        "machine": "x86_64, 2 threads, cpu",
        "groupwise": "0.1.0",
        "python": "3.11.7",
        "torch": "2.13.0",
    }
    assert short.words == ""
    assert parts.head == ("part", "kind", "settings", "equation")
    assert parts.rows[0] == tuple(PARTS[0].values())
    assert parts.words == "It maximises J = r A. Source: a paper, 2024. Watch: share_passed."
    assert [text.text for text in facts.texts(run(RECIPE, ABOUT, None))] == ["seed = 3\n"]


def test_what_sessions_do_is_said_as_far_as_it_can_be_read() -> None:
    one = {"problem": "a", "sample": 1, "requests": 2, "tokens": 3000, "tools": ["add", "add"], "seconds": 61.2}
    odd: list[Any] = [{**one, "waits": True}, {**one, "tools": 3, "tokens": "x", "waits": 1}, {}]
    table, *_ = facts.tables(replace(run(RECIPE, ABOUT, None), sessions=odd))
    assert table.rows == (
        ("a", "1", "2", "3,000", "61", "add, add", "waits for an answer"),
        ("a", "1", "2", "0", "61", "", "at work"),
        ("None", "0", "0", "0", "0", "", "at work"),
    )
    assert len(facts.tables(run(RECIPE, ABOUT, None))) == 3


def test_what_was_run_in_a_folder_from_before() -> None:
    summary = {"machine": "x86_64", "versions": {"torch": "2.12"}}
    short, _, parts = facts.tables(run(RECIPE, {}, summary))
    assert "before about.json" in short.words
    assert dict(short.rows)["machine"] == "x86_64"
    assert dict(short.rows)["torch"] == "2.12"
    assert parts.rows == (("trust", "clip", "epsilon_low = 0.2, hard = true"),)


@pytest.mark.parametrize(
    "about",
    [
        {},
        {"algorithm": 3, "versions": [], "resumed": {}, "started": "x"},
        {"algorithm": {"parts": [1]}},
        {"algorithm": {"parts": 3}},
    ],
)
def test_what_was_run_in_a_folder_that_says_little(about: dict[str, Any]) -> None:
    for recipe in ({}, {"task": 3, "algorithm": [], "prompts_per_step": "many"}):
        tables = facts.tables(run(recipe, about, None))
        assert all(len(row) == len(table.head) for table in tables for row in table.rows)
