"""What the rows of benchmarks/collapse.py say: when a run lost a fifth, when it was warned, what going back gained.

A row holds what the warnings read, so all of this is by today's thresholds, without another run.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from collapse_kinds import COLLAPSES, KINDS, PUSHED, SOUND
from groupwise.core.numbers.statistics import paired
from groupwise.health.watch import EARLY, Watch

Row = dict[str, Any]

#: A collapse: a held-out pass rate this much below the run's own best so far, as a share of that.
FIFTH = 0.2
#: Warnings that a run's guard acts on.
WARNINGS = tuple(symptom.name for symptom in EARLY)


def thresholds() -> str:
    """Tells the warnings that a guard acts on from the same ones before a threshold was changed."""
    return hashlib.sha256(json.dumps([(s.name, s.limit) for s in EARLY]).encode()).hexdigest()[:12]


def lost_at(row: Row) -> int | None:
    """The first step that may have lost a fifth: that after the last evaluation that still had it.

    None where no evaluation is FIFTH below the best before it. A run that updates without a finite gradient have
    stopped has lost everything in the step after its last.
    """
    best, sound_at = 0.0, 0
    for step, rate in row["heldout"]:
        best = max(best, rate)
        if rate <= (1 - FIFTH) * best:
            return sound_at + 1
        sound_at = step
    return steps(row) + 1 if "not finite" in row["stopped"] else None


def steps(row: Row) -> int:
    return len(row["curves"]["pass_rate"])


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


def in_time(row: Row, name: str = "") -> bool:
    """Whether the warning, or the first of all, came before the loss."""
    return (lead(row, name) or 0) > 0


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
    """A line for each kind: how many lost a fifth, how many of those were warned of before, and by how many steps."""
    yield "| kind | runs | held out, best | at the end | lost a fifth | warned before | steps before | first warnings |"
    yield "|---|---|---|---|---|---|---|---|"
    for name in (*COLLAPSES, *PUSHED):
        own = [row for row in rows if row["kind"] == name]
        if not own:
            continue
        lost = [row for row in own if lost_at(row) is not None]
        leads = [apart for row in lost if (apart := lead(row)) is not None]
        rates = [middle([of(row) for row in own], ".2f") for of in (best, end)]
        yield (
            f"| {name} | {len(own)} | {rates[0]} | {rates[1]} | {len(lost)} | "
            f"{sum(map(in_time, lost))} of {len(lost)} | {middle(leads)} | {first_warnings(own)} |"
        )


def first_warnings(rows: Sequence[Row]) -> str:
    """What each run was warned of first, counted."""
    first = Counter(min(at, key=lambda one: at[one]) for row in rows if (at := warned(row)))
    return ", ".join(f"{warning} {count}" for warning, count in first.most_common())


def warnings_table(rows: Sequence[Row]) -> Iterator[str]:
    """A line for each warning: in how many collapses of each kind it came before the loss, and its false alarms."""
    sound = [row for row in rows if row["kind"] in SOUND and lost_at(row) is None]
    yield f"| warning | {' | '.join(COLLAPSES)} | steps before | false alarms in {len(sound)} sound runs |"
    yield "|---" * (len(COLLAPSES) + 3) + "|"
    for name in ("", *WARNINGS):
        before = {kind: [row for row in rows if row["kind"] == kind and in_time(row, name)] for kind in COLLAPSES}
        leads = [apart for own in before.values() for row in own if (apart := lead(row, name)) is not None]
        alarms = sum(bool(warned(row)) if not name else name in warned(row) for row in sound)
        counts = " | ".join(str(len(own)) for own in before.values())
        yield f"| {name or 'any of them'} | {counts} | {middle(leads)} | {alarms} |"


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


def tables(rows: Sequence[Row], back: Sequence[Row]) -> Iterator[str]:
    yield from kinds_table(rows)
    yield ""
    yield from warnings_table(rows)
    if back:
        yield ""
        yield from returns_table(rows, back)
