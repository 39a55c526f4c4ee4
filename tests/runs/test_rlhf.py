"""Runs that a reward model scores: it is the run's own, it alone trains, and it comes from wherever the recipe says."""

from __future__ import annotations

import json
import shutil
import statistics
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import groupwise
from groupwise.config import recipe
from groupwise.config.resolve import resolve
from groupwise.tasks.arithmetic import Arithmetic
from groupwise.training import checkpoint
from groupwise.training.start.initial_policy import starting_policy
from tests.runs.test_run import assert_goes_on, assert_same_run, weights
from tests.runs.tiny_runs import rollouts, step_rows

#: A reward model of a second: few pairs, and a rate at which its scores come apart all the same.
PREFERENCE: dict[str, Any] = {
    "preference.pairs": 48,
    "preference.heldout_pairs": 16,
    "preference.epochs": 2,
    "preference.batch_size": 16,
    "preference.learning_rate": 3e-3,
}


@pytest.fixture
def changes(small) -> dict[str, Any]:
    return {**small(steps=3, evaluation__problems=4, checkpoint__keep=9, algorithm__kl__beta=0.5), **PREFERENCE}


@pytest.fixture
def grpo(changes) -> dict[str, Any]:
    return {k: v for k, v in changes.items() if k != "algorithm.kl.beta"}


def spelled(tokenizer: Any, folder: Path) -> list[tuple[dict[str, Any], list[int], list[int]]]:
    """Lines of rollouts.jsonl with the ids of prompt and completion, which the text of each token gives back."""
    return [
        (row, tokenizer(row["prompt"])["input_ids"], tokenizer.convert_tokens_to_ids(row["pieces"]))
        for row in rollouts(folder)
    ]


def instead(settings: dict[str, Any], preference: dict[str, Any]) -> dict[str, Any]:
    return {**{k: v for k, v in settings.items() if not k.startswith("preference.")}, "preference": preference}


def scored_by(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    return instead(settings, {"model": str(folder)})


def test_the_reward_model_in_the_run_folder_gives_the_runs_scores_again(changes):
    changes["critic.start"] = "reward-model"
    folder = groupwise.train("rlhf", changes).folder
    model = AutoModelForSequenceClassification.from_pretrained(folder / "reward_model").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / "reward_model")
    rows = rollouts(folder)
    for row, prompt, completion in spelled(tokenizer, folder):
        with torch.no_grad():
            again = model(input_ids=torch.tensor([prompt + completion])).logits.item()
        assert row["learned"] == pytest.approx(again, abs=1e-5)
    assert statistics.stdev(r["learned"] for r in rows) > 0.05, "a model that says one thing would pass this"
    for step in step_rows(folder):
        here = [r for r in rows if r["step"] == step["step"]]
        assert step["learned_mean"] == pytest.approx(statistics.fmean(r["learned"] for r in here), abs=1e-9)
    assert abs(step_rows(folder)[0]["explained_variance"]) > 1e-6, "the critic begins with the reward model's head"
    report = json.loads((folder / "reward_model" / "preference.json").read_text())
    told = json.loads((folder / "summary.json").read_text())["reward_model"]
    assert told == {key: report[key] for key in told}
    assert told["ceiling"] == 0.9
    again = resolve(recipe.parse(tomllib.loads((folder / "recipe.toml").read_text()), "again"))
    assert again.recipe.preference == resolve(recipe.load("rlhf", changes)).recipe.preference


def reference_logp(model: Any, prompt: list[int], completion: list[int]) -> float:
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
    picked = logits.double().log_softmax(-1).gather(1, torch.tensor(completion)[:, None])
    return float(picked.sum())


def test_the_reward_is_the_learned_score_less_the_kl_term(changes):
    """And nothing else: not the task's score, not its scores of steps."""
    faster = {**changes, "learner.learning_rate": 1e-2}
    folder = groupwise.train("rlhf", faster).folder
    plan = resolve(recipe.load("rlhf", faster))
    r = plan.recipe
    reference = starting_policy(r.model, plan.task, r.warm_start, r.seed, plan.cache, r.device, lambda *_: None)
    largest = 0.0
    for row, prompt, completion in spelled(reference.tokenizer, folder):
        kl = row["logp_engine"] - reference_logp(reference.model, prompt, completion)
        assert row["reward"] == pytest.approx(row["learned"] - 0.5 * kl, abs=1e-4)
        assert row["step"] > 1 or abs(kl) < 1e-4
        largest = max(largest, abs(kl))
    assert largest > 0.1, "the policy has not moved enough for the KL term to be seen"
    for step in step_rows(folder):
        here = [r for r in rollouts(folder) if r["step"] == step["step"]]
        charged = sum(r["learned"] - r["reward"] for r in here) / 0.5
        assert step["kl_reward_mean"] == pytest.approx(charged / sum(r["tokens"] for r in here), abs=1e-6)


@pytest.mark.parametrize(("name", "algorithm"), [("rlhf", "ppo"), ("quickstart", "grpo")])
def test_the_tasks_score_never_trains(name: str, algorithm: str, changes, grpo, monkeypatch):
    """Turned upside down once the pairs are made, it changes what is reported, and no bit of what is trained."""
    settings = changes if algorithm == "ppo" else grpo
    true = groupwise.train(name, {**settings, "name": "true"}).folder
    real, steps_of = Arithmetic.score, Arithmetic.steps
    monkeypatch.setattr(Arithmetic, "score", lambda self, s, text: 1.0 - real(self, s, text))
    monkeypatch.setattr(Arithmetic, "steps", lambda self, s, text: [(e, 1 - v) for e, v in steps_of(self, s, text)])
    false = groupwise.train(name, {**scored_by(settings, true / "reward_model"), "name": "false"}).folder
    for a, b in zip(rollouts(true), rollouts(false), strict=True):
        assert a.pop("score") == 1 - b.pop("score")
        assert a == b
    first, second = weights(true), weights(false)
    assert all(torch.equal(first[k], second[k]) for k in first)


def test_group_advantages_compare_the_learned_scores(grpo):
    folder = groupwise.train("quickstart", {**grpo, "steps": 2}).folder
    rows = rollouts(folder)
    for step, group in {(r["step"], r["group"]) for r in rows}:
        here = [r for r in rows if (r["step"], r["group"]) == (step, group)]
        learned = [r["learned"] for r in here]
        mean, deviation = statistics.fmean(learned), statistics.stdev(learned) + 1e-6
        if max(learned) - min(learned) <= 1e-6:
            mean, deviation = learned[0], 1.0
        assert [r["advantage"] for r in here] == pytest.approx([(x - mean) / deviation for x in learned], abs=1e-4)
        assert [r["reward"] for r in here] == pytest.approx(learned, abs=1e-9)


def saved(folder: Path, name: str, step: int) -> dict[str, torch.Tensor]:
    return load_file(checkpoint.folder_of(folder / "checkpoints", step) / name)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("cache", [pytest.param("kept", marks=pytest.mark.slow), "deleted"])
def test_a_stopped_run_goes_on_to_the_same_bits(cache: str, changes):
    whole = groupwise.train("rlhf", {**changes, "name": "whole"}).folder
    if cache == "deleted":  # the policy is made again; the reward model lies in the run folder
        (Path(changes["runs"]) / ".cache").unlink()
    cut = assert_goes_on(whole, 2)
    for name in (checkpoint.CRITIC, checkpoint.CRITIC_OPTIMIZER, "optimizer.safetensors"):
        first, second = saved(whole, name, 3), saved(cut, name, 3)
        assert all(torch.equal(first[k], second[k]) for k in first)
    assert files(whole / "reward_model") == files(cut / "reward_model")
    if cache == "deleted":
        assert not list((Path(changes["runs"]) / ".cache").glob("reward-*")), "it was made a second time"


@pytest.mark.slow
def test_a_folders_reward_model_is_the_one_that_was_made_and_may_go_away(changes):
    made = groupwise.train("rlhf", {**changes, "name": "made"}).folder
    elsewhere = made.with_name("elsewhere")
    shutil.copytree(made / "reward_model", elsewhere)
    whole = groupwise.train("rlhf", {**scored_by(changes, elsewhere), "name": "whole"}).folder
    assert_same_run(made, whole)
    shutil.rmtree(elsewhere)
    assert_goes_on(whole, 3)


def pairs(path: Path, count: int, better: int) -> Path:
    """Pairs in which the worked answer (better = 0) or the short one (better = 1) is preferred."""
    with path.open("w") as file:
        for i in range(count):
            a, b, c = i % 5, i // 5 % 5, i // 25 % 5
            texts = [f"{a + b}+{c}={a + b + c}", f"{a + b + c}"]
            row = {"prompt": f"{a}+{b}+{c}=", "chosen": texts[better], "rejected": texts[1 - better]}
            file.write(json.dumps(row) + "\n")
    return path


@pytest.mark.parametrize("better", [0, 1])
def test_pairs_of_a_file_say_what_scores_high(better: int, grpo, tmp_path: Path):
    path = pairs(tmp_path / "pairs.jsonl", 120, better)
    source = {"path": str(path), "epochs": 4, "batch_size": 16, "learning_rate": 3e-3}
    folder = groupwise.train("quickstart", {**instead(grpo, source), "steps": 1}).folder
    report = json.loads((folder / "reward_model" / "preference.json").read_text())
    assert report["pairs"] + report["heldout_pairs"] == 120
    assert report["heldout_pairs"] == 24
    assert report["ceiling"] is None
    assert report["accuracy"] > 0.9
    rows = rollouts(folder)
    worked = statistics.fmean(r["learned"] for r in rows if "=" in r["completion"])
    short = statistics.fmean(r["learned"] for r in rows if "=" not in r["completion"])
    assert (worked > short) == (better == 0)
