"""What routes cost a training step: python benchmarks/replay.py [STEPS]

The run of recipes/quickstart-moe.toml, built as `groupwise train` builds it, in four ways: routes not recorded at all
(the engine returns none, the learner knows of no router), recorded, and replayed from the learner or from the engine.
At each of STEPS steps (30 unless told), after three that are not measured, every way makes the whole step from its own
copy of one state: the same weights, optimizer and prompts, so the same completions. They take turns, in an order that
rotates; afterwards all go on from the state of the first. Milliseconds are the step's own, as metrics.jsonl has them,
medians; a ratio is that of the two steps of one round, median and quartiles. The metrics of routes are part of "update"
and "journal". The fastest step of each way is what other work on the machine disturbs least.

Bytes are those that a column's tensors hold for a token of the batch, prompt included; in brackets the memory that they
keep alive, which is larger where a tensor is a part of a padded one. The peak is the largest sum of torch's own
allocations on the CPU alive at once in an unmeasured step, above what was there before it, by torch's profiler.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import transformers
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from groupwise import loop
from groupwise.commands.build.build import build
from groupwise.config import recipe
from groupwise.config.resolve import resolve
from groupwise.core.machine.clock import Clock
from groupwise.core.machine.terminal import Terminal
from groupwise.core.processes.stop import Stop
from groupwise.core.records import Batch
from groupwise.diagnostics import step as diagnostics
from groupwise.diagnostics.routing import RoutingLog
from groupwise.journal.journal import Journal
from groupwise.journal.terminal import View
from groupwise.training.run import Training

RECIPE = "quickstart-moe"
UNMEASURED = 3
#: Where a run from this folder looks for its warm-started policy; without one it is made first.
CACHE = Path("runs/.cache")
PHASES = ("generate", "annotate", "update", "load weights", "check", "journal")
ROUTES = ("routes", "routes_own", "routes_engine")


@dataclass
class Way:
    """One way to make a step: its run, and of each measured step the seconds by phase.

    log     seconds of each step that went into the metrics of routes, part of "update" and "journal"
    batch   the batch of an unmeasured step, with every column
    peak    bytes
    """

    name: str
    run: Training
    seconds: list[dict[str, float]] = field(default_factory=list)
    log: list[float] = field(default_factory=list)
    batch: Batch | None = None
    peak: int = 0

    @property
    def whole(self) -> list[float]:
        """Seconds of each step."""
        return [sum(phases.values()) for phases in self.seconds]


def main(steps: int) -> None:
    """Print the three tables."""
    print(f"{platform.machine()}, {torch.get_num_threads()} threads; Python {platform.python_version()}, ", end="")
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    print(f"command: python {' '.join(sys.argv)}")
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / CACHE.name).symlink_to(CACHE.resolve())
        ways = [
            way(
                "not recorded",
                Path(folder),
                steps,
                mock.patch("groupwise.commands.build.build.routers_to_record", return_value=()),
            ),
            way("recorded", Path(folder), steps),
            way("replay learner", Path(folder), steps, replay="learner"),
            way("replay engine", Path(folder), steps, replay="engine"),
        ]
        for number in range(1, UNMEASURED + steps + 1):
            turn = number % len(ways)
            rows = [step(way, number) for way in ways[turn:] + ways[:turn]]
            assert len({(row["pass_rate"], row["length_mean"]) for row in rows}) == 1, "the ways had other completions"
            for other in ways[1:]:
                adopt(other.run, ways[0].run)
        seconds_table(ways)
        bytes_table(ways)
        peak_table(ways)


def way(
    name: str, folder: Path, steps: int, around: AbstractContextManager[Any] | None = None, replay: str = "none"
) -> Way:
    """A run at step 0, built inside `around`."""
    asked = {"runs": str(folder), "name": name.replace(" ", "-"), "steps": UNMEASURED + steps, "routing.replay": replay}
    plan = resolve(recipe.load(RECIPE, asked))
    book = Journal.create(plan.folder, "")
    with around or nullcontext():
        return Way(name, build(plan, book, View(plan.recipe.steps, Terminal(quiet=True)), Stop()))


def step(way: Way, number: int) -> dict[str, Any]:
    """One step of its run; the last unmeasured one is watched instead of timed, and those before warm up."""
    spent: list[float] = []
    way.run.progress.step = number
    with mock.patch.object(diagnostics, "RoutingLog", timed(RoutingLog, spent)):
        if number == UNMEASURED:
            return watched(way)
        way.run.clock = Clock()
        row, _ = loop.train_step(way.run)
    if number > UNMEASURED:
        way.seconds.append(row["seconds"])
        way.log.append(sum(spent))
    return row


def watched(way: Way) -> dict[str, Any]:
    """A step that leaves its batch and its peak of memory."""
    with (
        mock.patch.object(loop, "StepLog", wraps=loop.StepLog) as log,
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as told,
    ):
        row, _ = loop.train_step(way.run)
    way.batch = log.call_args.args[0]
    events = [e for e in told.profiler.kineto_results.events() if e.name() == "[memory]"]  # type: ignore[union-attr]
    events.sort(key=lambda event: event.start_ns())
    way.peak = max(itertools.accumulate(event.nbytes() for event in events))  # type: ignore[attr-defined]
    return row


def adopt(run: Training, leader: Training) -> None:
    """Go on from the leader's state."""
    mine, theirs = run.components, leader.components
    mine.learner.model.load_state_dict(theirs.learner.model.state_dict())
    mine.learner.optimizer.adamw.load_state_dict(copy.deepcopy(theirs.learner.optimizer.adamw.state_dict()))
    mine.engine.load_weights(mine.learner.weights(), version=leader.progress.step)
    mine.rollout.state = theirs.rollout.state


def timed(kind: type[RoutingLog], spent: list[float]) -> type[RoutingLog]:
    """The class, its methods telling their seconds."""

    def telling(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*args: Any) -> Any:
            start = time.perf_counter()
            try:
                return method(*args)
            finally:
                spent.append(time.perf_counter() - start)

        return call

    return type(kind.__name__, (kind,), {name: telling(getattr(kind, name)) for name in ("update", "metrics")})


def seconds_table(ways: Sequence[Way]) -> None:
    """Milliseconds of each phase and of the step, and what it is of the first way's."""
    print(f"\n| milliseconds | {' | '.join(PHASES)} | metrics of routes | step | ratio (quartiles) | fastest step |")
    print("|---" * (len(PHASES) + 5) + "|")
    for way in ways:
        phases = [[seconds.get(phase, 0.0) for seconds in way.seconds] for phase in PHASES]
        told = [f"{1000 * statistics.median(column):.0f}" for column in [*phases, way.log, way.whole]]
        print(f"| {way.name} | {' | '.join(told)} | {ratio(way.whole, ways[0].whole)} | {1000 * min(way.whole):.0f} |")
    generate = [[seconds["generate"] for seconds in way.seconds] for way in ways]
    print(f"\nGeneration with routes returned, of that without: {ratio(generate[1], generate[0])}")


def ratio(times: Sequence[float], others: Sequence[float]) -> str:
    """Of the pairs of one round: median and quartiles."""
    low, middle, high = statistics.quantiles((a / b for a, b in zip(times, others, strict=True)), n=4)
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def bytes_table(ways: Sequence[Way]) -> None:
    """Bytes for a token of the columns of routes, beside all others."""
    print(f"\n| bytes a token | {' | '.join(ROUTES)} | all other columns |\n{'|---' * (len(ROUTES) + 2)}|")
    for way in ways:
        assert way.batch is not None
        tokens = int(way.batch.length.sum())
        columns = {f.name: tensors(getattr(way.batch, f.name)) for f in dataclasses.fields(way.batch)}
        told = [held(columns.pop(name), tokens) for name in ROUTES]
        print(f"| {way.name} | {' | '.join(told)} | {held(list(itertools.chain(*columns.values())), tokens)} |")


def tensors(column: object) -> list[Tensor]:
    """All of a column's."""
    if isinstance(column, Tensor):
        return [column]
    return [t for t in column if isinstance(t, Tensor)] if isinstance(column, Iterable) else []


def held(column: Sequence[Tensor], tokens: int) -> str:
    """Bytes of the tensors, and of the memory that they keep."""
    if not column:
        return "-"
    kept = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in column}
    return f"{sum(t.nbytes for t in column) / tokens:.1f} ({sum(kept.values()) / tokens:.1f})"


def peak_table(ways: Sequence[Way]) -> None:
    """The peak of memory of a step."""
    print("\n| way | peak of a step, MiB | of the first |\n|---|---|---|")
    for way in ways:
        print(f"| {way.name} | {way.peak / 2**20:.1f} | {way.peak / ways[0].peak:.3f} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 30)
