"""Provoked collapses and sound runs: how early each warning comes, how often it is wrong, what going back gains.

    python benchmarks/collapse.py docs/evidence/collapse.jsonl --at-once 2
    python benchmarks/collapse.py docs/evidence/collapse.jsonl --at-once 2 --rollback

Every run begins with the policy that the quickstart begins with for its seed, and trains in one thread. A run that has
its row is not run again, so the experiment can be stopped and gone on with at any time; a kind whose settings have
changed counts as another one. The rows hold what the warnings read, so the tables are those of today's thresholds
without another run. Then the tables of docs/collapse.md are printed.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import statistics
import subprocess
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import typer

from groupwise.core.statistics import paired
from groupwise.health.watch import EARLY, Watch
from groupwise.journal.journal import read_metrics
from sweep import finished

Row = dict[str, Any]
Settings = Mapping[str, object]

#: A collapse: a held-out pass rate this much below the run's own best so far, as a share of that.
FIFTH = 0.2
#: Warnings that a run's guard acts on.
WARNINGS = tuple(symptom.name for symptom in EARLY)
#: Columns of metrics.jsonl that these read, and that a row keeps, a number for each step.
CURVES = (
    "pass_rate",
    "entropy_mean",
    "ratio_token_p01",
    "ratio_token_p99",
    "effective_sample_share",
    "log_ratio_variance",
    "log_ratio_clamped_tokens",
    "engine_probability_error",
    "engine_effective_sample_share",
    "gradient_norm",
    "gradient_norm_max",
    "kl_mean",
    "share_passed",
)

#: What every run has: small batches, and an evaluation every fifth step.
COMMON: Settings = {
    "steps": 60,
    "prompts_per_step": 32,
    "samples_per_prompt": 8,
    "threads": 1,
    "evaluation.problems": 256,
    "evaluation.samples": 1,
    "evaluation.every": 5,
    "checkpoint.every": 5,
    "checkpoint.keep": 3,
    "journal.report": False,
    "journal.token_budget": 0,
}
#: The run that a run's policy comes from: the quickstart's warm start, which nothing has trained.
BASE: Settings = {**COMMON, "steps": 1, "learner.learning_rate": 0.0, "evaluation.problems": 1}


def weights_late(loads: int) -> AbstractContextManager[Any]:
    """Each load brings the weights of so many loads before, and no check ends the run for it.

    The checks of a run name this fault in its second step (docs/checks.md); here the warnings are on their own.
    """
    from groupwise import loop
    from groupwise.engines.local.engine import LocalEngine

    real, waiting = LocalEngine.load_weights, deque()

    def load_weights(self: Any, weights: Any, version: int) -> None:
        waiting.append({name: tensor.detach().clone() for name, tensor in weights})
        late = waiting.popleft() if len(waiting) > loads else dict(self._model.named_parameters())
        real(self, list(late.items()), version)

    stack = ExitStack()
    stack.enter_context(mock.patch.object(LocalEngine, "load_weights", load_weights))
    stack.enter_context(mock.patch.object(loop, "require_passed", return_value=None))
    return stack


@dataclass(frozen=True)
class Kind:
    """Runs of one condition: what it lays over the quickstart, and by how many loads the engine's weights are late."""

    settings: Settings
    late: int = 0

    @property
    def digest(self) -> str:
        """Tells a condition from the same one before it was changed."""
        text = json.dumps([dict(COMMON), dict(self.settings), self.late], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


#: Conditions were chosen on seed 100, which is none of those below.
COLLAPSES: Mapping[str, Kind] = {
    "learning rate": Kind({"learner.learning_rate": 1e-2}),
    "no trust region": Kind({"algorithm.trust.kind": "none", "updates_per_batch": 8}),
    "stale engine": Kind({"learner.learning_rate": 3e-3}, late=8),
    "many updates": Kind({"passes_per_batch": 8, "updates_per_batch": 4}),
    "narrow data": Kind({"task.problems": 260, "task.heldout_share": 0.985}),
}
#: Sound runs: four algorithms at the quickstart's rate.
SOUND: Mapping[str, Kind] = {
    f"sound, {name}": Kind({"algorithm.name": name}) for name in ("grpo", "dapo", "rloo", "sapo")
}
KINDS: Mapping[str, Kind] = {**COLLAPSES, **SOUND}
#: Seeds of a kind that collapses; those of the sound ones come to twenty runs.
SEEDS, SOUND_SEEDS = range(10), range(5)


@dataclass(frozen=True)
class Job:
    """One run that is wanted."""

    kind: str
    seed: int
    guard: str

    @property
    def key(self) -> Row:
        return {"kind": self.kind, "digest": KINDS[self.kind].digest, "seed": self.seed, "guard": self.guard}


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

    kind, begun, stopped = KINDS[job.kind], time.monotonic(), ""
    folder = runs / "-".join(str(value).replace(" ", "-").replace(",", "") for value in job.key.values())
    shutil.rmtree(folder, ignore_errors=True)
    given = {"seed": job.seed, "name": folder.name, "runs": str(runs), "start": str(base(job.seed, runs))}
    with weights_late(kind.late) if kind.late else nullcontext():
        try:
            groupwise.train("quickstart", {**COMMON, **kind.settings, **given, "guard": job.guard})
        except RunError as error:
            stopped = str(error)
    rows = read_metrics(folder)
    row = {**job.key, **told(rows), "stopped": stopped.partition(" Saved: ")[0], "returns": returns(folder)}
    shutil.rmtree(folder)
    return {**row, "seconds": round(time.monotonic() - begun, 1), "commit": commit()}


def told(rows: Sequence[Row]) -> Row:
    """What a run's rows say: held-out pass rates by step, and the columns that warnings read."""
    steps = [row for row in rows if "evaluation" not in row]
    curves = {name: [short(row.get(name)) for row in steps] for name in CURVES}
    return {
        "heldout": [[row["step"], short(row["evaluation"]["avg_at_k"])] for row in rows if "evaluation" in row],
        "curves": {name: curve for name, curve in curves.items() if any(value is not None for value in curve)},
    }


def returns(folder: Path) -> list[Row]:
    """Each return of a run to a checkpoint."""
    return json.loads((folder / "about.json").read_text()).get("rolled_back", [])


def short(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else float(f"{value:.4g}")


def commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def lost_at(row: Row) -> int | None:
    """The step of the first evaluation that is FIFTH below the best before it; None where none is.

    A run that updates without a finite gradient have stopped has lost everything in the step after its last.
    """
    best = 0.0
    for step, rate in row["heldout"]:
        best = max(best, rate)
        if rate <= (1 - FIFTH) * best:
            return step
    return len(row["curves"]["pass_rate"]) + 1 if "not finite" in row["stopped"] else None


def warned(row: Row) -> dict[str, int]:
    """The step at which each early warning first began, by today's thresholds."""
    watch, first = Watch({}, True), {}
    for step, numbers in enumerate(zip(*row["curves"].values(), strict=True), start=1):
        watch({"step": step, **dict(zip(row["curves"], numbers, strict=True))})
        for finding in watch.begun():
            first.setdefault(finding.name, step)
    return first


def lead(row: Row, name: str = "") -> int | None:
    """Steps from a warning, or the first of all, to the loss; 0 or less is too late; None without either of the two."""
    at, lost = warned(row), lost_at(row)
    first = at.get(name) if name else min(at.values(), default=None)
    return None if lost is None or first is None else lost - first


def end(row: Row) -> float:
    return row["heldout"][-1][1]


def best(row: Row) -> float:
    return max(rate for _, rate in row["heldout"])


def at_stop(row: Row) -> float:
    """The last held-out rate up to the first warning: what guard = "stop" leaves, which changes nothing before."""
    first = min(warned(row).values(), default=math.inf)
    return [rate for step, rate in row["heldout"] if step <= first][-1]


def middle(values: Sequence[float], form: str = "g") -> str:
    """Median, and smallest to largest."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})" if values else ""


def kinds_table(rows: Sequence[Row]) -> Iterator[str]:
    """A line for each kind of collapse: how many were warned of before they lost a fifth, and by how many steps."""
    yield "| kind | runs | held out, best | at the end | lost a fifth | warned before | steps before | first warnings |"
    yield "|---|---|---|---|---|---|---|---|"
    for name in COLLAPSES:
        own = [row for row in rows if row["kind"] == name]
        lost = [row for row in own if lost_at(row) is not None]
        leads = [steps for row in lost if (steps := lead(row)) is not None and steps > 0]
        first = Counter(min(at, key=lambda one: at[one]) for row in lost if (at := warned(row)))
        words = ", ".join(f"{warning} {count}" for warning, count in first.most_common())
        rates = [middle([of(row) for row in own], ".2f") for of in (best, end)]
        yield (
            f"| {name} | {len(own)} | {rates[0]} | {rates[1]} | {len(lost)} | {len(leads)} of {len(lost)} | "
            f"{middle(leads)} | {words} |"
        )


def warnings_table(rows: Sequence[Row]) -> Iterator[str]:
    """A line for each warning: in how many collapses of each kind it came before the loss, and its false alarms."""
    sound = [row for row in rows if row["kind"] in SOUND and lost_at(row) is None]
    yield f"| warning | {' | '.join(COLLAPSES)} | steps before | false alarms in {len(sound)} sound runs |"
    yield "|---" * (len(COLLAPSES) + 3) + "|"
    for name in WARNINGS:
        leads = {kind: [lead(row, name) for row in rows if row["kind"] == kind] for kind in COLLAPSES}
        before = {kind: [steps for steps in own if steps is not None and steps > 0] for kind, own in leads.items()}
        every = [steps for own in before.values() for steps in own]
        alarms = sum(name in warned(row) for row in sound)
        yield f"| {name} | {' | '.join(str(len(own)) for own in before.values())} | {middle(every)} | {alarms} |"
    anything = sum(bool(warned(row)) for row in sound)
    counts = [sum((lead(row) or 0) > 0 for row in rows if row["kind"] == kind) for kind in COLLAPSES]
    yield f"| any of them | {' | '.join(map(str, counts))} | | {anything} |"


def returns_table(rows: Sequence[Row], back: Sequence[Row]) -> Iterator[str]:
    """A line for each kind: the end of runs that are only warned, of those that stop, and of those that go back."""
    yield "| kind | pairs | end, warned | end, stopped | end, gone back | gain, 95 % over seeds | returns | stopped |"
    yield "|---|---|---|---|---|---|---|---|"
    for name in KINDS:
        plain = {row["seed"]: row for row in rows if row["kind"] == name}
        other = {row["seed"]: row for row in back if row["kind"] == name and row["seed"] in plain}
        if not other:
            continue
        pairs = [(plain[seed], row) for seed, row in sorted(other.items())]
        ends = [middle([of(row) for row in own], ".2f") for of, own in _ends(pairs)]
        gain = paired({a["seed"]: end(a) for a, _ in pairs}, {b["seed"]: end(b) for _, b in pairs})
        mean = statistics.fmean(end(b) - end(a) for a, b in pairs)
        counts = Counter(len(row["returns"]) for _, row in pairs)
        words = ", ".join(f"{number}: {count}" for number, count in sorted(counts.items()))
        stops = sum(bool(row["stopped"]) for _, row in pairs)
        yield f"| {name} | {len(pairs)} | {' | '.join(ends)} | {mean:+.3f} ({gain or 'one pair'}) | {words} | {stops} |"


def _ends(pairs: Sequence[tuple[Row, Row]]) -> list[tuple[Callable[[Row], float], list[Row]]]:
    plain, back = [a for a, _ in pairs], [b for _, b in pairs]
    return [(end, plain), (at_stop, plain), (end, back)]


def current(file: Path, guard: str) -> list[Row]:
    """The rows of the conditions as they are now, in their order."""
    known = {(name, kind.digest): place for place, (name, kind) in enumerate(KINDS.items())}
    rows = [row for row in finished(file) if (row["kind"], row["digest"]) in known and row["guard"] == guard]
    return sorted(rows, key=lambda row: (known[row["kind"], row["digest"]], row["seed"]))


def tables(file: Path) -> Iterator[str]:
    rows, back = current(file, "warn"), current(file, "rollback")
    yield from kinds_table(rows)
    yield ""
    yield from warnings_table(rows)
    if back:
        yield ""
        yield from returns_table(rows, back)


def wanted(file: Path, guard: str, names: Sequence[str], seeds: Sequence[int]) -> list[Job]:
    """The runs that have no row, a seed of every kind before the next seed; the sound ones have SOUND_SEEDS."""
    there = [{key: row[key] for key in ("kind", "digest", "seed", "guard")} for row in finished(file)]
    every = [Job(name, seed, guard) for seed in seeds for name in names]
    inside = [job for job in every if job.kind in COLLAPSES or job.seed in SOUND_SEEDS or job.seed not in SEEDS]
    return [job for job in inside if job.key not in there]


def main(
    file: Path,
    seeds: Annotated[str, typer.Option(help="Such as 0,1,2; conditions were chosen on 100.")] = ",".join(
        map(str, SEEDS)
    ),
    only: Annotated[str, typer.Option(help="Kinds such as 'learning rate,sound, grpo'; all without it.")] = "",
    rollback: Annotated[
        bool, typer.Option("--rollback", help='Under guard = "rollback", to see what that gains.')
    ] = False,
    runs: Path = Path("runs/collapse"),
    at_once: Annotated[int, typer.Option(min=1, help="Runs side by side, each in one thread.")] = 1,
) -> None:
    """Run what has no row yet; then print the tables."""
    names = [name for name in KINDS if not only or name in only.split(";")]
    guard, numbers = "rollback" if rollback else "warn", [int(seed) for seed in seeds.split(",")]
    jobs = wanted(file, guard, names, numbers)
    for seed in sorted({job.seed for job in jobs}):
        base(seed, runs)
    with ProcessPoolExecutor(at_once, get_context("spawn"), max_tasks_per_child=1) as pool:
        for done in as_completed([pool.submit(one, job, runs) for job in jobs]):
            row = done.result()
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("a") as out:
                out.write(json.dumps(row) + "\n")
            rates = " ".join(f"{rate:.2f}" for _, rate in row["heldout"])
            print(f"{row['kind']}, seed {row['seed']}: lost at {lost_at(row)}, {warned(row)}: {rates}", flush=True)
    print("\n".join(tables(file)))


if __name__ == "__main__":
    typer.run(main)
