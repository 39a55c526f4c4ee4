"""The experiment of docs/howto/moe.md: every recipe of a folder over seeds, one row per finished run in a file.

    python benchmarks/stability.py docs/evidence/moe-stability.jsonl --at-once 2
    python benchmarks/stability.py docs/evidence/moe-stability.jsonl --at-once 2 --set learner.learning_rate=1e-3

A run that has its row is not run again and one that was cut off is resumed, so the experiment can be stopped and gone
on with at any time. A recipe whose text has changed, and one with other settings, counts as another one. Then the
tables of these settings are printed.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import statistics
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import typer

from groupwise.config.recipe_files import assignment
from groupwise.journal.journal import read_metrics
from sweep import finished

RECIPES = Path(__file__).parents[1] / "recipes" / "moe-stability"

#: A run has collapsed where its held-out pass rate ends this far below its own best, or where it stopped by itself.
FALL = 0.15

#: Curves that a row keeps, a number for each step.
CURVES = (
    "pass_rate",
    "length_mean",
    "entropy_mean",
    "gradient_norm",
    "share_passed",
    "log_ratio_variance",
    "log_ratio_variance_changed",
    "log_ratio_variance_same",
    "ratio_token_p99",
    "effective_sample_share",
    "routing.changed",
    "routing.changed_mean",
    "routing.engine_changed",
    "routing.used_changed",
    "routing.used_engine_changed",
    "routing.removed",
)

Row = dict[str, Any]


def recipes(folder: Path = RECIPES) -> list[Path]:
    """By name: a condition comes before those that are named after it."""
    return sorted(folder.glob("*.toml"), key=lambda path: path.stem)


def digest(recipe: Path) -> str:
    """Tells a recipe from the same one before it was changed."""
    table = tomllib.loads(recipe.read_text(encoding="utf-8"))
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:12]


def one(recipe: Path, seed: int, settings: Sequence[str], runs: Path, threads: int) -> Row:
    """One run in a process of its own, begun or gone on with -> its row."""
    folder = runs / "-".join([recipe.stem, digest(recipe), *(text.replace("=", "-") for text in settings), str(seed)])
    command = [sys.executable, "-m", "groupwise.cli", "train"]
    if (folder / "recipe.toml").exists():
        command += ["--resume", str(folder)]
    else:
        keys = (f"name={folder.name}", f"seed={seed}", f"runs={runs}", *settings)
        command += [str(recipe), *(part for key in keys for part in ("--set", key))]
    env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    if done.returncode not in (0, 1):  # 1: the run stopped by itself and says why
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    is_what = {"recipe": recipe.stem, "digest": digest(recipe), "settings": [*settings], "seed": seed}
    is_made = {"threads": threads, "commit": commit()}
    why = done.stderr.strip().splitlines()[-1] if done.returncode else ""
    return {**is_what, **is_made, "stopped": why, **told(folder)}


def commit() -> str:
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip()


def told(folder: Path) -> Row:
    """What a run folder says: held-out pass rates, curves, experts that changed by layer and update, seconds."""
    rows = read_metrics(folder)
    steps = [row for row in rows if "evaluation" not in row]
    heldout = [[row["step"], row["evaluation"]["avg_at_k"]] for row in rows if "evaluation" in row]
    curves = {name: [short(row.get(name)) for row in steps] for name in CURVES}
    after = sorted({key for row in steps for key in row if key.startswith("routing.changed_in.")})
    summary = folder / "summary.json"
    return {
        "heldout": heldout,
        "curves": {name: curve for name, curve in curves.items() if any(value is not None for value in curve)},
        "changed": {
            key.removeprefix("routing.changed_in."): short(mean(row.get(key) for row in steps)) for key in after
        },
        "seconds_total": json.loads(summary.read_text())["seconds_total"] if summary.exists() else None,
        "seconds": short(sum(sum(row["seconds"].values()) for row in rows)),
    }


def short(value: float | None) -> float | None:
    """Five digits say all that three seeds can."""
    return None if value is None or math.isnan(value) else float(f"{value:.5g}")


def mean(values: Iterator[float | None]) -> float:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else math.nan


def collapsed(row: Row) -> bool:
    """By the definition that was fixed before the runs: FALL."""
    rates = [rate for _, rate in row["heldout"]]
    return bool(row["stopped"]) or max(rates) - rates[-1] >= FALL


def below_start(row: Row) -> bool:
    """A run that never rose has nothing to fall from, and is no collapse by the definition."""
    return end(row) < row["heldout"][0][1]


def end(row: Row) -> float:
    return row["heldout"][-1][1]


def best(row: Row) -> float:
    return max(rate for _, rate in row["heldout"])


def over(name: str) -> Callable[[Row], float]:
    """The mean of a curve over the run's steps."""
    return lambda row: mean(iter(row["curves"].get(name, ())))


def last(name: str) -> Callable[[Row], float]:
    """The mean of a curve over the run's last ten steps."""
    return lambda row: mean(iter(row["curves"].get(name, ())[-10:]))


COLUMNS: dict[str, tuple[Callable[[Row], float], str]] = {
    "held out, best": (best, ".3f"),
    "held out, at the end": (end, ".3f"),
    "variance of log-ratios": (over("log_ratio_variance"), ".3g"),
    "passed": (over("share_passed"), ".3f"),
    "entropy at the end": (last("entropy_mean"), ".3f"),
    "length at the end": (last("length_mean"), ".1f"),
    "experts changed": (over("routing.changed_mean"), ".2%"),
}

ROUTING: dict[str, tuple[Callable[[Row], float], str]] = {
    "chosen, after the last update": (over("routing.changed"), ".2%"),
    "used": (over("routing.used_changed"), ".2%"),
    "removed by replay": (over("routing.removed"), ".2%"),
    "engine and learner differ": (over("routing.engine_changed"), ".3%"),
    "used, against the engine": (over("routing.used_engine_changed"), ".3%"),
    "variance, an expert changed": (over("log_ratio_variance_changed"), ".3g"),
    "variance, none changed": (over("log_ratio_variance_same"), ".3g"),
}


def spread(rows: Sequence[Row], of: Callable[[Row], float], form: str) -> str:
    """Mean, and smallest to largest over the seeds."""
    values = [value for row in rows if not math.isnan(value := of(row))]
    if not values:
        return ""
    return f"{statistics.fmean(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def table(rows: Sequence[Row], columns: dict[str, tuple[Callable[[Row], float], str]], runs: bool) -> Iterator[str]:
    """A line for each recipe, in Markdown."""
    names = [*(["runs", "collapsed", "end below their start"] if runs else []), *columns]
    yield f"| recipe | {' | '.join(names)} |"
    yield "|---" * (len(names) + 1) + "|"
    for name in dict.fromkeys(row["recipe"] for row in rows):
        own = [row for row in rows if row["recipe"] == name]
        cells = [spread(own, of, form) for of, form in columns.values()]
        if runs:
            cells = [str(len(own)), *(str(sum(map(of, own))) for of in (collapsed, below_start)), *cells]
        if any(cells):
            yield f"| {name} | {' | '.join(cells)} |"


def current(file: Path, recipes: Sequence[Path], settings: Sequence[str]) -> list[Row]:
    """The rows of the recipes as they are now, under these settings, in their order."""
    known = {(recipe.stem, digest(recipe)): place for place, recipe in enumerate(recipes)}
    rows = [row for row in finished(file) if (row["recipe"], row["digest"]) in known and row["settings"] == settings]
    return sorted(rows, key=lambda row: (known[row["recipe"], row["digest"]], row["seed"]))


def main(
    file: Path,
    folder: Path = RECIPES,
    seeds: Annotated[str, typer.Option(help="Such as 0,1,2.")] = "0,1,2",
    runs: Path = Path("runs/stability"),
    at_once: Annotated[int, typer.Option(min=1, help="Runs side by side; they share the cores.")] = 1,
    set: Annotated[list[str] | None, typer.Option("--set", help="Laid over every recipe.")] = None,
    only: Annotated[str, typer.Option(help="Recipes such as grpo,gspo; all without it.")] = "",
) -> None:
    """Run what has no row yet; then print the tables."""
    settings = set or []
    for text in settings:
        assignment(text)
    found = recipes(folder)
    names = only.split(",") if only else [recipe.stem for recipe in found]
    if unknown := {*names} - {recipe.stem for recipe in found}:
        raise typer.BadParameter(f"--only: no such recipe in {folder}: {', '.join(sorted(unknown))}")
    chosen = [recipe for recipe in found if recipe.stem in names]
    there = {(row["recipe"], row["digest"], row["seed"]) for row in current(file, found, settings)}
    wanted = [
        (recipe, seed)
        for recipe in chosen
        for seed in map(int, seeds.split(","))
        if (recipe.stem, digest(recipe), seed) not in there
    ]
    threads, writing = max(1, (os.cpu_count() or 1) // at_once), threading.Lock()

    def run(job: tuple[Path, int]) -> None:
        row = one(*job, settings, runs, threads)
        with writing:
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("a") as out:
                out.write(json.dumps(row) + "\n")
            rates = " ".join(f"{rate:.3f}" for _, rate in row["heldout"])
            print(f"{row['recipe']} seed {row['seed']}: held out {rates}{' collapsed' * collapsed(row)}", flush=True)

    with ThreadPoolExecutor(at_once) as pool:
        for _ in pool.map(run, wanted):
            pass
    rows = current(file, found, settings)
    print("\n".join([*table(rows, COLUMNS, runs=True), "", *table(rows, ROUTING, runs=False)]))


if __name__ == "__main__":
    typer.run(main)
