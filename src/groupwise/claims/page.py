"""The claims as one page of Markdown: a table of verdicts, then each claim with its numbers and the command."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from groupwise.claims.claim import Claim, Quantity
from groupwise.claims.measurements import Measurements


def markdown(claims: Sequence[Claim], measurements: Measurements, rows: Path) -> str:
    """The page; `rows` is the file that each verdict is read from."""
    lines = ["# What the articles say, measured", "", f"Rows: [{rows.name}]({rows.as_posix()}).", ""]
    lines += ["| claim | verdict |", "|---|---|"]
    lines += [f"| [{claim.title}](#{claim.name}) | {claim.verdict(measurements).outcome.value} |" for claim in claims]
    for claim in claims:
        lines += ["", *_section(claim, measurements)]
    return "\n".join(lines) + "\n"


def _section(claim: Claim, measurements: Measurements) -> Iterator[str]:
    verdict = claim.verdict(measurements)
    yield f"## {claim.name}"
    yield ""
    yield f"**{claim.title}** ({claim.source})"
    yield ""
    yield f"Why: {claim.argument}"
    yield ""
    yield f"Expected: {claim.expected}"
    yield ""
    yield f"**{verdict.outcome.value}**: {verdict.because}."
    yield ""
    yield "| measured | mean | 95 % interval | seeds |"
    yield "|---|---|---|---|"
    yield from (_line(quantity, measurements) for quantity in claim.quantities)
    yield ""
    yield f"    groupwise claims --only {claim.name} --seed 0"


def _line(quantity: Quantity, measurements: Measurements) -> str:
    values = measurements.values(quantity.experiment, quantity.name)
    if not values:
        return f"| {quantity.words} | not measured | | 0 |"
    interval = measurements.interval(quantity.experiment, quantity.name)
    around = f"{interval.low:.4g} to {interval.high:.4g}" if interval else ""
    return (
        f"| {quantity.words} | {measurements.mean(quantity.experiment, quantity.name):.4g} | {around} | {len(values)} |"
    )
