"""Table of the runs in a folder, read from their files alone: no model and no library of tensors is loaded."""

import time
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from groupwise.core.errors import UsageError, shortened
from groupwise.core.machine.terminal import clean
from groupwise.reports.folder.overview import CRASHED, STOPPED, HeldOut, Overview, age_of, as_json, overviews
from groupwise.reports.records import Number

#: Where runs are made without another name.
RUNS = Path("runs")
WIDTH = 80
HEAD = ("name", "state", "step", "held out", "algorithm", "age")
_GAP, _LEAST_NAME, _LONGEST_ALGORITHM = 2, 12, 12
#: Lines about odd folders under the table, at most.
_MOST_NOTES = 5


def listing(folder: Path | None = None, json: bool = False, width: int = WIDTH) -> str:
    """Show the runs of a folder, ./runs without one: as a table of at most `width` columns, or as JSON.

    Raises UsageError if a folder that was named is none, or is itself a run.
    """
    root = RUNS if folder is None else folder
    if folder is not None and not root.is_dir():
        wrong = "this is a file" if root.exists() else "there is no such folder"
        raise UsageError(f"{root}: {wrong}; name a folder that holds runs, or leave it out for {RUNS}")
    runs = overviews(root) if root.is_dir() else []
    if json:
        return as_json(runs)
    if not runs:
        return f"{root} holds no run yet; begin one with: groupwise train quickstart"
    return "\n".join(lines(runs, time.time(), width))


def lines(runs: Sequence[Overview], now: float, width: int = WIDTH) -> list[str]:
    """Make the table, and below it what is odd about folders and how an unfinished run goes on."""
    cells = [_cells(run, now) for run in runs]
    widths = [max(len(row[i]) for row in (HEAD, *cells)) for i in range(len(HEAD))]
    rest = sum(widths[1:]) + _GAP * (len(HEAD) - 1)
    widths[0] = min(widths[0], max(_LEAST_NAME, width - rest))
    table = [_line(row, widths) for row in (HEAD, *cells)]
    return [*table, *_notes(runs, width)]


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [shortened(row[0], widths[0]), *row[1:]]
    return (" " * _GAP).join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()


def _cells(run: Overview, now: float) -> tuple[str, ...]:
    known = run.step is not None or run.steps is not None
    step = f"{run.step or 0}/{'?' if run.steps is None else run.steps}" if known else "-"
    algorithm = shortened(clean(run.algorithm), _LONGEST_ALGORITHM) or "-"
    return (clean(run.name), run.state, step, _held_out(run.held_out), algorithm, _age(age_of(run, now)))


def _held_out(held: HeldOut | None) -> str:
    if held is None or held.last is None:
        return "-"
    if held.before is None or held.step == 0:
        return _number(held.last)
    return f"{_number(held.before)} -> {_number(held.last)}"


def _number(value: Number) -> str:
    """Write a number in a few characters.

    >>> _number(0.47021), _number(-12.5), _number(123456.0)
    ('0.470', '-12.5', '1.23e+05')
    """
    assert value is not None
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.3g}"


def _age(seconds: float | None) -> str:
    """Write an age in its largest unit.

    >>> _age(59.9), _age(3600.0), _age(90000.0), _age(None)
    ('59 s', '1 h', '1 d', '-')
    """
    if seconds is None:
        return "-"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"


def _notes(runs: Sequence[Overview], width: int) -> list[str]:
    odd = [shortened(f"{run.name}: {run.notes[0]}", width) for run in runs if run.notes]
    more = len(odd) - _MOST_NOTES
    left = [f"{more} more folders are old or damaged; --json shows all"] if more > 0 else []
    broken = next((run.folder for run in runs if run.state in (STOPPED, CRASHED)), None)
    resume = [f"resume the newest that did not finish: groupwise train --resume {quote(str(broken))}"] if broken else []
    return [*odd[:_MOST_NOTES], *left, *resume]
