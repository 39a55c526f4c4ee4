"""The same whole steps by TRL's GRPOTrainer, which samples with transformers; in an interpreter that has TRL."""

from __future__ import annotations

import statistics
import sys
import tempfile
from functools import partial
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from gpu_parts.measuring import Context, peak_gib
from gpu_parts.reward import even
from gpu_parts.sizes import Size, problems
from gpu_parts.step import WARMUP

try:
    from theirs import Steps, Timed, same_method
    from trl import GRPOConfig  # pyright: ignore  # of another environment
except ImportError as error:
    raise SystemExit(
        f"no TRL in {sys.executable} ({error}): make .venv-trl/installed, or name another with --trl-python"
    ) from None

#: Completions that go through TRL's learner at once: the largest that fits is taken, and the others are not tried.
AT_ONCE = (64, 32, 16, 8, 4)


def measure(context: Context) -> None:
    prompts, samples, tokens = context.amounts.step
    for size in context.amounts.trained:
        key = {"model": size.name, "prompts": prompts, "samples": samples, "tokens": tokens}
        context.measure(key, partial(stepped, context, size))


def stepped(context: Context, size: Size) -> dict[str, Any]:
    """Seconds of each step by phase, with as many completions at once as the device has room for."""
    for rows in AT_ONCE:
        if rows <= context.amounts.step[0] * context.amounts.step[1]:
            try:
                return run(context, size, rows)
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
    raise RuntimeError(f"{AT_ONCE[-1]} completions at once are too many for the device")


def run(context: Context, size: Size, rows: int) -> dict[str, Any]:
    steps, amounts = Steps(), context.amounts
    folder = size.folder(context.models, context.device)
    path = problems(context.models, amounts.step[0] * (amounts.steps + 1), amounts.prompt)
    with tempfile.TemporaryDirectory() as out:
        trainer = Timed(
            model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16),
            processing_class=AutoTokenizer.from_pretrained(folder, padding_side="left"),
            reward_funcs=scores,
            args=configuration(context, rows, out),
            train_dataset=Dataset.from_json(str(path), cache_dir=f"{out}/cache"),
            callbacks=[steps],
        )
        steps.trainer = trainer
        trainer.train()
    return {
        "steps": steps.rows[WARMUP:],
        "completion_tokens": statistics.fmean(trainer.completion_tokens),
        "at_once": rows,
        "peak_gib": peak_gib(context.device),
    }


def configuration(context: Context, rows: int, folder: str) -> GRPOConfig:
    """The step of step.toml in TRL's words; weights and moments are bfloat16, which is faster and takes less."""
    prompts, samples, tokens = context.amounts.step
    on_cpu = context.device == "cpu"
    return GRPOConfig(
        **(same_method(folder) | {"use_cpu": on_cpu, "bf16": not on_cpu}),
        max_steps=context.amounts.steps,
        num_generations=samples,
        max_completion_length=tokens,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=prompts * samples // rows,
        learning_rate=1e-6,
    )


def scores(completions: list[str], **columns: Any) -> list[float]:
    """The reward of step.toml, by the same code."""
    return [even(None, text) for text in completions]
