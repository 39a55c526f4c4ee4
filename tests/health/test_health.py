"""Findings of a whole run: a sound one gives none, what has passed is told as such, a step costs the same for ever."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from groupwise.health import watch as health
from groupwise.health.symptoms.base import RECENT, History, percent
from groupwise.health.symptoms.signal import windows
from groupwise.health.watch import BAD, EARLY, GOOD, NEUTRAL, SYMPTOMS, WARN, Watch
from tests.health.health_rows import (
    DAPO,
    GSPO,
    PLANTED,
    RECIPE,
    Rows,
    drop_keys,
    evaluation,
    everywhere,
    findings,
    healthy,
    named,
    planted,
    rates,
    recipe,
)

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (everywhere(truncated_share=0.9), [(3, "completions cut off")]),
        (everywhere(engine_probability_error=1.2), [(1, "engine gap")]),
        (planted(truncated_share=0.9), [(32, "completions cut off")]),
        (rates((20, 0.8), (20, 0.5)), [(26, "falling")]),
        (planted(**{"faults.timeout in mine": 3}), []),
    ],
)
def test_a_warning_is_told_once_after_three_steps_unless_something_is_wrong(
    rows: Rows, told: list[tuple[int, str]]
) -> None:
    watch = Watch(RECIPE, True)
    assert [(row["step"], f.name) for row in rows for f in watch(row)] == told
    assert len(watch._rows) <= health.REMEMBERED


def test_what_was_no_warning_of_the_run_itself_is_not_told_as_one_that_has_passed() -> None:
    rows = healthy()
    for row in rows[20:30]:
        row["length_wrong_mean"] = 40.0  # not told while a run goes on
    for row in rows[10:20]:
        row |= {"groups_all_right_share": 0.8, "groups_mixed_share": 0.15}  # earned: no warning
    assert not [f.words for f in findings(rows, RECIPE) if f.words.startswith("Earlier")]


CUT_OFF = [{**row, "truncated_share": 0.9} if 26 <= row["step"] <= 30 else row for row in healthy()]


@pytest.mark.parametrize(
    ("rows", "name", "step"),
    [(rates((10, 0.9), (80, 0.5), (10, 0.9)), "falling", 50), (CUT_OFF, "completions cut off", 30)],
    ids=["as many steps as the run saw", "the last moment before now"],
)
def test_what_has_passed_is_said_of_its_last_moment(rows: Rows, name: str, step: int) -> None:
    assert named(findings(rows, recipe(steps=200)))[name].words.startswith(f"Earlier, at step {step}:")


@pytest.mark.parametrize("steps", [1, 2, 5, 10, 11, 25, 40])
@pytest.mark.parametrize("settings", [RECIPE, GSPO, DAPO, {}])
def test_a_healthy_run_gives_no_warning(steps: int, settings: dict[str, Any]) -> None:
    rows = [evaluation(0, 0.41), *healthy(steps)]
    assert not {f.name for f in findings(rows, settings) if f.tone in (WARN, BAD)}
    watch = Watch(settings, True)
    assert not [f for row in healthy(steps) for f in watch(row)]


@pytest.mark.parametrize("name", PLANTED)
def test_findings_survive_gaps(name: str) -> None:
    rows, settings, _ = PLANTED[name]
    symptom = next(s for s in SYMPTOMS if s.name == name)
    before = repr(rows)
    for key in sorted({key for row in rows for key in row} - {"step", "evaluation"}):
        nans = [{**row, key: float("nan")} if i % 3 else row for i, row in enumerate(rows)]
        for gaps in (drop_keys(rows, key), [{**row, key: None} for row in rows], nans):
            symptom.look(History(gaps, (), settings, True))
    findings(rows[-1:], settings)
    findings(rows, None)
    assert findings([], settings) == findings([evaluation(0, 0.5)], settings) == ()
    assert repr(rows) == before


def test_the_worst_comes_first_and_what_has_passed_is_told_as_such() -> None:
    seen = findings(planted(engine_probability_error=1.2, truncated_share=0.5, ratio_token_p99=3.0), RECIPE)
    first = [("engine gap", BAD), ("ratio tails", WARN), ("completions cut off", WARN)]
    assert [(f.name, f.tone) for f in seen][:3] == first, "within a tone the order is the table's"
    rows = healthy()
    for row in rows[12:20]:
        row["effective_sample_share"] = 0.3
    rows[-1]["log_ratio_clamped_tokens"] = 1
    seen = findings(rows, RECIPE)
    tones = [[BAD, WARN, NEUTRAL, GOOD].index(f.tone) for f in seen]
    assert tones == sorted(tones)
    assert seen[0].name == "log-ratios clamped"
    past = named(seen)["few effective samples"]
    assert (past.tone, past.words[:21]) == (NEUTRAL, "Earlier, at step 20: ")


@pytest.mark.parametrize("n", [1, 9, 10, 11, 20, 37])
def test_windows_cover_every_row_once(n: int) -> None:
    rows = [{"step": i} for i in range(n)]
    pieces = windows(rows)
    assert [row for piece in pieces for row in piece] == rows
    assert all(len(piece) == RECENT for piece in pieces[1:])


def steps_of(begun: dict[int, list[str]]) -> dict[int, list[str]]:
    return {step: names for step, names in begun.items() if names}


def begun(rows: Rows, after: int = 0) -> dict[int, list[str]]:
    """The early warnings that begin with each step; with `after` those that a run gone on with after it hears."""
    watch = Watch(RECIPE, True)
    watch.restart(rows[:after])
    heard = {}
    for row in rows[after:]:
        watch(row)
        heard[row["step"]] = [finding.name for finding in watch.begun()]
    return heard


def in_and_out() -> Rows:
    """A run whose ratios have tails from step 21 to 30 and from 61 to 70; its completions are cut off throughout."""
    rows = [dict(row, step=i + 1, truncated_share=0.9) for i, row in enumerate([*healthy(40), *healthy(40)])]
    for row in (*rows[20:30], *rows[60:70]):
        row["ratio_token_p99"] = 3.0
    return rows


def test_an_early_warning_begins_when_it_was_not_there_the_step_before() -> None:
    """Each time that it comes, and not again while it stays; what is no early warning begins nothing."""
    assert steps_of(begun(in_and_out())) == {22: ["ratio tails"], 62: ["ratio tails"]}
    assert steps_of(begun(everywhere(ratio_token_p99=3.0))) == {3: ["ratio tails"]}
    assert steps_of(begun(everywhere(engine_probability_error=1.2))) == {1: ["engine gap"]}


@pytest.mark.parametrize("after", [1, 2, 3, 21, 22, 23, 40, 61, 79])
def test_a_run_that_was_stopped_and_goes_on_hears_the_same_early_warnings(after: int) -> None:
    rows = in_and_out()
    whole = begun(rows)
    assert begun(rows, after) == {step: names for step, names in whole.items() if step > after}


def test_every_early_warning_is_said_while_a_run_goes_on() -> None:
    assert {s.name for s in EARLY} >= {"ratio tails", "few effective samples", "engine gap"}
    assert all(symptom.live for symptom in EARLY)


def test_a_watch_that_begins_again_says_again_what_it_had_said() -> None:
    watch = Watch(RECIPE, True)
    rows = everywhere(truncated_share=0.9)
    assert [f.name for row in rows[:3] for f in watch(row)] == ["completions cut off"]
    watch.restart(rows[:2])
    assert [f.name for row in rows[2:4] for f in watch(row)] == ["completions cut off"]


def test_a_step_costs_the_same_after_two_thousand() -> None:
    """Counted, not timed: the functions that a step calls."""
    row, watch = healthy()[-1], Watch(RECIPE, True)

    def calls(steps: range) -> int:
        seen: Counter[str] = Counter()
        for step in steps:
            sys.setprofile(lambda frame, event, argument: seen.update([event]))
            try:
                watch({**row, "step": step})
            finally:
                sys.setprofile(None)
        return seen["call"] + seen["c_call"]

    calls(range(100))
    early = calls(range(100, 110))
    for step in range(110, 2000):
        watch({**row, "step": step})
    assert early == calls(range(2000, 2010))


def test_the_page_has_the_table() -> None:
    page = (DOCS / "howto" / "reading_a_report.md").read_text()
    assert health.table() in page


@pytest.mark.parametrize(("share", "words"), [(0.9999, "99.99 %"), (1.0, "100 %"), (0.0, "0 %")])
def test_percent_never_says_all_of_what_is_not_all(share: float, words: str) -> None:
    assert percent(share) == words
