"""Environments of the package verifiers play in an interpreter of their own: python -m venv .venv-verifiers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import groupwise
from groupwise.core.errors import UsageError
from groupwise.tasks.make import task
from tests.rollout.gateway.test_agent_run import CHANGES
from tests.runs.test_run import assert_goes_on
from tests.runs.tiny_runs import rollouts, step_rows

PYTHON = Path(__file__).parents[3] / ".venv-verifiers" / "bin" / "python"
COUNTS = str(Path(__file__).with_name("taskset_that_counts.py"))
real = pytest.mark.skipif(
    not PYTHON.is_file(), reason=f"there is no {PYTHON}: python3.11 -m venv, then pip install verifiers==0.4.0 in it"
)


def made(**keys: Any) -> Any:
    """The task, whose problems are listed."""
    problems = task("verifiers", keys)
    problems.samples("train")
    return problems


def env(**taskset: Any) -> dict[str, Any]:
    return {"taskset": {"id": COUNTS, **taskset}}


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({}, 'task.env.taskset.id is missing: a taskset such as "textarena"'),
        ({"env": {"taskset": "textarena"}}, "task.env.taskset.id is missing"),
        ({"env": env(), "problems": 0}, "task.problems and task.heldout must be 1 or more"),
        ({"env": env(), "max_turns": 0}, "task.max_turns must be 1 or more"),
        ({"env": env(), "path": "x"}, "task.path: verifiers has no such key"),
        ({"env": env(), "python": "no/python"}, "task.python = 'no/python': No such file or directory; make one: "),
        ({"env": env(), "python": "/"}, "task.python = '/': Permission denied; make one: "),
        ({"env": env(), "python": sys.executable}, f"task.python: {sys.executable} has no verifiers 0.4; make one: "),
        ({"env": env(), "python": "/bin/true"}, "task.python: /bin/true has ended: it said nothing"),
    ],
)
def test_what_cannot_be_played_is_refused(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as refused:
        made(**keys)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@real
@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"env": {"taskset": {"id": "no-such"}}}, "task.env: taskset 'no-such' not found (tried to import 'no_such')"),
        ({"env": env(length=3)}, "task.env: taskset.length: Extra inputs are not permitted"),
        (
            {"env": {**env(), "player": {"harness": {"id": "no"}}}},
            "task.env: harness 'no' not found (tried to import 'no')",
        ),
        ({"env": env(tasks=4), "problems": 3, "heldout": 2}, "has 4 tasks; set them lower"),
    ],
)
def test_what_verifiers_refuses_is_told_in_a_line(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as refused:
        made(**{"problems": 1, "heldout": 1, "python": str(PYTHON), **keys})
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@real
def test_a_run_trains_the_sampled_ids_of_an_environment_and_goes_on_to_the_bit(tmp_path: Path) -> None:
    """Its prompts are those that the harness writes: no session is read anew. A task that fails is a fault."""
    keys = {
        "name": "verifiers", "python": str(PYTHON), "env": env(fails=1), "problems": 2, "heldout": 1,
        "sessions": 2, "turn_tokens": 6, "patience": 60.0,
    }  # fmt: skip
    changes = {k: v for k, v in CHANGES.items() if not k.startswith("task.")} | {
        "task": keys, "model": "tiny-chat", "steps": 2, "prompts_per_step": 2, "samples_per_prompt": 2,
        "sampling.max_new_tokens": 90, "evaluation.problems": 1, "scoring.fault_limit": 0.5,
        "runs": str(tmp_path), "name": "whole",
    }  # fmt: skip
    whole = groupwise.train("two-questions", changes).folder
    for row in step_rows(whole):
        assert {check["verdict"] for check in row["checks"].values()} <= {"pass", "not measured"}
    played = [line for line in rollouts(whole) if line["key"] != "1"]
    assert len(played) == 4
    for line in played:
        assert [span["own"] for span in line["spans"]] == [True, False, True]
        assert not any(span.get("anew", False) for span in line["spans"])
        stop = line["turns"][0]["stop"]
        said = ["".join(line["pieces"][:stop]), "".join(line["pieces"][line["spans"][2]["start"] :])]
        told = "".join(part.replace("<|im_end|>", "").replace("<eos>", "").strip() for part in said)
        assert line["score"] == pytest.approx(sum(one.isascii() for one in told) / 16)
    for line in (line for line in rollouts(whole) if line["key"] == "1"):
        assert line["ended"] == "fault"
        assert line["turns"][-1]["fault"] == "exception"
    assert "EnvError: CountsEnv.run(): ValueError: of its own" in (whole / "log.txt").read_text()
    assert_goes_on(whole, 2)
