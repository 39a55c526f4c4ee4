"""Provoked collapses and sound runs: how early each warning comes, how often it is wrong, what going back gains.

    python benchmarks/collapse.py docs/evidence/collapse.jsonl --at-once 2
    python benchmarks/collapse.py docs/evidence/collapse.jsonl --at-once 2 --rollback
    python benchmarks/collapse.py docs/evidence/collapse.jsonl --only-tables

Every run begins with the policy that the quickstart begins with for its seed, and trains in one thread. A run that has
its row is not run again, so the experiment can be stopped and gone on with at any time; a kind whose settings have
changed counts as another one, and so does a return by other thresholds. Then the tables of
docs/findings/collapse.md are printed.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

import typer

from collapse_kinds import COLLAPSES, COMMON, KINDS, PUSHED, SEEDS, Settings, seeds_of
from collapse_score import Row, lost_at, tables, thresholds, warned
from groupwise.journal.journal import read_metrics
from sweep import finished

#: Columns of metrics.jsonl that the warnings read, and some that they might, a number for each step.
CURVES = (
    "pass_rate",
    "entropy_mean",
    "ratio_token_p01",
    "ratio_token_p99",
    "effective_sample_share",
    "log_ratio_variance",
    "log_ratio_abs_max",
    "log_ratio_clamped_tokens",
    "engine_probability_error",
    "engine_effective_sample_share",
    "gradient_norm",
    "gradient_norm_max",
    "kl_mean",
    "share_passed",
    "groups_mixed_share",
)
#: The run that a seed's policy comes from: the quickstart's warm start, which nothing has trained.
BASE: Settings = {**COMMON, "steps": 1, "learner.learning_rate": 0.0, "evaluation.problems": 1}


@dataclass(frozen=True)
class Job:
    """One run that is wanted."""

    kind: str
    seed: int
    guard: str

    @property
    def key(self) -> Row:
        """What tells its row; a run that is only warned is the same under any thresholds."""
        by = {} if self.guard == "warn" else {"thresholds": thresholds()}
        return {"kind": self.kind, "digest": KINDS[self.kind].digest, "seed": self.seed, "guard": self.guard, **by}

    def has(self, row: Row) -> bool:
        """Whether a row is this run's."""
        return all(row.get(name) == value for name, value in self.key.items())


def base(seed: int, runs: Path) -> Path:
    """The run whose policy all runs of a seed begin with, made where it is not there."""
    import groupwise

    folder = runs / f"base-{seed}"
    if not (folder / "summary.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        groupwise.train("quickstart", {**BASE, "seed": seed, "name": folder.name, "runs": str(runs)})
    return folder


def one(job: Job, runs: Path) -> Row:
    """One run, from its beginning -> its row."""
    import groupwise
    from groupwise.core.errors import RunError

    kind, stopped = KINDS[job.kind], ""
    folder = runs / "-".join(str(value).replace(" ", "-").replace(",", "") for value in job.key.values())
    shutil.rmtree(folder, ignore_errors=True)
    given = {"seed": job.seed, "name": folder.name, "runs": str(runs), "start": str(base(job.seed, runs))}
    begun = time.process_time()
    with kind.provoked():
        try:
            groupwise.train("quickstart", {**COMMON, **kind.settings, **given, "guard": job.guard})
        except RunError as error:
            stopped = str(error)
    row = {**job.key, **told(read_metrics(folder)), "stopped": stopped.partition(" Saved: ")[0], "returns": []}
    if job.guard == "rollback":
        row["returns"] = json.loads((folder / "about.json").read_text()).get("rolled_back", [])
    shutil.rmtree(folder)
    return {**row, "cpu_seconds": round(time.process_time() - begun, 1), "commit": commit()}


def told(rows: Sequence[Row]) -> Row:
    """What a run's rows say: held-out pass rates by step, and the columns that warnings read."""
    steps = [row for row in rows if "evaluation" not in row]
    curves = {name: [short(row.get(name)) for row in steps] for name in CURVES}
    return {
        "heldout": [[row["step"], short(row["evaluation"]["avg_at_k"])] for row in rows if "evaluation" in row],
        "curves": {name: curve for name, curve in curves.items() if any(value is not None for value in curve)},
    }


def short(value: float | None) -> float | None:
    """Four digits: a threshold is nowhere nearer."""
    return None if value is None or math.isnan(value) else float(f"{value:.4g}")


def commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def scored(file: Path, guard: str) -> list[Row]:
    """The rows that score, of the conditions as they are now, in their order."""
    jobs = [Job(name, seed, guard) for name in KINDS for seed in seeds_of(name)]
    rows = finished(file)
    return [row for job in jobs for row in rows if job.has(row)]


def wanted(file: Path, guard: str, names: Sequence[str], seeds: Sequence[int]) -> list[Job]:
    """The runs that have no row: a seed of every kind before the next seed, and what is only pushed last."""
    rows = finished(file)
    jobs = [Job(name, seed, guard) for seed in seeds for name in names if seed in seeds_of(name) or seed not in SEEDS]
    return sorted((job for job in jobs if not any(map(job.has, rows))), key=_turn)


def _turn(job: Job) -> tuple[bool, int]:
    return job.kind in PUSHED, job.seed


def main(
    file: Path,
    seeds: Annotated[str, typer.Option(help="Such as 0,1,2; conditions were chosen on 100.")] = ",".join(
        map(str, SEEDS)
    ),
    only: Annotated[str, typer.Option(help="Kinds such as 'learning rate;sound, grpo'; all without it.")] = "",
    rollback: Annotated[
        bool, typer.Option("--rollback", help='Collapses under guard = "rollback", to see what that gains.')
    ] = False,
    runs: Path = Path("runs/collapse"),
    at_once: Annotated[int, typer.Option(min=1, help="Runs side by side, each in one thread.")] = 1,
    only_tables: Annotated[bool, typer.Option("--only-tables", help="Run nothing.")] = False,
) -> None:
    """Run what has no row yet; then print the tables."""
    names = only.split(";") if only else list(COLLAPSES if rollback else KINDS)
    if unknown := [name for name in names if name not in KINDS]:
        raise typer.BadParameter(f"{', '.join(unknown)}: no such kind; there are {'; '.join(KINDS)}")
    jobs = wanted(file, "rollback" if rollback else "warn", names, [int(seed) for seed in seeds.split(",")])
    for done in [] if only_tables else rows_of(jobs, runs, at_once):
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as out:
            out.write(json.dumps(done) + "\n")
        rates = " ".join(f"{rate:.2f}" for _, rate in done["heldout"])
        seconds = f"{done['cpu_seconds']:.0f} s"
        print(
            f"{done['kind']}, seed {done['seed']}, {seconds}: lost at {lost_at(done)}, {warned(done)}: {rates}",
            flush=True,
        )
    print("\n".join(tables(scored(file, "warn"), scored(file, "rollback"))))


def rows_of(jobs: Sequence[Job], runs: Path, at_once: int) -> Iterator[Row]:
    """The row of each run, as it ends."""
    with ProcessPoolExecutor(at_once, get_context("spawn")) as pool:
        for (_, seed), own in groupby(jobs, key=_turn):
            pool.submit(base, seed, runs).result()
            for done in as_completed([pool.submit(one, job, runs) for job in own]):
                yield done.result()


if __name__ == "__main__":
    typer.run(main)
