"""Runs of one recipe over algorithms and seeds, one after the other, one row per finished run in a file.

    python benchmarks/sweep.py docs/evidence/quickstart.jsonl --algorithms grpo --algorithms dapo --seeds 0,1,2,3,4
    python benchmarks/sweep.py docs/evidence/quickstart.jsonl

A run that has its row is not run again, so the sweep can be stopped and gone on with at any time. `groupwise sweep` is
the command for sweeps of your own; this one writes the files of docs/evidence/.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from groupwise.commands.train.apart import train_apart
from groupwise.config.recipe_files import assignment
from groupwise.journal.journal import read_metrics


def finished(file: Path) -> list[dict[str, Any]]:
    """The rows so far."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def one(recipe: str, algorithm: str, seed: int, settings: list[str], runs: Path) -> dict[str, Any]:
    """One run in a process of its own -> its row. Runs of other settings lie in other folders."""
    runs = runs / ("-".join(settings).replace("/", "_") or "as-it-is")
    name = f"{recipe}-{algorithm}-{seed}"
    folder = runs / name
    own = {"name": name, "runs": str(runs), "algorithm.name": algorithm, "seed": seed}
    train_apart(recipe, {**own, **dict(map(assignment, settings))}, folder)
    summary = json.loads((folder / "summary.json").read_text())
    summary.pop("policy", None)  # where it lies on this machine says nothing to others
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "recipe": recipe,
        "settings": settings,
        "commit": commit.stdout.strip(),
        "share_passed": mean_share(folder),
        **summary,
    }


def mean_share(folder: Path) -> float:
    """The mean over steps of the gradient that the trust region passes: `share_passed` of metrics.jsonl."""
    shares = [row["share_passed"] for row in read_metrics(folder) if row.get("share_passed") is not None]
    return sum(shares) / len(shares)


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """The rows as a Markdown table, with the worst and the mean of each algorithm."""
    yield "| algorithm | seed | held out before | after | length before | after | passed | seconds, training | in all |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for name in dict.fromkeys(r["algorithm"] for r in rows):
        own = sorted((r for r in rows if r["algorithm"] == name), key=lambda r: r["seed"])
        for r in own:
            share = f"{r['share_passed']:.3f}" if "share_passed" in r else ""
            yield (
                f"| {name} | {r['seed']} | {r['heldout_before']:.3f} | {r['heldout_after']:.3f} | "
                f"{r['length_before']:.1f} | {r['length_after']:.1f} | {share} | {r['seconds_training']:.0f} | "
                f"{r['seconds_total']:.0f} |"
            )
        after = [r["heldout_after"] for r in own]
        yield f"| {name} | worst / mean | | **{min(after):.3f}** / {sum(after) / len(after):.3f} | | | | | |"


def main(
    file: Path,
    recipe: str = "quickstart",
    algorithms: Annotated[list[str] | None, typer.Option()] = None,
    seeds: Annotated[str, typer.Option(help="Such as 0,1,2.")] = "0,1,2,3,4",
    set: Annotated[list[str] | None, typer.Option("--set")] = None,
    runs: Path = Path("runs/sweep"),
) -> None:
    """Run what has no row yet; then print the table."""
    settings = set or []
    for text in settings:
        assignment(text)
    for algorithm in algorithms or []:
        for seed in map(int, seeds.split(",")):
            wanted = (recipe, settings, algorithm, seed)
            if wanted in [(r["recipe"], r["settings"], r["algorithm"], r["seed"]) for r in finished(file)]:
                continue
            row = one(recipe, algorithm, seed, settings, runs)
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("a") as out:
                out.write(json.dumps(row) + "\n")
            print(f"{algorithm} seed {seed}: {row['heldout_before']:.3f} -> {row['heldout_after']:.3f}", flush=True)
    print("\n".join(table([r for r in finished(file) if r["recipe"] == recipe and r["settings"] == settings])))


if __name__ == "__main__":
    typer.run(main)
