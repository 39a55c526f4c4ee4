"""Completions that a tiny policy needs to reach 95 % of a trained policy's held-out rate: taught by it, and reinforced.

    python benchmarks/teacher.py docs/evidence/teacher.jsonl                # three seeds, those without a row yet
    python benchmarks/teacher.py docs/evidence/teacher.jsonl --seeds 0,1

A seed trains grpo, which is the teacher too, then opd from the same start. A row has the rate of each evaluation, and
the completions at which either first reaches the share of the teacher's last rate.
"""

from __future__ import annotations

import json
import subprocess
import tomllib
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import groupwise
from groupwise.commands.train.run import evaluations_of
from groupwise.core.files import jsonl

#: Steps and settings of either run; the recipe is quickstart's.
TEACHER: dict[str, Any] = {"algorithm.name": "grpo", "evaluation.every": 2}
STUDENT: dict[str, Any] = {
    "algorithm.name": "opd",
    "steps": 12,
    "updates_per_batch": 8,
    "learner.learning_rate": 1e-3,
    "evaluation.every": 1,
}
SHARE = 0.95


def curve(run: groupwise.Run) -> list[tuple[int, float]]:
    """List (step, held-out rate) of each evaluation."""
    return [(step, row["avg_at_k"]) for step, row in sorted(evaluations_of(run.folder).items())]


def needed(rates: list[tuple[int, float]], least: float, each: int) -> int | None:
    """Count the completions trained on at the first evaluation that reaches a rate; None if none does."""
    return next((step * each for step, rate in rates if rate >= least), None)


def tried(seed: int, place: Path) -> dict[str, Any]:
    """Train teacher and student of a seed -> the row."""
    common = {"seed": seed, "runs": str(place), "journal.report": False}
    teacher = groupwise.train("quickstart", {**common, **TEACHER, "name": f"teacher-{seed}"}, quiet=True)
    taught = {**common, **STUDENT, "name": f"student-{seed}", "reference.model": str(teacher.folder)}
    student = groupwise.train("quickstart", taught, quiet=True)
    last = curve(teacher)[-1][1]
    recipe = tomllib.loads((teacher.folder / "recipe.toml").read_text())
    each = recipe["prompts_per_step"] * recipe["samples_per_prompt"]
    counts = [needed(curve(run), SHARE * last, each) for run in (teacher, student)]
    return {
        "seed": seed,
        "teacher": last,
        "reinforced": counts[0],
        "taught": counts[1],
        "teacher_curve": curve(teacher),
        "student_curve": curve(student),
        "student": STUDENT,
        "torch": torch.__version__,
    }


def main(
    file: Path,
    seeds: Annotated[str, typer.Option(help="Seeds, with a , between them.")] = "0,1,2",
    place: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs/teacher"),
) -> None:
    """Append a row for each seed that has none."""
    done = {row["seed"] for row in jsonl.rows(file)} if file.exists() else set()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    for seed in (int(seed) for seed in seeds.split(",") if int(seed) not in done):
        row = {**tried(seed, place), "commit": commit.stdout.strip()}
        with file.open("a") as out:
            out.write(json.dumps(row) + "\n")
        print(f"seed {seed}: {row['reinforced']} completions reinforced, {row['taught']} taught")


if __name__ == "__main__":
    typer.run(main)
