"""Rows of a measurement -> Markdown, a section a card; only what was measured is in it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]
#: What stands around the tables in a page.
BEGIN, END = "<!-- tables of benchmarks/gpu.py -->", "<!-- end of the tables -->"
MISSING = "-"


def into_page(page: Path, rows: Sequence[Row]) -> None:
    """Put the tables in the place of those that the page has; a page without a place for them gets one at its end."""
    text = page.read_text() if page.exists() else ""
    if BEGIN not in text:
        text = f"{text.rstrip()}\n\n{BEGIN}\n{END}\n".lstrip()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(f"{before}{BEGIN}\n\n{tables(rows)}\n{END}{after}")


def tables(rows: Sequence[Row]) -> str:
    """Every card's tables; a figure that was measured again is its newest row."""
    if not rows:
        return "No card has been measured.\n"
    cards = dict.fromkeys(row["machine"]["card"] for row in rows)
    return "\n".join(line for card in cards for line in of_card([r for r in rows if r["machine"]["card"] == card]))


def of_card(rows: Sequence[Row]) -> Iterator[str]:
    newest = {(row["part"], str(row["key"])): row for row in rows}
    own = list(newest.values())
    machine = own[-1]["machine"]
    sources = ", ".join(dict.fromkeys(f"{row['machine']['source']}{commit(row)}" for row in own))
    cuda = f" (CUDA {machine['cuda']})" if machine["cuda"] else ""
    yield f"### {machine['card']}\n"
    yield (
        f"Python {machine['python']}, torch {machine['torch']}{cuda}, transformers {machine['transformers']}, "
        f"{machine['cores']} processor cores; source {sources}; {own[-1]['at'][:10]}.\n"
    )
    for part, (title, what, lines) in PARTS.items():
        found = [row for row in own if row["part"] == part]
        good = [row for row in found if "failed" not in row]
        made = list(lines(good, own)) if good else []
        if made:
            yield f"**{title}**: {what}.\n"
            yield from made
            yield ""
        for row in found:
            if "failed" in row:
                yield f"{title}, {named(row['key'])}: {row['failed']}\n"


def commit(row: Row) -> str:
    told = row["machine"]["commit"]
    return f" (commit {told})" if told else ""


def named(key: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in key.items())


def line(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def head(*names: str) -> str:
    return f"{line(*names)}\n{'|---' * len(names)}|"


def share(value: float | None) -> str:
    return MISSING if value is None else f"{value:.0%}"


def number(value: float | None, digits: int = 1) -> str:
    return MISSING if value is None else f"{value:,.{digits}f}"


def ceilings(rows: Sequence[Row], own: Sequence[Row]) -> Iterator[str]:
    yield head("ceiling", "a second")
    for row in rows:
        unit, scale = {"bytes": ("GB", 1e9), "operations": ("TFLOP", 1e12)}[row["unit"]]
        yield line(row["key"]["of"], f"{row['per_second'] / scale:,.2f} {unit}")


def decode(rows: Sequence[Row], own: Sequence[Row]) -> Iterator[str]:
    yield head(
        "model",
        "rows",
        "layers",
        "tokens a second",
        "ms a token",
        "reading takes",
        "share",
        "peak GiB",
        "made, first, s",
        "how",
        "off, nats (limit)",
    )
    for row in rows:
        yield line(
            row["key"]["model"],
            row["key"]["rows"],
            row["key"]["layers"],
            f"{row['tokens_per_second']:,.0f}",
            f"{row['ms_per_token']:.2f}",
            number(row["least_ms_per_token"], 3),
            share(row["share_of_bandwidth"]),
            number(row["peak_gib"], 2),
            f"{row['seconds_made']:.0f}, {row['seconds_first']:.1f}",
            row["how"],
            f"{row['difference']:.2g} ({row['limit']:.2g})",
        )


def update(rows: Sequence[Row], own: Sequence[Row]) -> Iterator[str]:
    yield head(
        "model",
        "completions",
        "tokens a second",
        "seconds",
        "share",
        "at once",
        "peak GiB",
        "planned",
        "gradients off, fp32 and bf16",
        "attention",
    )
    for row in rows:
        if "beside" in row["key"]:
            continue
        yield line(
            row["key"]["model"],
            f"{row['key']['completions']} of {row['key']['tokens']:,}",
            f"{row['tokens_per_second']:,.0f}",
            f"{row['seconds']:.3f}",
            share(row["share_of_product"]),
            f"{row['tokens_per_microbatch']:,}",
            number(row["peak_gib"], 2),
            number(row["planned_gib"], 2),
            f"{row['gradient_fp32']:.1g}, {row['gradient_bf16']:.1g}",
            row["attention"],
        )
    for row in rows:
        if "beside" in row["key"]:
            yield (
                f"\n{row['key']['model']}, {row['key']['completions']} of {row['key']['tokens']:,}, once more: "
                f"{row['seconds']:.3f} s; `deterministic = false` {row['seconds_not_deterministic']:.3f} s; "
                f"attention in blocks {row['seconds_in_blocks']:.3f} s."
            )


PHASES = ("generate", "score", "annotate", "update", "load")


def step(rows: Sequence[Row], own: Sequence[Row]) -> Iterator[str]:
    """groupwise's rows, and behind each TRL's of the same step."""
    theirs = {str(row["key"]): row for row in own if row["part"] == "trl_step" and "failed" not in row}
    yield head("model", "step", "side", "seconds", *PHASES, "peak GiB", "planned", "checks that failed")
    for row in rows:
        key, other = row["key"], theirs.get(str(row["key"]))
        what = key["model"], f"{key['prompts']} x {key['samples']} of {key['tokens']}"
        failed = ", ".join(row["failed_checks"]) or "none"
        yield line(
            *what, "groupwise", *by_phase(row), number(row["peak_gib"], 2), number(row["planned_gib"], 2), failed
        )
        if other is not None:
            times = f"{median(other, 'step') / median(row, 'step'):.2f} times"
            yield line(*what, f"TRL, {times}", *by_phase(other), number(other["peak_gib"], 2), MISSING, MISSING)


def by_phase(row: Row) -> Iterator[str]:
    for phase in ("step", *PHASES):
        yield f"{median(row, phase):.2f}"


def median(row: Row, phase: str) -> float:
    return statistics.median(step.get(phase, 0.0) for step in row["steps"])


def load(rows: Sequence[Row], own: Sequence[Row]) -> Iterator[str]:
    yield head("model", "engine's process", "GiB", "seconds", "said")
    for row in rows:
        told = (f"{row['gib']:.2f}", f"{row['seconds']:.3f}", "; ".join(row["notes"]) or "-")
        yield line(row["key"]["model"], row["key"]["engine"], *told)


def runs(rows: Sequence[Row], own: Sequence[Row]) -> Iterator[str]:
    yield head("run", "what came of it")
    for row in rows:
        yield line(row["key"]["run"], outcome(row))


def outcome(row: Row) -> str:
    if "found" in row:
        missed = f", missed: {', '.join(row['missed'])}" if row["missed"] else ""
        alarms = ", ".join(row["false_alarms"]) or "none"
        clean = f"false alarms in {row['clean_steps']} clean steps: {alarms}"
        return f"{row['found']} of {row['planted']} found{missed}; {clean}"
    failed = ", ".join(row["failed_checks"]) or "none"
    return (
        f"held out {row['heldout_before']:.3f} -> {row['heldout_after']:.3f} in {row['steps']} steps, "
        f"{row['seconds_training']:.1f} s of training, {row['seconds']:.1f} s in all; checks that failed: {failed}"
    )


def several(rows: Sequence[Row], own: Sequence[Row]) -> Iterator[str]:
    yield head("backend", "ranks on one card", "what came of it")
    for row in rows:
        said = "; ".join(f"{name}: {text}" for name, text in row["said"].items())
        yield line(row["key"]["backend"], row["key"]["ranks"], said)


Lines = Callable[[Sequence[Row], Sequence[Row]], Iterator[str]]
#: Each part's title, what its table holds, and its lines, in the order of the page.
PARTS: Mapping[str, tuple[str, str, Lines]] = {
    "ceilings": ("Ceilings", "a copy on the device, bytes read and written, and products of two matrices", ceilings),
    "decode": (
        "Decoding",
        "groups of random prompts in bfloat16; the share is that of the copy's bandwidth which the fewest bytes take",
        decode,
    ),
    "update": (
        "An update",
        "bf16 over float32 masters; the share is that of the bf16 product; plan and peak are without an engine",
        update,
    ),
    "step": (
        "A whole step of GRPO",
        "seconds, medians by phase; TRL samples with transformers, and its weights and moments are bfloat16",
        step,
    ),
    "trl_step": ("TRL", "", lambda rows, own: iter(())),
    "load": ("Weights to the engine", "float32 of the learner to bfloat16 of the engine", load),
    "runs": ("Whole runs", "as a person starts them", runs),
    "several": ("Several ranks", "collectives, and a step of FSDP2 beside the whole model's", several),
}
