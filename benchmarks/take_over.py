"""The rows of docs/evidence/moe-stability.jsonl that claims read, as rows of claims.

    python benchmarks/take_over.py docs/evidence/moe-stability.jsonl docs/evidence/claims.jsonl

A run of benchmarks/stability.py at one thread is what `groupwise claims` would run again for the same seed; what it
cost and what is read of its tokens was not kept. A row that is there already is not added twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from groupwise.claims import readings
from groupwise.claims.articles.experts import CLAIMS, RATES, run
from groupwise.claims.command import append_row, read_rows
from groupwise.claims.experiments import Experiment
from groupwise.claims.measurements import Row
from stability import RECIPES, digest


def experiments() -> dict[tuple[str, float], Experiment]:
    """Those of the claims, by recipe and learning rate."""
    read = {e.name for claim in CLAIMS for e in claim.experiments}
    names = [path.stem for path in RECIPES.glob("*.toml")]
    every = {(name, rate): run(name, rate) for name in names for rate in RATES}
    return {key: experiment for key, experiment in every.items() if experiment.name in read}


def rate_of(row: dict[str, Any]) -> float | None:
    """The learning rate of a row; None where other settings were laid over its recipe."""
    if not row["settings"]:
        return RATES[0]
    key, _, value = row["settings"][0].partition("=")
    return float(value) if len(row["settings"]) == 1 and key == "learner.learning_rate" else None


def numbers(row: dict[str, Any]) -> dict[str, Any]:
    """Read a row's curves and held-out rates, which are of the same kind, in the words of claims' rows."""
    count = max(len(curve) for curve in row["curves"].values())
    steps = [{name: curve[i] for name, curve in row["curves"].items()} for i in range(count)]
    return readings.of_steps(steps, [{"step": step, "evaluation": {"avg_at_k": rate}} for step, rate in row["heldout"]])


def taken(file: Path) -> Iterator[Row]:
    """Rows of recipes that are as they were then."""
    wanted = experiments()
    for row in map(json.loads, file.read_text().splitlines()):
        experiment = wanted.get((row["recipe"], rate_of(row) or 0.0))
        if experiment and row["digest"] == digest(RECIPES / f"{row['recipe']}.toml") and row["threads"] == 1:
            yield Row(
                experiment=experiment.name,
                seed=row["seed"],
                fingerprint=experiment.fingerprint,
                measured=numbers(row),
                error=row["stopped"],
                seconds=row["seconds_total"] or row["seconds"],
                machine="2 cores, x86_64, no GPU (docs/howto/moe.md)",
                made_by=f"{file.name}, commit {row['commit']}",
            )


def main(file: Path, rows: Path) -> None:
    """Append what is not there yet."""
    there = {(row.experiment, row.seed, row.fingerprint) for row in read_rows(rows)}
    for row in taken(file):
        if (row.experiment, row.seed, row.fingerprint) not in there:
            append_row(rows, row)
            print(f"{row.experiment}, seed {row.seed}")


if __name__ == "__main__":
    typer.run(main)
