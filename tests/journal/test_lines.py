"""What a run says of itself in a log file, in a pipe, to a program and in a terminal."""

from __future__ import annotations

import io
import json
import math
import re
from types import SimpleNamespace
from typing import Any

import pytest

from groupwise.core.errors import counted
from groupwise.core.machine.terminal import Terminal
from groupwise.core.records import Evaluation
from groupwise.journal.lines import FIRST, LATER, WIDTH, Checked, Lines, checks_in_short
from groupwise.journal.live import LiveView
from groupwise.journal.terminal import JsonView, QuietView, View


def row(step: int = 12, **other: Any) -> dict[str, Any]:
    return {
        "step": step,
        "pass_rate": 0.801,
        "measured_mean": 0.801,
        "reward_mean": 0.801,
        "length_mean": 10.7,
        "groups_signal_share": 0.78,
        "generated_tokens": 17_600,
        "share_passed": 0.75,
        "kl_mean": 0.0912,
        "entropy_mean": 0.114,
        "seconds": {"start": 100.0, "generate": 0.1, "update": 0.06},
        **other,
    }


def check(name: str, value: float, limit: float, failed: bool = False) -> Checked:
    return SimpleNamespace(name=name, value=value, limit=limit, failed=failed)  # type: ignore[return-value]


def held_out(**other: Any) -> Evaluation:
    rates: dict[str, Any] = {"avg_at_k": 0.931, "pass_at_k": {1: 0.931}, "standard_error": 0.0056}
    return Evaluation(problems=512, samples=4, length_mean=11.9, truncated_share=0.0, **(rates | other))


def test_a_step_has_its_numbers_in_one_line():
    line = Lines(60).step(row(), left=8.2)
    assert re.fullmatch(r"\d\d:\d\d:\d\d step 12/60 \| .*", line)
    assert line[9:] == (
        "step 12/60 | pass 0.801 len 10.7 sig 78% | kl 0.091 ent 0.11 clip 25% | 0.16s 110k tok/s eta 0:08"
    )


def test_what_a_run_does_not_have_is_left_out():
    short = row(kl_mean=math.nan, share_passed=math.nan)
    del short["entropy_mean"], short["generated_tokens"]
    line = Lines(60, compares_within_group=False).step(short, left=8.2)
    assert line[9:] == "step 12/60 | pass 0.801 len 10.7 | 0.16s eta 0:08"
    assert "reward 0.500" in Lines(60).step(row(reward_mean=0.5), left=0.0), "it is shown where it is another"


@pytest.mark.parametrize("width", [40, 60, 80, WIDTH])
def test_no_line_is_longer_than_it_may_be(width: int):
    wide = row(4321, length_mean=12345.6, reward_mean=-1.5, learned_mean=0.25, explained_variance=0.5)
    line = Lines(10_000).step(wide, left=40_000.0, width=width)
    assert len(line) <= max(width, 66), "time of day, step, what is measured and the times are never left out"
    assert "pass 0.801" in line
    assert "eta 11:06:40" in line
    sources = {f"source {i}": {"measured_mean": 0.5} for i in range(40)}
    lines = Lines(60).evaluation(20, held_out(by_source=sources, unscored=1), width=width)
    assert max(map(len, lines)) <= width
    whole = " ".join(" ".join(lines).split())
    assert all(f"source {i} 0.500" in whole for i in range(40)), "an evaluation loses nothing"


@pytest.mark.parametrize("steps", [1, 19, 20, 21, 60, 100, 101, 999, 12_345])
def test_every_step_up_to_twenty_and_about_a_hundred_in_all_have_a_line(steps: int):
    due = [step for step in range(1, steps + 1) if Lines(steps).due(step)]
    assert due[: min(steps, FIRST)] == list(range(1, min(steps, FIRST) + 1))
    assert due[-1] == steps
    assert min(steps, (FIRST + LATER) // 2) <= len(due) <= FIRST + LATER + 1


def test_evaluations_always_have_a_line_and_the_log_has_what_is_shown():
    out, log = io.StringIO(), list[str]()
    view = View(5000, Terminal(file=out), log=log.append)
    for step in range(1, 201):
        view.step(row(step))
        if step % 7 == 0:
            view.evaluation(step, held_out())
    shown = out.getvalue().splitlines()
    assert shown == log
    assert len([line for line in shown if " eval " in line]) == 200 // 7
    assert len([line for line in shown if " step " in line]) == FIRST + (200 - FIRST) // 63
    assert max(map(len, shown)) <= WIDTH
    assert "| held-out pass rate 0.931 +-0.011 (512 x 4) | len 11.9" in shown[7]


def test_checks_are_counted_and_the_worst_is_named():
    checks = [check("a", 1e-9, 1e-4), check("b", 5e-5, 1e-4), check("never", math.nan, math.nan)]
    assert checks_in_short(checks) == "2/2 ok (worst: b 5e-05 of 0.0001)"
    assert checks_in_short([*checks, check("c", 2.0, 1.0, failed=True)]) == "2/3 hold (worst: c 2 of 1)"
    assert checks_in_short(checks[2:]) == "none measured"


def test_the_plan_is_in_the_log_and_shown_if_all_is_asked_for():
    for whole in (False, True):
        out, log = io.StringIO(), list[str]()
        view = View(3, Terminal(file=out), log=log.append, whole=whole)
        view.head({"task": "arithmetic"})
        view.plan("policy  tiny\nstep  8 prompts")
        view.checks([check("a", 0.5, 1.0)])
        assert log[:2] == ["policy  tiny", "step  8 prompts"]
        assert ("step  8 prompts" in out.getvalue()) == whole
        assert ("task         arithmetic" in out.getvalue()) != whole
        assert "check 1/1 ok" in out.getvalue()


def test_a_program_gets_one_object_a_line_and_nothing_else():
    out, log = io.StringIO(), list[str]()
    view = JsonView(3, Terminal(file=out), log=log.append)
    view.head({"task": "arithmetic"})
    view.plan("policy  tiny")
    view.note("a warning")
    view.preparing("warm start", 1, 1, 0.5)
    view.step(row(1, kl_mean=math.nan, **{"rewards.\x7f\x9b\u202eé.mean": 1.0}))
    view.evaluation(1, held_out())
    view.checks([check("a", 0.5, 1.0), check("never", math.nan, math.nan)])
    objects = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [one["event"] for one in objects] == ["step", "evaluation", "check", "check"]
    assert objects[0]["kl_mean"] is None
    assert objects[0]["rewards.\x7f\x9b\u202eé.mean"] == 1.0
    assert [one["ok"] for one in objects[2:]] == [True, None]
    assert len(log) == 5, "the log has the same lines as ever"


def test_a_quiet_view_shows_nothing_and_logs_all():
    out, log = io.StringIO(), list[str]()
    view = QuietView(3, Terminal(file=out), log=log.append, whole=True)
    view.head({"task": "arithmetic"})
    view.plan("policy  tiny")
    view.note("a warning")
    view.step(row(1))
    assert (out.getvalue(), len(log)) == ("", 2)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_panel_has_the_step_a_completion_and_warnings_below_and_fits(width: int):
    out = io.StringIO()
    terminal = Terminal(file=out, force_terminal=True, color_system=None, width=width, height=40)
    live = LiveView(60, terminal, name="run")
    live.completion("3+0+3-1=", "3+3-1=\n6-1=5 " * 40, 1.0)
    live.rows, live.made = [row(1), row(2, kl_mean=math.nan)], 2
    live.shown, live.said = True, ["first " * 60, *(f"step {i}: warning, x: {'many words ' * 20}end" for i in range(9))]
    terminal.console.print(live.render())
    shown = out.getvalue()
    assert max(map(len, shown.splitlines())) <= min(84, width)
    for words in (
        "elapsed, ",
        " left",
        "tokens a second",
        "110k",
        "KL to the reference",
        "entropy",
        "score 1.00: 3+0+3",
    ):
        assert words in shown
    assert shown.index("score 1.00") < shown.index("earlier in log.txt") < shown.index("step 8: warning, x: many")
    assert len(shown.splitlines()) <= 40


@pytest.mark.parametrize("width", [60, 70, 84])
def test_a_phase_of_the_panel_stays_on_one_line_with_its_seconds(width: int):
    seconds = {"start": 12.5, "generate": 3.32, "score": 0.19, "annotate": 1.8, "check": 0.26, "update": 1.82}
    terminal = Terminal(file=io.StringIO(), force_terminal=True, color_system=None, width=width, height=40)
    live = LiveView(60, terminal, name="run")
    live.rows, live.made = [row(1, seconds=seconds | {"journal": 0.63})], 1
    terminal.console.print(live.render())
    shown = terminal.console.file.getvalue()  # type: ignore[attr-defined]
    assert [f"{phase} {value:.2f}s" in shown for phase, value in seconds.items()] == [True] * len(seconds)
    assert "\N{NO-BREAK SPACE}" not in shown


def test_numbers_and_their_nouns():
    assert [counted(1, "pass"), counted(2, "pass"), counted(1, "step"), counted(0, "step")] == [
        "1 pass",
        "2 passes",
        "1 step",
        "0 steps",
    ]
