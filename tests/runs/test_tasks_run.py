"""Whole runs on real tasks: a file of word problems by a chat model, generators with a curriculum, programs."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

import groupwise
from groupwise.commands.evaluate import evaluate_policies
from groupwise.commands.train.train import resume
from groupwise.config import recipe
from groupwise.config.resolve import resolve
from groupwise.core.errors import UsageError
from groupwise.models.load import load_policy
from groupwise.rewards.verifiers.marks import claims
from tests.runs.tiny_runs import rollouts, step_rows


def word_problems(path: Path, count: int, seed: int) -> Path:
    """A file as GSM8K has it: question, and answer with its calculator's marks and a last line `#### n`."""
    rng = random.Random(seed)
    lines = []
    for i in range(count):
        a, b = rng.randrange(2, 50), rng.randrange(2, 50)
        told = f"Together that is {a} + {b} = <<{a}+{b}={a + b}>>{a + b}.\n#### {a + b}"
        lines.append({"question": f"Ann {i} has {a} pears and buys {b} more. How many has she?", "answer": told})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def word_changes(tmp_path: Path) -> dict:
    return {
        "task.path": str(word_problems(tmp_path / "train.jsonl", 40, 1)),
        "task.heldout": str(word_problems(tmp_path / "test.jsonl", 12, 2)),
        "runs": str(tmp_path / "runs"),
        "steps": 2,
        "prompts_per_step": 4,
        "samples_per_prompt": 4,
        "warm_start.steps": 4,
        "warm_start.batch_size": 4,
        "warm_start.demonstrations": 50,
        "sampling.max_new_tokens": 24,
        "evaluation.problems": 8,
        "checkpoint.every": 1,
    }


def goes_on_the_same(name: str, changes: dict, whole: Path) -> None:
    """A run stopped one step before its end and resumed has the rollouts of the one that was not."""
    steps = changes["steps"]
    short = groupwise.train(name, {**changes, "name": "short", "steps": steps - 1}).folder
    assert resume(short, {"steps": steps}).finished
    assert rollouts(short) == rollouts(whole)


@pytest.mark.slow
def test_gsm8k_on_a_tiny_chat_model_trains_scores_journals_and_resumes(word_changes):
    done = groupwise.train("gsm8k-tiny", {**word_changes, "learner.schedule": "constant"})
    told = (done.folder / "log.txt").read_text()
    assert "52 rows read" in told
    assert "template: the tokenizer's own" in told
    for row in rollouts(done.folder):
        assert row["prompt"].endswith("#### and the number alone.")
        assert set(row["parts"]) == {"task", "format"}
        assert row["score"] in (0.0, 1.0)
        if row["score"] == 1.0:
            assert claims(row["completion"], numeric=True)
    goes_on_the_same("gsm8k-tiny", word_changes, done.folder)
    assert evaluate_policies([str(done.folder)]).evaluation.problems == 8


def test_what_a_chat_model_is_trained_on_begins_after_its_template(word_changes):
    done = groupwise.train("gsm8k-tiny", {**word_changes, "chat.system": "Be brief.", "steps": 1})
    policy = load_policy(Path(done.summary["policy"]))
    row = rollouts(done.folder)[0]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": row["prompt"]}]
    text = policy.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text.count("<|im_start|>") == 3
    assert text.endswith("<|im_start|>assistant\n")
    assert 'system = "Be brief."' in (done.folder / "recipe.toml").read_text()


def test_prompts_longer_than_the_limit_are_left_out_and_told(word_changes, capsys):
    with pytest.raises(UsageError, match="max_prompt_tokens = 20: every held-out prompt is longer; raise it"):
        groupwise.train("gsm8k-tiny", {**word_changes, "max_prompt_tokens": 20})
    with pytest.raises(UsageError, match="beyond the model's 2048 positions"):
        groupwise.train("gsm8k-tiny", {**word_changes, "sampling.max_new_tokens": 2000})
    length = len("Ann 9 has 10 pears and buys 10 more. How many has she?")
    instruction = len("\nReason step by step, and end with a line that holds #### and the number alone.")
    limit = length + instruction + len("suser\n" + "e\n" + "sassistant\n")  # s and e: the marks of a turn, one id each
    groupwise.train("gsm8k-tiny", {**word_changes, "steps": 1, "max_prompt_tokens": limit, "evaluation.problems": 2})
    assert f"training problems have more than max_prompt_tokens = {limit} and are left out" in capsys.readouterr().out


GYM = {
    "task.problems": 200,
    "steps": 3,
    "prompts_per_step": 8,
    "samples_per_prompt": 4,
    "warm_start.steps": 60,
    "warm_start.demonstrations": 1000,
    "sampling.max_new_tokens": 20,
    "evaluation.problems": 12,
    "checkpoint.every": 1,
}


@pytest.mark.slow
def test_generators_are_mixed_scored_and_told_apart_and_levels_move(tmp_path):
    curriculum = {"levels": 2, "up": 0.02, "down": 0.0, "completions": 4}
    generators = {"chain_sum": {"max_terms": 3}, "spell_backward": {}}
    changes = {**GYM, "task.generators": generators, "task.curriculum": curriculum, "runs": str(tmp_path)}
    done = groupwise.train("reasoning-gym", changes)
    names = {"chain_sum", "spell_backward"}
    assert {row["source"] for row in rollouts(done.folder)} == names
    assert set(done.summary["heldout_by_source"]) == names
    for step in step_rows(done.folder):
        own = [r for r in rollouts(done.folder) if r["step"] == step["step"]]
        for name in names & {r["source"] for r in own}:
            right = [r["score"] >= 1 for r in own if r["source"] == name]
            assert step[f"sources.{name}.pass_rate"] == pytest.approx(sum(right) / len(right))
    reached = [step[f"sources.{name}.level"] for step in step_rows(done.folder) for name in names]
    assert max(reached) > 0, "a level has moved"
    goes_on_the_same("reasoning-gym", changes, done.folder)


@pytest.mark.slow
def test_programs_are_run_and_judged_in_a_run(tmp_path):
    changes = {
        "steps": 1,
        "prompts_per_step": 4,
        "samples_per_prompt": 4,
        "task.problems": 300,
        "warm_start.steps": 100,
        "warm_start.demonstrations": 1000,
        "evaluation.problems": 8,
        "evaluation.samples": 1,
        "runs": str(tmp_path),
    }
    done = groupwise.train("code-tiny", changes)
    task = groupwise.task("code", {"problems": 300})
    by_key = {s.key: s for s in task.samples("train")}
    for row in rollouts(done.folder):
        assert row["score"] == task.score(by_key[row["key"]], row["completion"])
        assert "fault" not in row
    assert "sandbox: no network" in resolve(recipe.load(str(done.folder / "recipe.toml"))).describe()
