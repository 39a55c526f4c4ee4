"""Table that a sweep ends in: a line a group of seeds, and one for each run that failed."""

from collections.abc import Iterator, Sequence
from statistics import fmean

from groupwise.commands.sweep.grid import words
from groupwise.commands.sweep.results import LAST, RunRow, SeedGroup, Summary, groups
from groupwise.core.errors import shortened

#: Columns of a terminal that lines have at most, those of an error apart; and of a group's name.
WIDTH, LONGEST = 110, 36


def table(recipe: str, rows: Sequence[RunRow]) -> Iterator[str]:
    """Say the scores of each group with their intervals, in lines of at most WIDTH columns."""
    measures = list(dict.fromkeys(row.measure for row in rows if row.measure)) or ["score"]
    heldout = shortened(f"held-out {' or '.join(measures)}", 28)
    head = ("", "runs", heldout, f"training, last {LAST} steps", "steps", "seconds")
    lines = [head, *(_line(recipe, group) for group in groups(rows))]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        first, *others = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        yield "  ".join([first, *others]).rstrip()
    if any(
        summary and summary.low is not None for group in groups(rows) for summary in (group.heldout, group.training)
    ):
        yield "In brackets: 95 % intervals over seeds (Student's t), from three seeds on."
    for row in rows:
        if row.error:
            yield f"{row.cell.name} failed: {row.error}"


def _line(recipe: str, group: SeedGroup) -> tuple[str, ...]:
    done = group.finished
    count = str(len(done)) if len(done) == len(group.rows) else f"{len(done)} of {len(group.rows)}"
    steps = sorted({row.steps for row in done})
    seconds = [row.seconds for row in done if row.seconds is not None]
    return (
        shortened(words(group.values) or recipe, LONGEST),
        count,
        _score(group.heldout),
        _score(group.training),
        f"{steps[0]} to {steps[-1]}" if len(steps) > 1 else "".join(map(str, steps)) or "-",
        f"{fmean(seconds):.1f}" if seconds else "-",
    )


def _score(summary: Summary | None) -> str:
    if summary is None:
        return "-"
    around = "" if summary.low is None or summary.high is None else f" ({summary.low:.3f} to {summary.high:.3f})"
    return f"{summary.mean:.3f}{around}"
