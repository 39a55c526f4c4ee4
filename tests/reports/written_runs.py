"""A run folder that is written as a run writes it, piece by piece, for the tests of who looks on."""

from __future__ import annotations

import fcntl
import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from groupwise.reports.folder.read import LOCK, MACHINE, METRICS, RECIPE, ROLLOUTS, SUMMARY
from groupwise.reports.page.plots import static_columns

RECIPE_TEXT = 'steps = {steps}\nmodel = "tiny"\n[task]\nname = "sums"\n[algorithm]\nname = "grpo"\n'
GROUPS, SAMPLES = 3, 4
MEASURED = sorted(name for name in static_columns() if "*" not in name and "." not in name)
CHECKS = ("live = old on the first update", "learner = engine", "weights reach their declared total")

#: What is appended to which file, in the order in which a run does it.
Piece = tuple[str, bytes]


def line(row: dict[str, Any]) -> bytes:
    return json.dumps(row).encode() + b"\n"


def rollouts_of(step: int, chance: random.Random) -> Iterator[Piece]:
    for group in range(GROUPS):
        for _ in range(SAMPLES):
            told = {"fate": "trained", "key": f"{step}-{group}", "prompt": f"{step}+{group}=", "answer": "7"}
            said = {"completion": "7" * chance.randint(1, 9), "score": chance.choice([0.0, 1.0]), "tokens": 2}
            yield ROLLOUTS, line({"step": step, "group": group, **told, **said})


def row_of(step: int, chance: random.Random) -> dict[str, Any]:
    """A row with gaps, and with columns that come late: one at 0 for long, one only from step 5 on."""
    told: dict[str, Any] = {name: chance.choice([None, 0.0, chance.random()]) for name in MEASURED[:12]}
    late = {"clip_late": 1.0, "sources.sums.pass_rate": 0.5} if step >= 5 else {}
    trouble = {"rows_unscored_share": 0.25 if step == 7 else 0.0, "groups_fallback": 0}
    verdict = "fail" if step == 6 else "pass"
    checks = {CHECKS[0]: {"verdict": verdict, "value": chance.random(), "limit": 1e-5}}
    return {
        "step": step,
        "pass_rate": chance.random(),
        **told,
        **late,
        **trouble,
        "checks": checks,
        "seconds": {"a": 1.0},
    }


def journal(steps: int, chance: random.Random) -> Iterator[Piece]:
    for step in range(1, steps + 1):
        yield from rollouts_of(step, chance)
        yield METRICS, line(row_of(step, chance))
        yield MACHINE, line({"step": step, "memory_peak_mib": 10 + step})
        if step % 3 == 0:
            sources = {"by_source": {"sums": {"avg_at_k": 0.5}}} if step > 3 else {}
            held = {"avg_at_k": chance.random(), "problems": 9, "samples": 2, **sources}
            yield METRICS, line({"step": step, "evaluation": held, "seconds": {"evaluate": 0.5}})


def cut(pieces: Sequence[Piece], count: int, chance: random.Random) -> list[list[Piece]]:
    """The same bytes in `count` parts, cut anywhere: between files, between lines, in the middle of a number."""
    bounds = sorted(chance.sample(range(1, sum(len(data) for _, data in pieces)), count - 1))
    parts: list[list[Piece]] = [[]]
    at = 0
    for name, data in pieces:
        inside = [bound - at for bound in bounds if at < bound <= at + len(data)]
        for i, (start, end) in enumerate(zip([0, *inside], [*inside, len(data)], strict=True)):
            parts += [[]] if i else []
            parts[-1].append((name, data[start:end]))
        at += len(data)
    return parts


class Written:
    """A run folder that is being written: `put` appends, `finish` ends it."""

    def __init__(self, folder: Path, steps: int) -> None:
        self.folder, self.steps = folder, steps
        folder.mkdir()
        (folder / RECIPE).write_text(RECIPE_TEXT.format(steps=steps))
        self._lock = (folder / LOCK).open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def put(self, pieces: Sequence[Piece]) -> None:
        for name, data in pieces:
            with (self.folder / name).open("ab") as file:
                file.write(data)

    def finish(self) -> None:
        (self.folder / SUMMARY).write_text(json.dumps({"steps": self.steps, "seconds_total": 3.0}))
        self.let_go()

    def let_go(self) -> None:
        self._lock.close()


@contextmanager
def being_written(folder: Path, steps: int) -> Iterator[Written]:
    run = Written(folder, steps)
    try:
        yield run
    finally:
        run.let_go()
