"""Runs whose problems are played in turns: resumed to the bit, with environments that fail, and with a chat template
that writes earlier turns anew.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import groupwise
from tests.models.turn_templates import QWEN3_MAKE, tokenizer_of
from tests.refusals import refused
from tests.runs.test_run import assert_goes_on, assert_same_run
from tests.runs.tiny_runs import rollouts, step_rows
from tests.tiny_models import causal

ENVIRONMENT = f"{Path(__file__).parent / 'environment_of_a_run.py'}:Sum"
CHANGES: dict[str, Any] = {
    "seed": 1,
    "steps": 4,
    "model": "tiny-dense",
    "warm_start.steps": 0,
    "prompts_per_step": 6,
    "samples_per_prompt": 4,
    "updates_per_batch": 1,
    "sampling.stop": ["\n"],
    "sampling.max_new_tokens": 24,
    "task": {"name": "environment", "use": ENVIRONMENT, "max_turns": 3, "turn_tokens": 4},
    "evaluation.problems": 3,
    "evaluation.samples": 2,
    "evaluation.every": 0,
    "checkpoint.every": 1,
    "checkpoint.keep": 9,
    "journal.report": False,
    "scoring.workers": 2,
    "scoring.deadline": 1.0,
}


def changes(place: Path, **more: Any) -> dict[str, Any]:
    dotted = {key.replace("__", "."): value for key, value in more.items()}
    return {**CHANGES, "runs": str(place), **dotted}


def test_a_run_of_a_users_own_environment_goes_on_to_the_bit(tmp_path: Path) -> None:
    own = tmp_path / "mine.py"
    shutil.copy(ENVIRONMENT.rpartition(":")[0], own)
    task = {**CHANGES["task"], "use": f"{own}:Sum"}
    whole = groupwise.train("quickstart", {**changes(tmp_path, name="whole"), "task": task}).folder
    lines = rollouts(whole)
    assert max(len(line["turns"]) for line in lines) == 3
    assert all(line["ended"] in ("done", "turns", "tokens") for line in lines)
    own.unlink()
    assert_goes_on(whole, 3, 2)


ONE_STEP = {"steps": 1, "prompts_per_step": 18, "scoring.fault_limit": 0.5}


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return groupwise.train("quickstart", {**changes(tmp_path_factory.mktemp("clean")), **ONE_STEP}).folder


SLOW = ("garbage", "flood", "exit", "leave")


@pytest.mark.parametrize(
    "fault", ["raise", "hang", "crash", *(pytest.param(fault, marks=pytest.mark.slow) for fault in SLOW)]
)
def test_a_fault_is_counted_by_cause_and_nothing_else_of_the_step_is_lost(
    fault: str, clean: Path, tmp_path: Path
) -> None:
    task = {**CHANGES["task"], "settings": {"fault": fault, "on": "2+1"}}
    run = groupwise.train("quickstart", {**changes(tmp_path), **ONE_STEP, "task": task}).folder
    if fault == "leave":  # processes that it leaves behind are no fault, and end with the pool
        assert_same_run(run, clean)
        return
    causes = {"hang": "timeout", "crash": "crash", "garbage": "wrong type", "flood": "too large"}
    cause = causes.get(fault, "exception")
    (metrics,) = step_rows(run)
    faulty = [line for line in rollouts(run) if line["ended"] == "fault"]
    assert metrics["ended.fault"] == metrics[f"turn_faults.{cause}"] == len(faulty) > 0
    assert {line["key"] for line in faulty} == {"2+1"}
    assert all(line["score"] is None for line in faulty)
    for line, other in zip(rollouts(run), rollouts(clean), strict=True):
        if line["ended"] != "fault":
            assert (line["completion"], line["turns"][-1]["stop"]) == (other["completion"], other["turns"][-1]["stop"])
            assert [t["reward"] for t in line["turns"]] == [t["reward"] for t in other["turns"]]
    assert (run / "log.txt").read_text().count(f"step 1: {cause} in ") == 1, "one kind, and the environment's"


@pytest.mark.parametrize("rollout", [{"rollout.ahead": 1}, {"rollout.free": 2}])
def test_episodes_may_be_played_while_the_learner_trains(rollout: dict[str, int], tmp_path: Path) -> None:
    folder = groupwise.train("quickstart", {**changes(tmp_path), **rollout}).folder
    last = step_rows(folder)[-1]
    assert {check["verdict"] for check in last["checks"].values()} <= {"pass", "not measured"}
    assert last["turns_max"] == 3


LETTERS = '''
import groupwise


class Letters:
    """Each turn is worth the share of its characters that are letters."""

    alphabet = "abcdefghijklmnopqrstuvwxyzS0123456789 ."

    def samples(self, split):
        return [groupwise.Sample(f"{split}{n}", f"Say {n}.", "") for n in range(8)]

    def reset(self, sample):
        self.turn = 0

    def step(self, text):
        self.turn += 1
        return f"turn {self.turn}", sum(map(str.isalpha, text)) / max(1, len(text)), len(text) % 4 == 0
'''


@pytest.fixture(scope="module", params=["qwen3", "qwen3_moe"])
def rewriting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small policy with a template of Qwen3's make: thinking that is off stands in the last prompt alone."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = tokenizer_of(QWEN3_MAKE)
    torch.manual_seed(0)
    ends = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id, "pad_token_id": 0}
    causal(request.param, max_position_embeddings=1024, initializer_range=0.02, **ends).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def rewritten(rewriting: Path, runs: Path, history: str = "rewrite", **more: Any) -> dict[str, Any]:
    own = runs / "letters.py"
    own.write_text(LETTERS, encoding="utf-8")
    task = {"name": "environment", "use": f"{own}:Letters", "max_turns": 3, "turn_tokens": 4, "history": history}
    chat = {"chat.thinking": "off", "sampling.stop": [], "sampling.max_new_tokens": 256}
    return {**CHANGES, "model": str(rewriting), "runs": str(runs), "task": task, **chat, **more}


def test_each_turn_is_trained_behind_the_prompt_that_it_read_and_a_resume_has_the_same_bits(
    rewriting: Path, tmp_path: Path
) -> None:
    whole = groupwise.train("quickstart", rewritten(rewriting, tmp_path, name="whole")).folder
    lines = rollouts(whole)
    assert max(len(line["turns"]) for line in lines) == 3
    later = [span for line in lines for span in line.get("spans", []) if not span["own"]]
    assert later
    assert all(span["anew"] for span in later)
    steps = step_rows(whole)
    for row in steps:
        assert row["checks"]["learner = engine"]["verdict"] == "pass"
        assert row["groups_signal_share"] == 1
    assert_goes_on(whole, 2)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"preference.path": "pairs.jsonl"}, "a reward model reads an episode as one text"),
        (
            {"algorithm.name": "opd", "reference.every": 1, "reference.template": "{answer}{prompt}"},
            'reference.template with task.history = "rewrite": the prompt of a turn',
        ),
        ({"model": "tiny-moe", "routing.load_balance": 0.01}, "routing.load_balance reads an episode as one text"),
        ({"history": "refuse"}, 'task.history = "rewrite"'),
    ],
)
def test_what_reads_an_episode_as_one_text_is_refused(rewriting: Path, tmp_path: Path, more: Any, words: str) -> None:
    with refused(words):
        groupwise.train("quickstart", rewritten(rewriting, tmp_path, **more))
