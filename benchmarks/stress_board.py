"""What the rows of benchmarks/stress.py say: intervals over seeds, differences from grpo, and sentences that follow.

All of it is a function of the rows. A cell is one algorithm under one condition. What is compared is the area under a
run's held-out curve, seed by seed: a seed has the same start, the same order of prompts and the same held-out problems
for every algorithm. Student's t on the paired differences assumes that these are normal over seeds, which five cannot
show; an exact permutation of five signs never comes below p = 0.0625, so that no correction could leave anything of it.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Any

import numpy as np

from groupwise.core.numbers.statistics import Interval, over_seeds, paired, standard_error

Row = Mapping[str, Any]

#: What the others are compared with.
BASELINE = "grpo"
#: Chance of naming any difference of a condition where there is none (Holm over its algorithms).
ALPHA = 0.05
#: A collapse: held-out rate this share and this much below the best before it; 0.1 is over three standard errors of a
#: rate of 256 problems, so that chance makes none where rates are small.
FALL, LEAST_FALL = 0.2, 0.1
#: Points at which Student's density is summed.
GRID = 20_001
#: Where the generated part of docs/which.md begins and ends.
BEGIN, END = "<!-- written by benchmarks/stress.py -->", "<!-- end of what benchmarks/stress.py writes -->"


def area(row: Row, steps: int) -> float:
    """Mean held-out rate over the steps, between evaluations along a straight line.

    A run that stopped keeps its last rate to the end: its last policy is what is left of it.

    >>> area({"heldout": [[0, 0.0], [4, 1.0]]}, 4), area({"heldout": [[0, 0.0], [2, 1.0]]}, 4)
    (0.5, 0.75)
    """
    points = [*row["heldout"], [steps, row["heldout"][-1][1]]]
    return sum((t - s) * (a + b) / 2 for (s, a), (t, b) in pairwise(points)) / steps


def end(row: Row) -> float:
    return row["heldout"][-1][1]


def lost_at(row: Row) -> int | None:
    """The first step that may have lost FALL of the best rate: that after the last evaluation that was sound.

    >>> lost_at({"heldout": [[0, 0.5], [2, 0.9], [4, 0.71]]}), lost_at({"heldout": [[0, 0.5], [2, 0.9], [4, 0.73]]})
    (3, None)
    """
    best, sound = 0.0, 0
    for step, rate in row["heldout"]:
        best = max(best, rate)
        if best - rate >= max(FALL * best, LEAST_FALL):
            return sound + 1
        sound = step
    return None


def warned_before(row: Row) -> bool:
    """Whether an early warning of collapse came at a step before the loss."""
    lost = lost_at(row)
    return lost is not None and min(row["warned"].values(), default=math.inf) < lost


def p_value(differences: Sequence[float]) -> float:
    """Two-sided p of Student's t on paired differences: P(|T| >= mean / standard error), n - 1 degrees of freedom.

    1 where all are 0, as in two runs of the same bits; 0 where all are one other number.

    >>> round(p_value([1.0, 2.0, 3.0]), 4)
    0.0742
    """
    error, mean = standard_error(differences), fmean(differences)
    if not error > 0:
        return float(mean == 0)
    return two_sided(mean / error, len(differences) - 1)


def two_sided(t: float, degrees: int) -> float:
    """P(|T| >= |t|): with t = sqrt(v) tan(a) the density of a is proportional to cos(a)^(v - 1)."""
    angle = np.linspace(0, math.pi / 2, GRID)
    at = math.atan(abs(t) / math.sqrt(degrees))
    tail = np.linspace(at, math.pi / 2, GRID)
    return float(
        np.trapezoid(np.cos(tail) ** (degrees - 1), tail) / np.trapezoid(np.cos(angle) ** (degrees - 1), angle)
    )


def holm(values: Mapping[str, float], family: int) -> dict[str, float]:
    """Holm's adjusted p of each: max over those no larger of min(1, (family - rank) p), ranks from 0.

    family  how many are tested, those without a value yet included, which count as the largest

    >>> holm({"a": 0.01, "b": 0.04, "c": 0.03}, 3)
    {'a': 0.03, 'c': 0.06, 'b': 0.06}
    """
    adjusted, floor = {}, 0.0
    for rank, (name, p) in enumerate(sorted(values.items(), key=lambda item: item[1])):
        floor = max(floor, min(1.0, (family - rank) * p))
        adjusted[name] = floor
    return adjusted


@dataclass(frozen=True)
class Difference:
    """Area of an algorithm less the baseline's under a condition, paired over seeds."""

    algorithm: str
    value: float
    interval: Interval
    p: float

    @property
    def told(self) -> bool:
        return self.p < ALPHA

    def __str__(self) -> str:
        side = "above" if self.value > 0 else "below"
        p = f"{self.p:.3f}" if self.p >= 0.0005 else "< 0.001"
        return (
            f"`{self.algorithm}` {side} by {abs(self.value):.3f} "
            f"({self.interval.low:.3f} to {self.interval.high:.3f}, p {'= ' * (p[0] != '<')}{p})"
        )


@dataclass(frozen=True)
class Board:
    """The rows of a board as it is defined now.

    rows        a row a finished run, those of the sweep of learning rates included
    conditions  name -> words, in the order in which they are run
    like        name -> the condition that it differs from in one thing, on the same task
    """

    rows: Sequence[Row]
    conditions: Mapping[str, str]
    algorithms: Sequence[str]
    seeds: Sequence[int]
    steps: int
    like: Mapping[str, str]

    def cell(self, algorithm: str, condition: str) -> dict[int, Row]:
        """Return the rows of a cell by seed; the last row of a seed counts."""
        own = [r for r in self.rows if (r["algorithm"], r["condition"]) == (algorithm, condition) and not r["sweep"]]
        return {r["seed"]: r for r in own if r["seed"] in self.seeds and r.get("heldout") and not r.get("error")}

    def refused(self, algorithm: str, condition: str) -> str:
        """Return why a condition cannot be asked of an algorithm; "" if it can."""
        rows = [r for r in self.rows if (r["algorithm"], r["condition"]) == (algorithm, condition)]
        return next((r["refused"] for r in rows if r.get("refused")), "")

    def whole(self, algorithm: str, condition: str) -> bool:
        return len(self.cell(algorithm, condition)) == len(self.seeds) or bool(self.refused(algorithm, condition))

    @property
    def cells(self) -> tuple[int, int]:
        """Cells with all their seeds, or refused, and cells in all."""
        every = [(a, c) for a in self.algorithms for c in self.conditions]
        return sum(self.whole(*cell) for cell in every), len(every)

    def areas(self, algorithm: str, condition: str) -> dict[object, float]:
        return {seed: area(row, self.steps) for seed, row in self.cell(algorithm, condition).items()}

    def differences(self, condition: str) -> list[Difference]:
        """List the differences of whole cells from the baseline, p adjusted for all that the condition will have."""
        others = [a for a in self.algorithms if a != BASELINE and not self.refused(a, condition)]
        base = self.areas(BASELINE, condition)
        return self._paired({name: (base, self.areas(name, condition)) for name in others})

    def changes(self, condition: str) -> list[Difference]:
        """List what a condition changes in each algorithm against the one that it is like, p adjusted likewise."""
        like, asked = self.like[condition], [a for a in self.algorithms if not self.refused(a, condition)]
        return self._paired({name: (self.areas(name, like), self.areas(name, condition)) for name in asked})

    def _paired(self, pairs: Mapping[str, tuple[Mapping[object, float], Mapping[object, float]]]) -> list[Difference]:
        found = dict[str, tuple[list[float], Interval]]()
        for name, (one, other) in pairs.items():
            interval = paired(one, other) if len(one) == len(other) == len(self.seeds) else None
            if interval is not None:
                found[name] = ([other[seed] - one[seed] for seed in one], interval)
        adjusted = holm({name: p_value(apart) for name, (apart, _) in found.items()}, len(pairs))
        return [Difference(name, fmean(apart), i, adjusted[name]) for name, (apart, i) in found.items()]

    def sentences(self, condition: str) -> list[str]:
        """Say what the rows of a condition prove, and where they prove nothing; none without whole cells."""
        words, made = self.conditions[condition], list[str]()
        if against := self.differences(condition):
            made.append(f"{words}, area less `{BASELINE}`'s, {len(against)} algorithms: {_said(against)}.")
        if self.like.get(condition) and (changes := self.changes(condition)):
            like = self.conditions[self.like[condition]].lower()
            made.append(f"{words}, area less that {like}, {len(changes)} algorithms: {_said(changes)}.")
        return [*made, *self._collapses(condition)]

    @property
    def findings(self) -> list[str]:
        """Say what all conditions prove: each that tells a difference, and together those that tell none."""
        like = {name: words for name, words in self.conditions.items() if self.like.get(name)}
        own = f"the algorithm's own {self.conditions[next(iter(self.conditions))].lower()}"
        return [
            *_told(f"`{BASELINE}`'s", {name: self.differences(name) for name in self.conditions}),
            *_told(own, {name: self.changes(name) for name in like}),
            *self._fallen(),
        ]

    def _fallen(self) -> list[str]:
        """Count collapses over whole cells, and those that were warned of before."""
        counted = list[str]()
        for name in self.conditions:
            rows = [row for a in self.algorithms if self.whole(a, name) for row in self.cell(a, name).values()]
            lost = [row for row in rows if lost_at(row) is not None]
            if rows:
                counted.append(f"`{name}` {len(lost)} of {len(rows)} ({sum(map(warned_before, lost))})")
        return [f"Runs that collapsed, in brackets those warned of before: {', '.join(counted)}."] * bool(counted)

    def _collapses(self, condition: str) -> list[str]:
        rows = {a: self.cell(a, condition).values() for a in self.algorithms if self.whole(a, condition)}
        lost = {a: [r for r in own if lost_at(r) is not None] for a, own in rows.items()}
        runs, fell = sum(map(len, rows.values())), sum(map(len, lost.values()))
        warned = sum(warned_before(row) for own in lost.values() for row in own)
        named = ", ".join(f"`{a}` {len(own)}" for a, own in lost.items() if own)
        after = f" ({named}), {warned} of them warned of before" if fell else ""
        return [f"{self.conditions[condition]}, collapses: {fell} of {runs} runs{after}."] * bool(runs)


def _said(differences: Sequence[Difference]) -> str:
    """Say those that are told, the largest first; or that none is, and how far intervals reach."""
    told = sorted((d for d in differences if d.told), key=lambda d: -d.value)
    none = f"no difference is told, and intervals reach {reach(differences):.3f} to each side (median)"
    return "; ".join(map(str, told)) or none


def _told(whose: str, by_condition: Mapping[str, Sequence[Difference]]) -> Iterator[str]:
    """Say each condition that tells a difference, and in one sentence all that tell none."""
    none = list[str]()
    for name, found in by_condition.items():
        if any(d.told for d in found):
            yield f"`{name}`, area against {whose}: {_said(found)}."
        elif found:
            none.append(f"`{name}` {reach(found):.3f}")
    if none:
        yield f"No area is told apart from {whose}; intervals reach to each side (median): {', '.join(none)}."


def reach(differences: Sequence[Difference]) -> float:
    """Median half width of the intervals."""
    return median((d.interval.high - d.interval.low) / 2 for d in differences)


def table(board: Board, condition: str) -> Iterator[str]:
    """Write a condition as a Markdown table: end and area with 95 % over seeds, difference from the baseline."""
    against = {d.algorithm: d for d in board.differences(condition)}
    yield f"| {condition} | rate | end | area | area less {BASELINE}'s | p | collapsed, warned | stopped |"
    yield "|---|---|---|---|---|---|---|---|"
    for name in board.algorithms:
        if why := board.refused(name, condition):
            yield f"| {name} | | refused: {why.replace('|', '/')} | | | | | |"
            continue
        own = [row for _, row in sorted(board.cell(name, condition).items())]
        if not own:
            continue
        lost = [row for row in own if lost_at(row) is not None]
        cells = [spread([end(row) for row in own]), spread([area(row, board.steps) for row in own])]
        d = against.get(name)
        apart = f"{d.value:+.3f} ({d.interval}) | {d.p:.3f}" if d else " | "
        yield (
            f"| {name} | {own[0]['rate']:g} | {' | '.join(cells)} | {apart} | "
            f"{len(lost)}, {sum(map(warned_before, lost))} | {sum(bool(row['stopped']) for row in own)} |"
        )


def spread(values: Sequence[float]) -> str:
    """Mean and 95 % interval over seeds.

    >>> spread([0.96, 0.97, 0.98])
    '0.970 (0.945 to 0.995)'
    """
    around = over_seeds(values)
    return f"{fmean(values):.3f}" + (f" ({around.clipped()})" if around else "")


def overview(board: Board) -> Iterator[str]:
    """Write all conditions as one table: mean area, with + or - where it differs from the baseline's."""
    shown = [c for c in board.conditions if any(board.cell(a, c) for a in board.algorithms)]
    if not shown:
        return
    signs = {(c, d.algorithm): " +" if d.value > 0 else " -" for c in shown for d in board.differences(c) if d.told}
    yield f"| algorithm | {' | '.join(shown)} |"
    yield "|---" * (len(shown) + 1) + "|"
    begun = {row["algorithm"] for row in board.rows if not row["sweep"] or row.get("refused")}
    for name in (name for name in board.algorithms if name in begun):
        cells = []
        for condition in shown:
            own = list(board.areas(name, condition).values())
            part = f" ({len(own)})" * (len(own) < len(board.seeds))
            mean = f"{fmean(own):.3f}{part}{signs.get((condition, name), '')}" if own else ""
            cells.append("refused" if board.refused(name, condition) else mean)
        yield f"| {name} | {' | '.join(cells)} |"


def page(text: str, board: Board) -> str:
    """Write the part of a page between the marks anew."""
    done, cells = board.cells
    first = "The board is whole" if done == cells else f"The board is not whole: {done} of {cells} cells are in"
    faults = sum(bool(row.get("error")) for row in board.rows)
    said = [f"- {finding}" for finding in board.findings]
    wrapped = [textwrap.fill(each, 108, subsequent_indent="  ", break_on_hyphens=False) for each in said]
    blocks = [[f"{first}."], list(overview(board)), wrapped, [f"{faults} runs crashed."] * bool(faults)]
    lines = [line for block in blocks if block for line in ("", *block)]
    before, _, rest = text.partition(BEGIN)
    return before + "\n".join([BEGIN, *lines, "", END]) + rest.partition(END)[2]
