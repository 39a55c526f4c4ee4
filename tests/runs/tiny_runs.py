"""Runs of a third of a second: the smallest policy that learns, without a warm start."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from groupwise.core.files import jsonl
from groupwise.journal.journal import read_metrics
from groupwise.models.load import digest, load_policy
from groupwise.models.tiny import TinySpec
from groupwise.training import checkpoint
from tests.warm import WarmPopen

#: Laid over the recipe quickstart.
TINY_RUN: dict[str, Any] = {
    "seed": 1,  # of which a random policy has some answers right, in both steps
    "steps": 2,
    "warm_start.steps": 0,
    "prompts_per_step": 6,
    "samples_per_prompt": 16,
    "updates_per_batch": 2,
    "task.operands": [2, 2],
    "task.largest": 2,
    "task.heldout_share": 0.3,
    "sampling.max_new_tokens": 4,
    "learner.learning_rate": 0.1,
    "evaluation.problems": 3,
    "evaluation.samples": 16,
    "evaluation.every": 0,
    "checkpoint.every": 1,
    "checkpoint.keep": 9,
    "journal.report": False,
}


def tiny_policy(folder: Path, seed: int = 0, layers: int = 1) -> Path:
    spec = TinySpec(layers=layers, width=8, mlp_width=16, heads=2, kv_heads=2, head_dim=4, max_length=64)
    spec.build("0123456789+-=", folder, seed=seed)
    return folder


def tiny_run(place: Path, **changes: Any) -> dict[str, Any]:
    """Overrides of a run in `place`, with its policy beside it."""
    model = place / "model"
    if not model.exists():
        tiny_policy(model)
    dotted = {key.replace("__", "."): value for key, value in changes.items()}
    return {**TINY_RUN, "model": str(model), "runs": str(place / "runs"), **dotted}


def laid_over(settings: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Settings with changes, of which a whole table takes the place of its dotted keys."""
    return {key: value for key, value in settings.items() if key.partition(".")[0] not in changes} | changes


def rollouts(run: Path, step: int | None = None) -> list[dict[str, Any]]:
    return list(jsonl.rows(run / "rollouts.jsonl", step))


def step_rows(run: Path) -> list[dict[str, Any]]:
    return [row for row in read_metrics(run) if "checks" in row]


def weights_after(run: Path, step: int) -> str:
    return digest(load_policy(checkpoint.folder_of(run / "checkpoints", step) / "policy").model)


def cut_back(run: Path, step: int) -> None:
    for later in (s for s in checkpoint.steps(run / "checkpoints") if s >= step):
        shutil.rmtree(checkpoint.folder_of(run / "checkpoints", later))


def own_processes(words: str) -> list[int]:
    """The children of this process that live and have these words in their command line."""
    living = []
    for entry in Path("/proc").iterdir():
        try:
            ours = f"PPid:\t{os.getpid()}\n" in (entry / "status").read_text()
            if ours and words in (WarmPopen.forked.get(int(entry.name)) or (entry / "cmdline").read_text()):
                living.append(int(entry.name))
        except (OSError, ValueError):
            pass
    return living
