"""Runs whose rewards are a user's own: faults of every kind in one run, other frameworks' signatures, several."""

from __future__ import annotations

import json
import math
import os
import tomllib
from collections import Counter
from pathlib import Path

import pytest

import groupwise
from groupwise.commands.train.train import resume
from groupwise.core.errors import RunError, UsageError
from groupwise.rewards.functions.form import Format
from tests.runs.rewards_of_a_run import FAULTS, goes_off, kind_of
from tests.runs.tiny_runs import rollouts, step_rows

HERE = Path(__file__).parent
MINE = str(HERE / "rewards_of_a_run.py")
#: What each fault of the file is counted as.
CAUSES = {
    "loop in C": "timeout",
    "segfault": "crash",
    "ten gigabytes": "memory",
    "exception": "exception",
    "not a number": "nan",
    "sleep": "timeout",
}


def own(name: str, function: str, **more: object) -> dict[str, object]:
    return {f"rewards.{name}": {"use": f"{MINE}:{function}", **more}}


def children() -> set[int]:
    found = set()
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            lines = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
        except OSError:
            continue
        if not lines["State"].startswith("Z"):
            found.add((int(lines["Pid"]), int(lines["PPid"])))
    mine, grown = {os.getpid()}, True
    while grown:
        more = {pid for pid, parent in found if parent in mine} - mine
        mine, grown = mine | more, bool(more)
    return mine - {os.getpid()}


@pytest.mark.slow
def test_every_kind_of_fault_in_one_run_costs_its_own_completion_only(small):
    before = children()
    changes = small(prompts_per_step=24, steps=2, scoring__deadline=2.0, scoring__fault_limit=0.5)
    done = groupwise.train("quickstart", {**changes, **own("mine", "risky")})
    assert children() <= before, "no process of the pool is left"
    met: Counter[str] = Counter()
    for row in rollouts(done.folder):
        kind = kind_of(row["key"], row["completion"])
        if kind >= len(FAULTS):
            assert "fault" not in row, row["fault"]
            assert math.isfinite(row["parts"]["mine"])
            continue
        name = FAULTS[kind][0]
        met[name] += 1
        cause, of = row["fault"].split(" in ")
        assert of == "mine"
        assert cause == CAUSES[name], name
        assert row["parts"]["mine"] is None
    assert set(met) == set(CAUSES), "every kind has happened"
    told = Counter()
    for row in step_rows(done.folder):
        assert row["trained_completions"] == row["generated_completions"] - sum(
            count for key, count in row.items() if key.startswith("faults.")
        )
        told.update({key: count for key, count in row.items() if key.startswith("faults.")})
    assert sum(told.values()) == sum(met.values())
    assert {"faults.crash in mine", "faults.memory in mine", "faults.nan in mine"} <= set(told)
    log = (done.folder / "log.txt").read_text()
    assert log.count("timeout in mine:") == 1, "each kind is shown once"
    assert "in risky" in log, "with the user's own traceback"
    assert "groupwise/rewards" not in log


@pytest.mark.slow
def test_a_fork_bomb_ends_at_its_deadline_and_leaves_no_process(small):
    """While it goes off it may starve what is scored beside it, so only its own completions are looked at."""
    before = children()
    changes = small(prompts_per_step=4, samples_per_prompt=2, steps=1, scoring__deadline=0.5, scoring__fault_limit=1.0)
    done = groupwise.train("quickstart", {**changes, **own("mine", "bomb")})
    assert children() <= before
    bombs = [row for row in rollouts(done.folder) if goes_off(row["key"])]
    assert bombs
    # It ends at its deadline, or where the system refuses a fork.
    assert {row["fault"] for row in bombs} <= {f"{cause} in mine" for cause in ("timeout", "exception", "crash")}


def test_too_many_faults_stop_the_run_and_name_the_causes(small):
    changes = small(scoring__deadline=0.3, scoring__fault_limit=0.01, prompts_per_step=24)
    with pytest.raises(RunError, match=r"step 1: \d+ of 96 completions could not be scored \(.* in mine.*fault_limit"):
        groupwise.train("quickstart", {**changes, **own("mine", "risky")})


@pytest.mark.parametrize(
    ("function", "form"),
    [("short", "TRL reward_funcs"), ("compute_score", "verl compute_score"), ("patient", ""), ("Counts", "")],
)
def test_rewards_of_every_form_train_unchanged_and_are_told(function, form, small):
    done = groupwise.train("quickstart", {**small(steps=1), **own("mine", function), "rewards.task": {"weight": 0.5}})
    told = (done.folder / "log.txt").read_text()
    assert "reward       1 x mine: User(" in told
    assert f"mine is {form}" in told
    by_hand = {
        "short": lambda text, answer: -len(text),
        "compute_score": lambda text, answer: text.endswith(answer),
        "patient": lambda text, answer: "=" in text,
        "Counts": lambda text, answer: text.count("="),
    }[function]
    for row in rollouts(done.folder):
        assert row["parts"]["mine"] == float(by_hand(row["completion"], row["answer"]))
        assert row["parts"]["task"] == row["score"]
        assert row["reward"] == pytest.approx(row["parts"]["mine"] + 0.5 * row["score"])
    row = step_rows(done.folder)[0]
    mine = [r["parts"]["mine"] for r in rollouts(done.folder)]
    assert row["rewards.mine.mean"] == pytest.approx(sum(mine) / len(mine))


def test_combined_after_normalisation_a_run_stops_and_goes_on_with_the_same_bits(small):
    changes = {
        **small(scoring__combine="after", steps=3),
        **own("mine", "Counts", settings={"letter": "-"}, weight=0.3),
        "rewards.repetition": {"weight": 0.1},
        "rewards.task": {},
    }
    whole = groupwise.train("quickstart", {**changes, "name": "whole"}).folder
    short = groupwise.train("quickstart", {**changes, "name": "short", "steps": 2}).folder
    assert resume(short, {"steps": 3}).finished
    keys = ("step", "tokens", "completion", "advantage", "parts", "reward")
    assert [[r[k] for k in keys] for r in rollouts(short)] == [[r[k] for k in keys] for r in rollouts(whole)]
    assert tomllib.loads((whole / "recipe.toml").read_text())["rewards"]["mine"]["weight"] == 0.3


def test_a_pattern_gives_the_same_bits_from_a_process_as_here(small, monkeypatch):
    changes = {**small(steps=1), "rewards.task": {}, "rewards.format.pattern": r"[0-9+=]*\d"}
    apart = groupwise.train("quickstart", changes).folder
    assert {row["parts"]["format"] for row in rollouts(apart)} == {0.0, 1.0}
    with monkeypatch.context() as patch:
        patch.setattr(Format, "quick", True)
        here = groupwise.train("quickstart", changes).folder
    assert (apart / "rollouts.jsonl").read_bytes() == (here / "rollouts.jsonl").read_bytes()


@pytest.mark.slow
def test_a_pattern_that_hangs_leaves_its_completion_without_a_score(small):
    hangs = "[^1]*|" + 24 * "(?:" + "." + 24 * ")+" + "!"  # eight characters with a 1 are divided in 25 ** 8 ways
    changes = small(steps=1, prompts_per_step=2, scoring__deadline=0.3, scoring__fault_limit=1.0)
    done = groupwise.train("quickstart", {**changes, "rewards.task": {}, "rewards.format.pattern": hangs})
    long = [row for row in rollouts(done.folder) if len(row["completion"]) >= 8]
    assert [row.get("fault", "") for row in long] == ["timeout in format" * ("1" in r["completion"]) for r in long]
    assert step_rows(done.folder)[0]["faults.timeout in format"] > 0


def write_pairs(path: Path) -> Path:
    pairs = [{"prompt": f"{i}+1=", "chosen": f"{i}+1={i + 1}", "rejected": f"{i}"} for i in range(60)]
    path.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    return path


def test_a_task_without_answers_trains_on_the_learned_score_alone(small, tmp_path):
    path = write_pairs(tmp_path / "pairs.jsonl")
    changes = {key: value for key, value in small(steps=2).items() if not key.startswith("task.")}
    changes |= {
        "task": {"name": "preference", "path": str(path)},
        "model": "tiny-bytes",
        "preference": {"path": str(path), "epochs": 1},
        "warm_start.steps": 0,
        "evaluation.problems": 4,
    }
    done = groupwise.train("quickstart", changes)
    assert done.summary["heldout_measure"] == "learned score"
    assert math.isfinite(done.summary["heldout_after"])
    for row in rollouts(done.folder):
        assert row["score"] is None
        assert row["reward"] == pytest.approx(row["learned"])
    assert all(row["trained_completions"] > 0 for row in step_rows(done.folder))
    assert "nothing trains" not in (done.folder / "log.txt").read_text()
    with pytest.raises(UsageError, match="no right answers to rank sampled pairs by"):
        groupwise.train("quickstart", {**changes, "preference": {}})
    with pytest.raises(UsageError, match=r"algorithm\.filter\.metric = 'correctness': the task has no right answers"):
        groupwise.train("quickstart", {**changes, "algorithm.name": "dapo", "algorithm.filter.metric": "correctness"})
