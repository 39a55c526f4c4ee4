"""One case by groupwise, through a recipe and its loop: python benchmarks/trl/ours.py CASE MODELS OUT

Seconds are those of metrics.jsonl: every moment of a run belongs to one phase. Writing the rows of each completion is
in the step, as in any run; the evaluations before and after, and the checkpoint at the end, are not steps.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

import groupwise
from cases import CASES, Case
from groupwise.core.samples import Sample
from groupwise.journal.journal import read_metrics
from groupwise.models.chat.prompts import Chat
from process import finish, mean, peak_mib

RECIPE = Path(__file__).with_name("recipe.toml")
#: Phases that are no part of a step: a line has the seconds since the line before it.
OUTSIDE = ("start", "evaluate", "save", "lost")
#: The reward of a real model: for the right answer, in place of the recipe's.
RIGHT = {"task.check": "numeric", "rewards.task.weight": 1.0, "rewards.repetition.weight": 0.0}


def main(case: Case, models: Path, out: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = groupwise.train(str(RECIPE), overrides(case, models, folder))
        if not run.finished:
            sys.exit(f"{case.name}: stopped by signal {run.stopped_by}")
        rows = [row for row in read_metrics(run.folder) if "seconds" in row and "evaluation" not in row]
        peak = peak_mib()
        prompts, completions = sampled(run.folder, case, models / case.model_name)
    steps = [phases(row["seconds"]) for row in rows[case.warmup :]]
    finish(out, steps, **peak, prompt_tokens=prompts, completion_tokens=completions)


def overrides(case: Case, models: Path, folder: str) -> dict[str, object]:
    """The recipe's keys that a case sets."""
    return {
        "runs": folder,
        "model": str(models / case.model_name),
        "task.path": str(models / f"{case.name}.jsonl"),
        "task.heldout": str(models / f"{case.name}-heldout.jsonl"),
        "steps": case.steps,
        "prompts_per_step": case.prompts,
        "samples_per_prompt": case.samples,
        "sampling.max_new_tokens": case.limit,
        **(RIGHT if case.model is None else {}),
    }


def phases(seconds: dict[str, float]) -> dict[str, float]:
    """A step's seconds by phase, and in all."""
    inside = {name: value for name, value in seconds.items() if name not in OUTSIDE}
    return {"step": round(sum(inside.values()), 4), **inside}


def sampled(folder: Path, case: Case, model: Path) -> tuple[float, float]:
    """Mean tokens of a prompt and of a completion over the timed steps."""
    chat = Chat(AutoTokenizer.from_pretrained(model))
    with (folder / "rollouts.jsonl").open("rb") as file:
        lines: list[dict[str, Any]] = [json.loads(line) for line in file]
    timed = [line for line in lines if line["step"] > case.warmup]
    length = {text: len(chat.encode(Sample(text, text, ""))) for text in {line["prompt"] for line in timed}}
    return mean([length[line["prompt"]] for line in timed]), mean([line["tokens"] for line in timed])


if __name__ == "__main__":
    main(CASES[sys.argv[1]], Path(sys.argv[2]), Path(sys.argv[3]))
