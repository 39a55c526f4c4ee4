"""Completions that a policy needs to reach 95 % of a trained policy's held-out rate: taught by it, and reinforced.

    python benchmarks/teacher.py docs/evidence/teacher.jsonl                # three seeds, those without a row yet
    python benchmarks/teacher.py docs/evidence/teacher.jsonl --seeds 0,1
    python benchmarks/teacher.py docs/evidence/teacher.jsonl --seeds 0 --recipe times-tables   # SmolLM2, models/smollm2

A seed trains grpo, which is the teacher too, then opd from the same start. A row has the rate of each evaluation, and
the completions at which either first reaches the share of the teacher's last rate. A run that is there is taken as it
is, or goes on.
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

#: Settings of the teacher's run and of the student's, by recipe.
TEACHER: dict[str, dict[str, Any]] = {
    "quickstart": {"algorithm.name": "grpo", "evaluation.every": 2},
    "times-tables": {"algorithm.name": "grpo", "evaluation.every": 1, "evaluation.samples": 4},
}
STUDENT: dict[str, dict[str, Any]] = {
    "quickstart": {
        "algorithm.name": "opd",
        "steps": 12,
        "updates_per_batch": 8,
        "learner.learning_rate": 1e-3,
        "evaluation.every": 1,
    },
    "times-tables": {
        "algorithm.name": "opd",
        "algorithm.kl.place": "loss",
        "algorithm.kl.estimator": "full",
        "algorithm.kl.mixture": 1.0,
        "steps": 3,
        "prompts_per_step": 32,
        "samples_per_prompt": 2,
        "updates_per_batch": 8,
        "evaluation.every": 1,
        "evaluation.samples": 4,
    },
}
SHARE = 0.95


def curve(run: Path) -> list[tuple[int, float]]:
    """List (step, held-out rate) of each evaluation."""
    return [(step, row["avg_at_k"]) for step, row in sorted(evaluations_of(run).items())]


def needed(rates: list[tuple[int, float]], least: float, each: int) -> int | None:
    """Count the completions trained on at the first evaluation that reaches a rate; None if none does."""
    return next((step * each for step, rate in rates if rate >= least), None)


def completions_per_step(run: Path) -> int:
    """Count the completions that a step of a run trains on."""
    settings = tomllib.loads((run / "recipe.toml").read_text())
    return settings["prompts_per_step"] * settings["samples_per_prompt"]


def trained(recipe: str, settings: dict[str, Any], place: Path, name: str) -> Path:
    """Train a run, or go on with one that is there -> its folder."""
    if (place / name).is_dir():
        return groupwise.resume(place / name, quiet=True).folder
    common = {"runs": str(place), "journal.report": False, "name": name}
    return groupwise.train(recipe, {**settings, **common}, quiet=True).folder


def tried(recipe: str, seed: int, place: Path) -> dict[str, Any]:
    """Train teacher and student of a seed -> the row."""
    before = "" if recipe == "quickstart" else f"{recipe}-"
    teacher = trained(recipe, {"seed": seed, **TEACHER[recipe]}, place, f"{before}teacher-{seed}")
    taught = {"seed": seed, **STUDENT[recipe], "reference.model": str(teacher)}
    student = trained(recipe, taught, place, f"{before}student-{seed}")
    last = curve(teacher)[-1][1]
    counts = [needed(curve(run), SHARE * last, completions_per_step(run)) for run in (teacher, student)]
    return {
        "recipe": recipe,
        "seed": seed,
        "teacher": last,
        "reinforced": counts[0],
        "taught": counts[1],
        "teacher_curve": curve(teacher),
        "student_curve": curve(student),
        "student": STUDENT[recipe],
        "torch": torch.__version__,
    }


def main(
    file: Path,
    seeds: Annotated[str, typer.Option(help="Seeds, with a , between them.")] = "0,1,2",
    place: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs/teacher"),
    recipe: Annotated[str, typer.Option(help="quickstart, or times-tables.")] = "quickstart",
) -> None:
    """Append a row for each seed that has none."""
    rows = jsonl.rows(file) if file.exists() else ()
    own = {"recipe": recipe, "student": STUDENT[recipe]}
    done = {row["seed"] for row in rows if {"recipe": "quickstart", **row}.items() >= own.items()}
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    for seed in (int(seed) for seed in seeds.split(",") if int(seed) not in done):
        row = {**tried(recipe, seed, place), "commit": commit.stdout.strip()}
        with file.open("a") as out:
            out.write(json.dumps(row) + "\n")
        print(f"seed {seed}: {row['reinforced']} completions reinforced, {row['taught']} taught")


if __name__ == "__main__":
    typer.run(main)
