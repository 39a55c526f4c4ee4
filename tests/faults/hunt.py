"""Mutants by the hundred: drawn, run, judged, counted; one of each failure kept, as small as was cheap to find."""

from __future__ import annotations

import pickle
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import hypothesis
from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st

from tests.faults import data, lines, models, oracle, recipes, runs, wire
from tests.faults.forked import Limits, Outcome, command, run
from tests.faults.ground import Ground
from tests.faults.mutant import Mutant
from tests.faults.oracle import Verdict, judge, snapshot

KINDS: dict[str, Callable[[Ground], st.SearchStrategy[Mutant]]] = {
    "recipe": recipes.recipe,
    "line": lines.line,
    "data": data.data,
    "run": runs.run_folder,
    "model": models.model,
    "tokenizer": models.tokenizer,
    "index": models.index,
    "parquet": data.parquet,
    "answer": wire.answer,
    "frame": wire.frame,
}


@dataclass(frozen=True)
class Result:
    mutant: Mutant
    outcome: Outcome
    verdict: Verdict

    @property
    def failure(self) -> str:
        """What failures are told apart by; "" where there is none."""
        if not self.verdict.faults:
            return ""
        kind, _, details = self.verdict.faults[0].partition(": ")
        return f"{kind}: {details.rpartition(' at ')[2]}" if kind == "traceback" else f"{kind}: {self.mutant.what}"


@dataclass
class Tally:
    mutants: int = 0
    refused: int = 0
    accepted: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    largest: int = 0
    failures: dict[str, tuple[int, Result]] = field(default_factory=dict)

    def count(self, result: Result) -> None:
        self.mutants += 1
        self.accepted += result.verdict.accepted
        self.refused += not result.verdict.accepted
        self.faults.update(set(result.verdict.kinds))
        self.slowest = max(self.slowest, result.outcome.seconds)
        self.largest = max(self.largest, result.outcome.grown)
        if result.failure:
            count, first = self.failures.get(result.failure, (0, result))
            self.failures[result.failure] = (count + 1, first)

    def add(self, other: Tally) -> None:
        for name in ("mutants", "refused", "accepted"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.faults += other.faults
        self.slowest, self.largest = max(self.slowest, other.slowest), max(self.largest, other.largest)
        for failure, (count, first) in other.failures.items():
            before, known = self.failures.get(failure, (0, first))
            self.failures[failure] = (before + count, known)

    def line(self, kind: str) -> str:
        counts = [self.mutants, self.refused, self.accepted, *(self.faults[name] for name in oracle.KINDS)]
        return (
            f"{kind:<8}" + "".join(f"{n:>11,}" for n in counts) + f"{self.slowest:>9.1f} s{self.largest >> 20:>7,} MiB"
        )


def heading() -> str:
    names = ["mutants", "refused", "accepted", *oracle.KINDS]
    return " " * 8 + "".join(f"{name:>11}" for name in names) + f"{'slowest':>11}{'largest':>11}"


def tried(mutant: Mutant, ground: Ground, limits: Limits) -> Result:
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        box = Path(folder) / "outer" / "inner" / "box"
        ground.copy(mutant.kind, box)
        return in_box(mutant, box, ground, limits)


def in_box(
    mutant: Mutant, box: Path, ground: Ground, limits: Limits = Limits(), entry: Callable[[], object] | None = None
) -> Result:
    """The mutant's command in a box that was copied for it, judged; `entry` is what runs in place of groupwise."""
    mutant.lay(box)
    limits = limits if mutant.disk is None else replace(limits, file=mutant.disk)
    entry = entry or (command if mutant.wire is None else partial(wire.act, mutant.wire))
    before, beside = snapshot(box), _beside(box)
    outcome = run(mutant.words, box, limits, entry)
    try:
        verdict = judge(mutant, outcome, box, before, ground, limits)
    except Exception as error:  # one mutant that it did not foresee must not end thousands of others
        verdict = Verdict((f"judge: {type(error).__name__}: {error}",), outcome.code == 0)
    if _beside(box) != beside:
        verdict = replace(verdict, faults=(*verdict.faults, "outside: beside the box"))
    return Result(mutant, outcome, verdict)


def _beside(box: Path) -> list[str]:
    return sorted(str(path) for folder in box.parents[:2] for path in folder.iterdir())


class Piece(NamedTuple):
    """Work: `count` different mutants of a kind, the same ones for the same seed."""

    kind: str
    seed: int
    count: int

    def draw(self, ground: Ground, each: Callable[[Mutant], None], phases: Sequence[Phase]) -> None:
        """Hand each mutant that hypothesis draws to `each`; more than are wanted, for some come twice."""
        settings = hypothesis.settings(
            max_examples=2 * self.count,
            database=None,
            deadline=None,
            phases=phases,
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        )
        hypothesis.seed(self.seed)(settings(given(KINDS[self.kind](ground))(each)))()


def hunt(piece: Piece, ground: Ground, limits: Limits = Limits(), shrink: float = 0.0) -> Tally:
    """What becomes of the mutants of a piece; `shrink` seconds for each failure."""
    tally, results = Tally(), {}

    def one(mutant: Mutant) -> None:
        if len(results) < piece.count and mutant.key not in results:
            results[mutant.key] = tried(mutant, ground, limits)
            tally.count(results[mutant.key])

    piece.draw(ground, one, [Phase.generate])
    for failure, (number, first) in list(tally.failures.items()) if shrink else []:
        tally.failures[failure] = (number, _smaller(piece, ground, limits, first, results, shrink))
    return tally


def _smaller(
    piece: Piece, ground: Ground, limits: Limits, first: Result, known: dict[str, Result], seconds: float
) -> Result:
    """The smallest mutant with that failure that hypothesis comes to in so many seconds; none is run twice."""
    until, best = time.monotonic() + seconds, first

    def again(mutant: Mutant) -> None:
        nonlocal best
        if mutant.key not in known and time.monotonic() < until:
            known[mutant.key] = tried(mutant, ground, limits)
        result = known.get(mutant.key)
        if result is not None and result.failure == first.failure:
            best = min(best, result, key=lambda r: len(repr(r.mutant)))
            raise AssertionError(first.failure)

    with suppress(Exception):  # the failure itself
        piece.draw(ground, again, [Phase.generate, Phase.shrink])
    return best


def keep(result: Result, folder: Path, ground: Ground) -> None:
    """Everything that is needed to repeat a failure: the box, the mutant, what was said."""
    shutil.rmtree(folder, ignore_errors=True)
    ground.copy(result.mutant.kind, folder / "box")
    result.mutant.lay(folder / "box")
    (folder / "result.pickle").write_bytes(pickle.dumps(result))
    said = f"stdout:\n{result.outcome.out}\nstderr:\n{result.outcome.err}"
    words = " ".join(map(repr, result.mutant.words))
    faults = "\n".join(result.verdict.faults)
    text = f"groupwise {words}\nexpects {result.mutant.expects}\n{faults}\nexit code {result.outcome.code}\n{said}"
    (folder / "said.txt").write_text(text, errors="backslashreplace")


def pieces(count: int, kinds: Sequence[str], seed: int, size: int = 250) -> list[Piece]:
    seeds = random.Random(seed)
    shares = {kind: count // len(kinds) + (i < count % len(kinds)) for i, kind in enumerate(kinds)}
    starts = range(0, max(shares.values()), size)
    rest = [(kind, min(size, share - start)) for start in starts for kind, share in shares.items() if share > start]
    return [Piece(kind, seeds.getrandbits(32), share) for kind, share in rest]
