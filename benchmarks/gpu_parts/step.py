"""Whole steps of GRPO by groupwise, by phase, through a recipe and its loop, with the plan of its memory."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import groupwise
from gpu_parts.measuring import Context, peak_gib
from gpu_parts.sizes import Size, problems
from groupwise.commands.build import build
from groupwise.journal.journal import read_metrics
from ours import phases

RECIPE = Path(__file__).with_name("step.toml")
WARMUP = 1


class Enough(BaseException):
    """Ends a run whose steps are timed: what follows would write a checkpoint of four times the model's size."""


def measure(context: Context) -> None:
    for size in context.amounts.trained:
        context.measure(*figure(context, size, context.amounts.step))
    context.measure(*figure(context, context.amounts.trained[0], context.amounts.published))


def figure(context: Context, size: Size, step: tuple[int, int, int]) -> tuple[dict[str, Any], Any]:
    prompts, samples, tokens = step
    key = {"model": size.name, "prompts": prompts, "samples": samples, "tokens": tokens}
    return key, partial(stepped, context, size, step)


def stepped(context: Context, size: Size, step: tuple[int, int, int]) -> dict[str, Any]:
    """Seconds of each step by phase, without those that warm up."""
    plans: list[Any] = []
    words = build.in_words

    def remembered(memory: Any) -> str:
        plans.append(memory)
        return words(memory)

    def enough(record: groupwise.StepRecord) -> None:
        if record.step == context.amounts.steps:
            raise Enough

    with tempfile.TemporaryDirectory() as runs, mock.patch.object(build, "in_words", remembered):
        with suppress(Enough):
            groupwise.train(str(RECIPE), overrides(context, size, step, runs), callbacks=[enough])
        rows = [row for row in read_metrics(Path(runs) / "timed") if "seconds" in row and "evaluation" not in row]
    timed = [phases(row["seconds"]) for row in rows[WARMUP:]]
    checks = {name for row in rows for name, check in row["checks"].items() if check["verdict"] == "fail"}
    return {
        "steps": timed,
        "failed_checks": sorted(checks),
        "peak_gib": peak_gib(context.device),
        "planned_gib": round(plans[0].peak / 2**30, 3),
        "phase": plans[0].phase,
    }


def overrides(context: Context, size: Size, step: tuple[int, int, int], runs: str) -> dict[str, Any]:
    """The recipe's keys that a size and a step set."""
    prompts, samples, tokens = step
    amounts, folder = context.amounts, size.folder(context.models, context.device)
    path = problems(context.models, prompts * (amounts.steps + 1), amounts.prompt)
    return {
        "name": "timed",
        "runs": runs,
        "device": context.device,
        "model": str(folder),
        "task.path": str(path),
        "task.heldout": str(path.with_suffix(".heldout.jsonl")),
        "rewards.even.use": f"{Path(__file__).with_name('reward.py')}:even",
        "steps": amounts.steps + 1,
        "prompts_per_step": prompts,
        "samples_per_prompt": samples,
        "sampling.max_new_tokens": tokens,
    }
