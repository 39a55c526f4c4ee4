"""Runs that replace groups without signal: what trains, what is counted, when they give up, and how they go on."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import groupwise
from groupwise import loop
from groupwise.cli import __main__ as cli
from groupwise.commands.build.engine import PROBE_PROMPTS
from groupwise.commands.train.train import resume
from groupwise.config import recipe
from groupwise.config.resolve import resolve
from groupwise.engines.local.engine import LocalEngine
from groupwise.rollout.collect import Prompts
from groupwise.tasks.arithmetic import Arithmetic
from groupwise.training import checkpoint
from groupwise.training.run import Training
from tests.runs.test_run import assert_same_run
from tests.runs.tiny_runs import rollouts, step_rows

#: Groups of a step; a round never asks for more than four times what lacks.
WANTED, MOST_A_ROUND = 8, 32


@pytest.fixture
def changes(small) -> dict[str, Any]:
    """About half of the groups mix right and wrong, so that rounds are refilled and some leave a surplus."""
    return small(algorithm__name="dapo", samples_per_prompt=6, steps=5, checkpoint__every=9, evaluation__problems=4)


def by_group(rows: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    groups: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["group"], []).append(row)
    return groups


def mixed(rows: list[dict[str, Any]]) -> bool:
    return 0 < sum(r["score"] == 1 for r in rows) < len(rows)


def told_again(folder: Path, rounds: int) -> list[dict[str, int]]:
    """Every step's counts, from nothing but the scores in rollouts.jsonl and the order of the prompts."""
    plan = resolve(recipe.parse(tomllib.loads((folder / "recipe.toml").read_text()), "told"))
    prompts = Prompts(plan.task.samples("train"), lambda sample: (), plan.recipe.seed)
    cursor = waiting = 0
    rate, told = 1.0, []
    for step in range(1, plan.recipe.steps + 1):
        fresh = [r for r in rollouts(folder, step) if r["fresh"]]
        verdicts = {rows[0]["key"]: mixed(rows) for rows in by_group(fresh).values()}
        kept, generated, done = waiting, 0, 0
        while kept < WANTED and done < rounds:
            count = math.ceil((WANTED - kept) / max(rate, 0.25))
            found = [verdicts.pop(prompts.draw(cursor + i).sample.key) for i in range(count)]
            cursor, generated, done = cursor + count, generated + count, done + 1
            kept, rate = kept + sum(found), sum(found) / count
        assert not verdicts, "these prompts were not the next ones, or one more round than needed was made"
        waiting_before, waiting = waiting, max(0, kept - WANTED)
        told.append(
            {
                "rounds": done,
                "groups_generated": generated,
                "groups_dropped": generated - (kept - waiting_before),
                "groups_fallback": max(0, WANTED - kept),
                "groups_surplus": waiting,
                "generated_completions": len(fresh),
                "generated_tokens": sum(r["tokens"] for r in fresh),
            }
        )
    return told


@pytest.mark.parametrize("rounds", [2, 10])
def test_every_count_of_the_refill_is_that_of_the_rollouts(rounds: int, changes):
    # Enough steps for steps with one round and with several on every processor: rounding differs, and the run with it.
    folder = groupwise.train("quickstart", {**changes, "steps": 9, "algorithm.filter.max_rounds": rounds}).folder
    told = told_again(folder, rounds)
    assert [{key: row[key] for key in expected} for row, expected in zip(step_rows(folder), told, strict=True)] == told
    assert {row["rounds"] for row in told} > {1}
    assert any(row["groups_surplus"] for row in told)


def test_a_task_that_nobody_can_solve_ends_the_command_in_one_line(changes, monkeypatch, capsys):
    monkeypatch.setattr(Arithmetic, "score", lambda self, sample, completion: 0.0)
    asked: list[int] = []
    real = LocalEngine.generate

    def counted(self, requests, sampling, *told):
        asked.append(len(requests))
        return real(self, requests, sampling, *told)

    monkeypatch.setattr(LocalEngine, "generate", counted)
    settings = {**changes, "algorithm.filter.max_rounds": 3, "name": "hopeless"}
    words = [part for key, value in settings.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    monkeypatch.setattr(sys, "argv", ["groupwise", "train", "quickstart", *words])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 1
    told = capsys.readouterr().err.strip().splitlines()
    assert len(told) == 1
    found = re.match(
        r"groupwise: step 1: 3 rounds gave (\d+) groups and not one that mixes .*too hard for this", told[0]
    )
    assert found, told
    assert int(found[1]) == WANTED + 2 * MOST_A_ROUND
    # Sampling is first tried on no requests. Then the probe's questions, the evaluation before step 1, and the rounds.
    assert [count for count in asked if count] == [
        PROBE_PROMPTS,
        changes["evaluation.problems"],
        WANTED,
        MOST_A_ROUND,
        MOST_A_ROUND,
    ]
    folder = Path(changes["runs"]) / "hopeless"
    assert not step_rows(folder)
    assert told[0].removeprefix("groupwise: ") in (folder / "log.txt").read_text()


def stop_after(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real = loop.train_step

    def stopping(run: Training) -> tuple[dict[str, Any], dict[str, Any]]:
        if run.progress.step == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(run)

    monkeypatch.setattr(loop, "train_step", stopping)


def end_state(folder: Path) -> dict[str, Any]:
    newest, _ = checkpoint.newest_good(folder / "checkpoints")
    assert newest is not None
    return {k: v for k, v in checkpoint.read_state(newest).items() if not k.startswith("seconds")}


def test_a_run_stopped_while_groups_wait_goes_on_to_the_same_bits(changes, monkeypatch):
    whole = groupwise.train("quickstart", {**changes, "name": "whole"}).folder
    row = max(step_rows(whole)[1:-1], key=lambda row: row["groups_surplus"])
    step, waiting = row["step"], row["groups_surplus"]
    assert waiting > 0, "nothing waits at any stop; take other settings"

    with monkeypatch.context() as during:
        stop_after(step, during)
        cut = groupwise.train("quickstart", {**changes, "name": "cut"})
    assert cut.stopped_by == signal.SIGTERM
    assert [r["step"] for r in step_rows(cut.folder)] == list(range(1, step + 1))
    stream = end_state(cut.folder)["stream"]
    assert len(stream["surplus"]) == waiting
    assert 0.25 < stream["keep_rate"] < 1, "a rate that was lost would not be missed"
    assert stream["cursor"] == sum(r["groups_generated"] for r in step_rows(cut.folder))

    assert resume(cut.folder).finished
    assert_same_run(whole, cut.folder)
    assert end_state(whole) == end_state(cut.folder)
    waited = [r for r in rollouts(cut.folder, step + 1) if r["fate"] == "trained" and not r["fresh"]]
    assert len(waited) == waiting * changes["samples_per_prompt"]
    assert {r["version"] for r in waited} == {step - 1}, "the weights of the step that sampled them"
