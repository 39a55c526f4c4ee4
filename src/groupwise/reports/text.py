"""A run's report as text for a terminal: the answers, curves as rows of blocks, checks and findings."""

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from groupwise.reports.folder.columns import spaced
from groupwise.reports.page.keys import BEFORE
from groupwise.reports.page.page import page_of_run
from groupwise.reports.records import Curves, Number, Page, Plot, RunPage

#: Columns of a curve, of the name before it, and of the numbers behind it.
CURVE, NAME, ENDS = 30, 28, 24
#: The charts that a terminal shows, in their order; those that a run has.
SHOWN = ("pass-rate", "measured", "reward", "length", "entropy", "kl", "gradient", "groups")
BLOCKS, PLAIN = "▁▂▃▄▅▆▇█", "_.-~=+*#"
MARKS = {"good": "ok", "warn": "look here", "bad": "trouble"}
STYLES = {"good": "green", "warn": "yellow", "bad": "bold red", "pass": "green", "fail": "bold red"}

#: A line's parts, each a text or a text with its style.
Line = tuple[str | tuple[str, str], ...]


def lines(folder: Path, width: int, blocks: bool = True) -> Iterator[Line]:
    """Write the report of a run in lines of at most `width` columns; without `blocks`, in ASCII.

    Raises UsageError if the folder is none of a run.
    """
    page = page_of_run(folder)
    (run,) = page.runs
    yield from _wrapped(f"{run.label}: {run.status.words}", width)
    yield from (line for note in run.notes for line in _wrapped(f"note: {note}", width))
    for one in run.answers:
        yield ()
        mark = MARKS.get(one.tone)
        yield (one.question, *(((f"  {mark}", STYLES[one.tone]),) if mark else ()))
        yield from _wrapped(one.answer, width, "  ")
    yield from _curves(page, run, width, BLOCKS if blocks else PLAIN)
    yield from _checks(run, width)
    yield from _findings(run, width)


def spark(values: Sequence[Number], width: int, marks: str = BLOCKS) -> str:
    """Draw numbers as a row of blocks from the lowest to the highest; a gap is a space.

    >>> spark([0, 1, 2, None, 3], 8), spark([5, 5], 8)
    ('▁▃▆ █', '▁▁')
    """
    known = [value for value in values if value is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    size = (len(marks) - 1) / (high - low) if high > low else 0.0
    kept = [values[i] for i in spaced(len(values), width)]
    return "".join(" " if value is None else marks[int((value - low) * size + 0.5)] for value in kept)


def _curves(page: Page, run: RunPage, width: int, marks: str) -> Iterator[Line]:
    plots = sorted((plot for plot in page.plots if plot.id in SHOWN), key=lambda plot: SHOWN.index(plot.id))
    name = min(NAME, max(10, width - 34))
    room = max(8, min(CURVE, width - name - ENDS))
    rows = [row for plot in plots for row in _of_plot(plot, run, marks, (name, room))]
    if rows:
        yield ()
        yield ("Curves, first to last",)
        yield from ((f"  {row}"[:width],) for row in rows)
    still = [words for part in page.unchanged.values() for words in part]
    if still:
        yield from _wrapped(f"unchanged: {'; '.join(still)}", width, "  ")


def _of_plot(plot: Plot, run: RunPage, marks: str, widths: tuple[int, int]) -> Iterator[str]:
    """Write a line for each series; `widths` are those of its name and of its curve."""
    most, width = widths
    for series in plot.series:
        curves: Curves = run.evaluations if (series.table or plot.table) == "evaluations" else run.steps
        values = curves.columns.get(series.column, [])
        known = [value for value in values if value is not None]
        if known:
            whole = BEFORE.get(series.table or plot.table, "") + series.column
            name = whole if len(whole) <= most else f"{whole[: most - 3]}..."
            yield f"{name:<{most}} {spark(values, width, marks):<{width}} {known[0]:.3g} to {known[-1]:.3g}"


def _checks(run: RunPage, width: int) -> Iterator[Line]:
    if not run.checks:
        return
    yield ()
    yield ("Checks",)
    for check in run.checks:
        first, *rest = textwrap.wrap(check.name, max(20, width - 16)) or [""]
        yield (f"  {check.verdict:<13}", STYLES.get(check.verdict, "")), first
        yield from ((f"{'':15}{line}",) for line in rest)
        if check.verdict == "fail":
            yield from _wrapped(check.words, width, " " * 15)


def _findings(run: RunPage, width: int) -> Iterator[Line]:
    if not run.findings:
        return
    yield ()
    yield ("What stands out",)
    for finding in run.findings:
        yield (f"  {MARKS.get(finding.tone, 'note')}: ", STYLES.get(finding.tone, "")), finding.name
        yield from _wrapped(finding.words, width, "    ")
        if finding.advice:
            yield from _wrapped(f"try: {finding.advice}", width, "    ")


def _wrapped(text: str, width: int, indent: str = "") -> Iterator[Line]:
    for line in textwrap.wrap(" ".join(text.split()), width, initial_indent=indent, subsequent_indent=indent):
        yield (line,)
