"""What corrects an engine that is not the learner: a recipe under each mismatch part, one row per finished run.

    python benchmarks/mismatch.py docs/evidence/mismatch.jsonl --set engine.precision=bf16
    python benchmarks/mismatch.py docs/evidence/mismatch.jsonl --recipe times-tables --set engine.precision=bf16

A run that has its row is not run again, so this can be stopped and gone on with at any time. Printed are, of each part,
the means over its seeds: |log pi_old - log pi_engine| of the sampled tokens, the effective samples (sum k)^2 / (n sum
k^2) of k = pi_old / pi_engine, the correction and what it rejects, and the result.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer

from groupwise.journal.journal import read_metrics
from sweep import finished, one

#: What a row of the table sets, by its name.
PARTS: Mapping[str, Sequence[str]] = {
    "none": (),
    **{
        kind: (f"algorithm.mismatch.kind={kind}",)
        for kind in ("tis", "mis", "icepop", "sequence-tis", "sequence-mis", "geometric", "veto")
    },
    "tis, rejection sequence": ("algorithm.mismatch.kind=tis", "algorithm.rejection.kind=sequence"),
    "logp_old = engine": ("logp_old=engine",),
}
#: Metrics whose mean over all steps a row has; None where the run does not measure one.
MEASURED = (
    "engine_gap_mean",
    "engine_effective_sample_share",
    "correction_mean",
    "correction_rejected_share",
    "token_age_mean",
)


def means(run: Path) -> dict[str, float | None]:
    """The mean of each of the measured metrics over the run's steps."""
    rows = [row for row in read_metrics(run) if "evaluation" not in row]
    values = {name: [row[name] for row in rows if row.get(name) is not None] for name in MEASURED}
    return {name: fmean(of_steps) if of_steps else None for name, of_steps in values.items()}


def table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The rows of one recipe under one engine as a Markdown table, a line a part."""
    yield "| part | seeds | engine gap, nats | effective samples | correction | rejected | held out after | mean |"
    yield "|---|---|---|---|---|---|---|---|"
    for part in PARTS:
        own = sorted((row for row in rows if row["part"] == part), key=lambda row: row["seed"])
        if not own:
            continue
        gap, samples, mean, rejected = (_mean(own, name) for name in MEASURED[:4])
        after = [row["heldout_after"] for row in own]
        yield (
            f"| {part} | {len(own)} | {gap:.2g} | {samples:.4f} | {_text(mean)} | {_text(rejected)} | "
            f"{', '.join(f'{value:.3f}' for value in after)} | {fmean(after):.3f} |"
        )


def _mean(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    values = [row[name] for row in rows if row[name] is not None]
    return fmean(values) if values else float("nan")


def _text(value: float) -> str:
    return "" if value != value else f"{value:.4f}"


def main(
    file: Path,
    recipe: str = "quickstart",
    algorithm: str = "grpo",
    seeds: Annotated[str, typer.Option(help="Such as 0,1,2.")] = "0,1,2",
    parts: Annotated[str, typer.Option(help="Some of the parts, with ; between; all without it.")] = "",
    set: Annotated[list[str] | None, typer.Option("--set", help="The engine, and whatever else.")] = None,
    runs: Path = Path("runs/mismatch"),
) -> None:
    """Run what has no row yet; then print the table."""
    settings = set or []
    for seed in map(int, seeds.split(",")):
        for part in parts.split(";") if parts else PARTS:
            key = {"recipe": recipe, "algorithm": algorithm, "engine": settings, "part": part, "seed": seed}
            if any(row.items() >= key.items() for row in finished(file)):
                continue
            place = runs / "-".join([*settings, part]).replace(" ", "")
            row = one(recipe, algorithm, seed, [*settings, *PARTS[part]], place)
            with file.open("a") as out:
                out.write(json.dumps({**row, **key, **means(place / row["name"])}) + "\n")
            print(f"{part}, seed {seed}: {row['heldout_before']:.3f} -> {row['heldout_after']:.3f}", flush=True)
    same = {"recipe": recipe, "algorithm": algorithm, "engine": settings}
    print("\n".join(table([row for row in finished(file) if row.items() >= same.items()])))


if __name__ == "__main__":
    typer.run(main)
