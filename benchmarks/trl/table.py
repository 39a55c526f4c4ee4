"""docs/findings/benchmarks_trl.md from the rows of a run.

python benchmarks/trl/table.py docs/evidence/bench-trl.jsonl
"""

import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import words
from cases import GROWTH, ROWS
from evidence import OURS, SIDES, THEIRS, Pair, Row, curves, pairs, read
from operations import Sampled, by_phase


def page(rows: Sequence[Row]) -> str:
    """The whole page; a part of which there is no row yet is left out."""
    timed, grown, learned = [*pairs(rows, ROWS)], [*pairs(rows, GROWTH)], curves(rows)
    parts = [words.HEAD]
    if timed:
        parts += [machine(timed), "\n".join(steps_table(timed)), words.PHASES, "\n".join(phases_table(timed))]
    if grown:
        rows_of_growth = [row for pair in grown for row in pair.ours]
        parts += [words.GROWTH, source(rows_of_growth), "\n".join(growth_table(grown))]
    if learned:
        parts += [words.CURVES, source(learned), "\n".join(curves_table(learned))]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def source(rows: Sequence[Row]) -> str:
    """Which source of groupwise these rows are of: each part of the page is made again by itself."""
    return f"groupwise at {', '.join(dict.fromkeys(row['source'] for row in rows))}.\n"


def machine(timed: Sequence[Pair]) -> str:
    """What was timed, and where."""
    row = timed[-1].ours[-1]
    ceilings = [row["ceiling"] for pair in timed for row in (*pair.ours, *pair.theirs)]
    versions = ", ".join(f"{name} {number}" for name, number in row["versions"].items())
    return (
        f"{row['machine']}; {row['threads']} threads; {versions}; groupwise at {row['source']}.\n"
        f"Fastest product of two 1,536 x 1,536 matrices in each process: median "
        f"{statistics.median(ceilings) / 1e9:,.0f} GFLOP/s, {min(ceilings) / 1e9:,.0f} to {max(ceilings) / 1e9:,.0f}."
    )


def steps_table(timed: Sequence[Pair]) -> Iterator[str]:
    yield "| case | completions | groupwise, s | TRL, s | TRL / groupwise (by block) | peak MiB | TRL's |"
    yield "|---|---|---|---|---|---|---|"
    for pair in timed:
        blocks = ", ".join(f"{ratio:.2f}" for ratio in pair.block_ratios())
        cells = [pair.case.title, f"{pair.case.prompts} x {pair.case.samples}"]
        cells += [
            f"{pair.median(side):.2f} ({' to '.join(f'{q:.2f}' for q in pair.quartiles(side))})" for side in SIDES
        ]
        cells += [f"**{pair.ratio:.2f}** ({blocks})", *(f"{pair.of(side, 'memory_mib', max):,.0f}" for side in SIDES)]
        yield f"| {' | '.join(cells)} |"


def spread(pair: Pair, side: str) -> str:
    return " to ".join(f"{quartile:.2f}" for quartile in pair.quartiles(side))


def phases_table(timed: Sequence[Pair]) -> Iterator[str]:
    """Seconds by phase, and the share of the ceiling that the arithmetic of a phase reaches."""
    yield "| case | side | tokens, mean | generate | score | update | other |\n|---|---|---|---|---|---|---|"
    for pair in timed:
        for side, name in SIDES.items():
            named = {phase: pair.median(side, phase) for phase in ("generate", "score", "update")}
            other = max(0.0, pair.median(side) - sum(named.values()))
            share = {phase: f" ({reached(pair, side, phase):.0%})" for phase in ("generate", "update")}
            cells = [f"{seconds:.2f}{share.get(phase, '')}" for phase, seconds in named.items()]
            tokens = pair.of(side, "completion_tokens", statistics.fmean)
            yield f"| {pair.case.title} | {name} | {tokens:.1f} | {' | '.join(cells)} | {other:.2f} |"


def reached(pair: Pair, side: str, phase: str) -> float:
    """Operations needed / (seconds * ceiling)."""
    sampled = Sampled(
        pair.case.prompts,
        pair.of(side, "prompt_tokens", statistics.fmean),
        pair.case.completions,
        pair.of(side, "completion_tokens", statistics.fmean),
    )
    needed = by_phase(pair.rows(side)[0]["config"], sampled)[phase]
    return needed / pair.median(side, phase) / pair.of(side, "ceiling", statistics.median)


def growth_table(grown: Sequence[Pair]) -> Iterator[str]:
    yield "| what grows | | groupwise | TRL | ratio | peak MiB | TRL's |\n|---|---|---|---|---|---|---|"
    for pair in grown:
        seconds = " | ".join(f"{pair.median(side):.2f}" for side in SIDES)
        memory = " | ".join(f"{pair.of(side, 'memory_mib', max):,.0f}" for side in SIDES)
        yield f"| {pair.case.axis} | {pair.case.value:,} | {seconds} | {pair.ratio:.2f} | {memory} |"


def curves_table(learned: Sequence[Row]) -> Iterator[str]:
    yield "| seed | held out before | groupwise, after | TRL, after | groupwise, s of training | TRL's |"
    yield "|---|---|---|---|---|---|"
    for seed in sorted({row["seed"] for row in learned}):
        sides = {row["side"]: row for row in learned if row["seed"] == seed}
        if len(sides) == len(SIDES):
            both = [sides[OURS], sides[THEIRS]]
            cells = [f"{both[0]['heldout_before']:.3f}", *(f"{side['heldout_after']:.3f}" for side in both)]
            cells += [f"{side['seconds_training']:.0f}" for side in both]
            yield f"| {seed} | {' | '.join(cells)} |"


if __name__ == "__main__":
    print(page(read(Path(sys.argv[1]))), end="")
