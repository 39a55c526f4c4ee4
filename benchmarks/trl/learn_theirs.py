"""TRL learns the quickstart's task: .venv-trl/bin/python benchmarks/trl/learn_theirs.py SEED MODELS OUT

From the same policy, with the recipe's numbers and the task's own score; groupwise evaluates what comes out.
"""

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from groupwise.commands.evaluate import evaluate_policies
from groupwise.config import recipe
from groupwise.config.recipe import Recipe
from groupwise.config.resolve import resolve
from groupwise.core.samples import Sample
from learn_ours import CHANGES
from start import folder
from theirs import same_method
from trl import GRPOConfig, GRPOTrainer  # pyright: ignore  # of another environment


def main(seed: int, models: Path, out: Path) -> None:
    start = folder(models, seed)
    plan = resolve(recipe.load("quickstart", {**CHANGES, "seed": seed, "model": str(start), "runs": str(models)}))
    samples, scores = {sample.prompt: sample for sample in plan.task.samples("train")}, []

    def score(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
        values = [plan.task.score(samples[p], text) for p, text in zip(prompts, completions, strict=True)]
        scores.append(statistics.fmean(values))
        return values

    with tempfile.TemporaryDirectory() as runs:
        tokenizer = AutoTokenizer.from_pretrained(start, padding_side="left")
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32),
            processing_class=tokenizer,
            reward_funcs=score,
            args=configuration(plan.recipe, runs),
            train_dataset=problems(samples),
        )
        before = time.perf_counter()
        trainer.train()
        seconds = time.perf_counter() - before
        trainer.save_model(runs)
        rates = {"heldout_before": rate(seed, start), "heldout_after": rate(seed, Path(runs))}
    out.write_text(json.dumps({"scores": scores, **rates, "seconds_training": round(seconds, 3)}))


def configuration(quickstart: Recipe, runs: str) -> GRPOConfig:
    """The recipe in TRL's words: a batch is sampled once and trained in as many minibatches."""
    completions = quickstart.prompts_per_step * quickstart.samples_per_prompt
    return GRPOConfig(
        seed=quickstart.seed,
        max_steps=quickstart.steps * quickstart.updates_per_batch,
        num_generations=quickstart.samples_per_prompt,
        max_completion_length=quickstart.sampling.max_new_tokens,
        per_device_train_batch_size=completions // quickstart.updates_per_batch,
        steps_per_generation=quickstart.updates_per_batch,
        learning_rate=quickstart.learner.learning_rate,
        **same_method(runs),
    )


def problems(samples: dict[str, Sample]) -> Dataset:
    return Dataset.from_list([{"prompt": prompt} for prompt in samples])


def rate(seed: int, model: Path) -> float:
    """The pass rate on the recipe's held-out problems."""
    evaluation = evaluate_policies([str(model)], "quickstart", {"seed": seed}).evaluation
    assert evaluation.avg_at_k is not None
    return evaluation.avg_at_k


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
