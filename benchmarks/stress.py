"""The stress board: every algorithm of the catalog under nine conditions, on tiny policies, five seeds each.

    python benchmarks/stress.py --at-once 2                      # docs/evidence/stress.jsonl: what has no row yet
    python benchmarks/stress.py --minutes 9 --only on-policy     # begin no run after so many minutes
    python benchmarks/stress.py --table                          # run nothing: the tables, from the rows
    python benchmarks/stress.py --page docs/which.md             # run nothing: the generated part of the page

Generation is equal: so many steps, prompts and samples, one pass over a batch (also for ppo, whose row has four), and
one round of generation (also for the rows that would replace groups without signal). The learning rate of a cell is
that of RATES with the largest area under the held-out curve on SWEEP_SEED, which is none of SEEDS; a tie goes to the
smaller one. opd learns from one teacher a task: grpo's policy after TEACHER_STEPS, from the start of SWEEP_SEED.
Runs go through one condition after the other, and in each through grpo's cell, then one algorithm after the other, so
that a cell is whole before the next begins. A run that has its row is not run again. One that a check stopped is a row
with the reason; one that crashed is a row with the error, and is tried again the next time.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import subprocess
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import groupwise
from groupwise.algorithms.catalog import CATALOG
from groupwise.algorithms.parts.filters import DropUniform
from groupwise.commands.train.run import evaluations_of
from groupwise.core.errors import RunError, UsageError
from groupwise.core.files import jsonl
from groupwise.health.watch import Watch
from groupwise.journal.journal import read_metrics
from stress_board import BASELINE, Board, Row, area, page, table

Settings = Mapping[str, object]

STEPS, SEEDS, SWEEP_SEED = 12, (0, 1, 2, 3, 4), 100
RATES = (3e-4, 1e-3, 3e-3)
TEACHER_STEPS = 40
#: What every run has, laid over its recipe.
COMMON: Settings = {
    "steps": STEPS,
    "prompts_per_step": 16,
    "samples_per_prompt": 8,
    "updates_per_batch": 1,
    "passes_per_batch": 1,
    "threads": 1,
    "warm_start.steps": 300,
    "sampling.max_new_tokens": 24,
    "evaluation.problems": 256,
    "evaluation.samples": 1,
    "evaluation.every": 3,
    "checkpoint.every": 1000,
    "journal.report": False,
    "journal.token_budget": 0,
    "checks.witness": "off",
    "checks.probe_every": 1000,
}
#: Answers of some sixty tokens whose length is the policy's own choice: the recipe chain's task, of fewer steps.
CHAIN: Settings = {
    "model": "tiny-long",
    "task.name": "chain",
    "task.operations": [5, 9],
    "warm_start.batch_size": 16,
    "warm_start.demonstrations": 7500,
    "sampling.max_new_tokens": 112,
}
#: Sums of six terms, for a policy that has learned those of three and four: one completion in ten is right.
HARD: Settings = {"task.operands": [6, 6], "sampling.max_new_tokens": 48}
#: What a teacher does not share with its pupils.
LATE = ("updates_per_batch", "rollout.", "engine.")
USED_AGAIN: Settings = {"updates_per_batch": 4}


@dataclass(frozen=True)
class Condition:
    """What is laid over COMMON.

    words   for sentences
    like    the condition that it differs from in one thing
    base    whether runs start from the policy that the quickstart's task has warm-started, for a task of its own
    """

    words: str
    settings: Settings
    recipe: str = "quickstart"
    like: str = "on-policy"
    base: bool = False

    @property
    def task(self) -> Settings:
        """What a teacher shares with its pupils: all but how often and how late a batch is used."""
        return {
            key: value for key, value in self.settings.items() if key.startswith(("task.", "warm_start.", "sampling."))
        }

    @property
    def digest(self) -> str:
        """Tells a condition from the same one before it was changed."""
        told = [dict(COMMON), dict(self.settings), self.recipe, self.base, RATES, SWEEP_SEED, TEACHER_STEPS]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:12]


#: In the order in which they are run.
CONDITIONS: Mapping[str, Condition] = {
    "on-policy": Condition("On policy (1 update a batch)", {}, like=""),
    "16-updates": Condition("16 updates a batch", {"updates_per_batch": 16}),
    "free-4": Condition("Free, at most 4 versions late", {"rollout.free": 4}),
    "4-updates": Condition("4 updates a batch", USED_AGAIN),
    "one-behind": Condition("One step behind", {"rollout.ahead": 1}),
    "bf16-engine": Condition("Engine in bf16", {"engine.precision": "bf16"}),
    "sparse": Condition("Sparse reward", {**USED_AGAIN, **HARD}, like="", base=True),
    "experts": Condition("Experts", USED_AGAIN, "quickstart-moe", like=""),
    "long": Condition("Long answers", {**USED_AGAIN, **CHAIN}, like=""),
}


@dataclass(frozen=True)
class Job:
    """One run that is wanted; `sweep` is one of those that the rate is picked from."""

    algorithm: str
    condition: str
    seed: int
    rate: float
    sweep: bool

    @property
    def key(self) -> Row:
        """What tells its row. A seed's rate is whatever was picked: a board has one row for each seed."""
        own = {"algorithm": self.algorithm, "condition": self.condition, "digest": CONDITIONS[self.condition].digest}
        return {**own, "seed": self.seed, "rate": self.rate, "sweep": self.sweep}


def current(rows: Sequence[Row]) -> list[Row]:
    """The rows of conditions as they are now."""
    return [r for r in rows if r["condition"] in CONDITIONS and r["digest"] == CONDITIONS[r["condition"]].digest]


def picked(rows: Sequence[Row]) -> float | None:
    """The rate that the sweep of a cell picks; None while it is not whole, or where nothing could be trained."""
    areas = {r["rate"]: area(r, STEPS) for r in rows if r["sweep"] and r.get("heldout")}
    return max(sorted(areas), key=lambda rate: areas[rate]) if len(areas) == len(RATES) else None


def wanted(rows: Sequence[Row], conditions: Sequence[str], algorithms: Sequence[str]) -> Iterator[Job]:
    """Runs without a row, in order: condition by condition, the baseline's cell first, its sweep before its seeds."""
    known = {tuple(r[name] for name in ("algorithm", "condition", "seed", "rate")) for r in rows if not r.get("error")}
    for condition in conditions:
        for algorithm in sorted(algorithms, key=lambda name: name != BASELINE):
            cell = [r for r in rows if (r["algorithm"], r["condition"]) == (algorithm, condition)]
            if any(r.get("refused") for r in cell):
                continue
            rate = picked(cell)
            jobs = [Job(algorithm, condition, SWEEP_SEED, each, True) for each in RATES]
            jobs += [Job(algorithm, condition, seed, rate, False) for seed in SEEDS if rate is not None]
            yield from (j for j in jobs if (j.algorithm, j.condition, j.seed, j.rate) not in known)


def keys(job: Job, runs: Path) -> dict[str, object]:
    """The settings of a run, but for where it starts and whom it learns from."""
    laid = {**COMMON, **CONDITIONS[job.condition].settings, "algorithm.name": job.algorithm, "seed": job.seed}
    if isinstance(CATALOG[job.algorithm].filter, DropUniform):
        laid["algorithm.filter.max_rounds"] = 1
    return {**laid, "learner.learning_rate": job.rate, "runs": str(runs)}


def one(job: Job, runs: Path) -> Row:
    """Train, in this process -> the row. The folder of a run that ended by itself is put away."""
    condition, began, cpu = CONDITIONS[job.condition], time.time(), time.process_time()
    folder = runs / f"{job.condition}-{condition.digest}-{job.algorithm}-{job.seed}-{job.rate:g}"
    shutil.rmtree(folder, ignore_errors=True)
    ended: dict[str, Any] = {"stopped": ""}
    try:
        laid = {**keys(job, runs), "name": folder.name}
        if condition.base:
            laid |= {"start": str(start(job.seed, runs)), "warm_start.steps": 0}
        if job.algorithm == "opd":
            laid["reference.model"] = str(teacher(condition, runs))
        to_its_end(condition.recipe, laid)
    except UsageError as error:
        ended["refused"] = str(error)
    except RunError as error:
        ended["stopped"] = str(error).partition(" Saved: ")[0].replace(str(runs), "runs")
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
        ended["error"] = f"{type(error).__name__}: {str(error)[:300]} ({where})"
    spent = {"cpu_seconds": round(time.process_time() - cpu, 2), "seconds": round(time.time() - began, 2)}
    row = {**job.key, **(told(folder) if (folder / "metrics.jsonl").exists() else {}), **ended, **spent}
    if not ended.get("error"):
        shutil.rmtree(folder, ignore_errors=True)
    return row


def to_its_end(recipe: str, laid: Settings) -> None:
    """Train. One that a person asked to stop is no row: the board ends with it, and makes the run again."""
    if not groupwise.train(recipe, laid, quiet=True).finished:
        raise KeyboardInterrupt


def told(folder: Path) -> Row:
    """What a run folder says: held-out rates by step, and the step at which each early warning first began."""
    watch, first = Watch({}, True), dict[str, int]()
    for row in read_metrics(folder):
        if "evaluation" not in row:
            watch(row)
            for finding in watch.begun():
                first.setdefault(finding.name, row["step"])
    heldout = [[step, round(found["avg_at_k"], 5)] for step, found in sorted(evaluations_of(folder).items())]
    return {"heldout": heldout, "warned": first}


def trained(recipe: str, laid: Settings, folder: Path) -> Path:
    """A run that others build on, made where it is not there, by one process."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:  # closing releases it
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "summary.json").exists():
            shutil.rmtree(folder, ignore_errors=True)
            own = {"name": folder.name, "runs": str(folder.parent), "evaluation.every": 0}
            to_its_end(recipe, {**COMMON, **laid, **own})
    return folder


def start(seed: int, runs: Path) -> Path:
    """The run whose policy the quickstart's warm start has made for a seed, which nothing has trained."""
    laid = {"seed": seed, "steps": 1, "learner.learning_rate": 0.0, "evaluation.problems": 1}
    return trained("quickstart", laid, runs / f"start-{digest(COMMON)}-{seed}")


def teacher(condition: Condition, runs: Path) -> Path:
    """The run that opd's pupils of a task learn from."""
    own = {**condition.task, "steps": TEACHER_STEPS, "learner.learning_rate": 1e-3, "seed": SWEEP_SEED}
    folder = runs / f"teacher-{condition.recipe}-{digest({**COMMON, **own})}"
    if condition.base:
        own |= {"start": str(start(SWEEP_SEED, runs)), "warm_start.steps": 0}
    return trained(condition.recipe, own, folder)


def digest(settings: Settings) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def board(rows: Sequence[Row]) -> Board:
    words = {name: condition.words for name, condition in CONDITIONS.items()}
    like = {name: condition.like for name, condition in CONDITIONS.items() if condition.like}
    return Board(current(rows), words, tuple(CATALOG), SEEDS, STEPS, like)


def run(
    file: Path,
    conditions: Sequence[str],
    algorithms: Sequence[str],
    runs: Path,
    pool: Executor,
    at_once: int,
    until: float,
) -> None:
    """Append a row for each run that has none, so many at once, and begin none after a time; print each."""
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    made = {"commit": done.stdout.strip(), "torch": torch.__version__}
    rows, tried, going = list(jsonl.rows(file)) if file.exists() else [], set[Job](), set[Future[Row]]()
    while True:
        left = (job for job in wanted(current(rows), conditions, algorithms) if job not in tried)
        while len(going) < at_once and time.time() < until and (job := next(left, None)):
            tried.add(job)
            going.add(pool.submit(one, job, runs))
        if not going:
            return
        ended, going = wait(going, return_when=FIRST_COMPLETED)
        for future in ended:
            rows.append({**future.result(), **made})
            with file.open("a") as out:
                out.write(json.dumps(rows[-1]) + "\n")
            print(line(rows[-1]), flush=True)


def line(row: Row) -> str:
    """A row in a line."""
    what = f"{row['condition']} {row['algorithm']} seed {row['seed']} rate {row['rate']:g}"
    rates = " ".join(f"{rate:.2f}" for _, rate in row.get("heldout", ()))
    why = " ".join(f"{name}: {row[name]}" for name in ("refused", "stopped", "error") if row.get(name))
    return f"{what}, {row['cpu_seconds']:.1f} s of CPU, {row['seconds']:.1f} s: {rates} {why}"


def main(
    file: Annotated[Path, typer.Argument(help="Rows.")] = Path("docs/evidence/stress.jsonl"),
    only: Annotated[str, typer.Option(help="Conditions, with a , between them; all without it.")] = "",
    algorithms: Annotated[str, typer.Option(help="Algorithms, with a , between them; all without it.")] = "",
    at_once: Annotated[int, typer.Option(min=1, help="Runs side by side, each in one thread.")] = 1,
    minutes: Annotated[float, typer.Option(help="Begin no run after so many minutes.")] = float("inf"),
    only_table: Annotated[bool, typer.Option("--table", help="Run nothing; print the tables.")] = False,
    write: Annotated[Path | None, typer.Option("--page", help="Run nothing; write this page.")] = None,
    runs: Path = Path("runs/stress"),
) -> None:
    """Run what has no row yet; then print the tables."""
    for given, known in ((only, CONDITIONS), (algorithms, CATALOG)):
        if unknown := [name for name in given.split(",") if name and name not in known]:
            raise typer.BadParameter(f"{', '.join(unknown)}: not known; there are {', '.join(known)}")
    if not only_table and write is None:
        cells = only.split(",") if only else [*CONDITIONS], algorithms.split(",") if algorithms else [*CATALOG]
        with ProcessPoolExecutor(at_once, get_context("spawn")) as pool:
            run(file, *cells, runs, pool, at_once, time.time() + 60 * minutes)
    made = board(list(jsonl.rows(file)) if file.exists() else [])
    if write is not None:
        write.write_text(page(write.read_text(encoding="utf-8"), made), encoding="utf-8")
        return
    for condition in (name for name in CONDITIONS if any(row["condition"] == name for row in made.rows)):
        print("\n".join([*table(made, condition), "", *made.sentences(condition), ""]))


if __name__ == "__main__":
    typer.run(main)
