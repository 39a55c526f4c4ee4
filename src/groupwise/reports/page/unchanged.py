"""Pictures whose lines never move: a line of words says what they would show."""

from collections.abc import Iterable, Mapping, Sequence

from groupwise.reports.page.plots import ENOUGH, Columns
from groupwise.reports.records import Number, Plot

#: What a reader looks for first is drawn even if it stands still.
ALWAYS = frozenset({"pass-rate", "measured"})
#: Units that a number needs no word for.
_PLAIN = ("", "norm", "ratio", "level", "absolute value")


def folded(
    plots: Iterable[Plot], steps: Columns, evaluations: Columns
) -> tuple[tuple[Plot, ...], dict[str, list[str]]]:
    """Part the pictures into those with a line that moves, and by section the others in words.

    >>> from groupwise.reports.page.plots import plots_for
    >>> columns = {"learning_rate": [0.001, 0.001, 0.001], "entropy_mean": [2.0, 1.9, 1.8]}
    >>> drawn, unchanged = folded(plots_for(columns, {}, []), columns, {})
    >>> [plot.id for plot in drawn], unchanged
    (['entropy'], {'healthy': ['Learning rate: 0.001']})
    """
    drawn, unchanged = [], dict[str, list[str]]()
    for plot in plots:
        words = None if plot.id in ALWAYS else _at_rest(plot, {"steps": steps, "evaluations": evaluations})
        if words is None:
            drawn.append(plot)
        else:
            unchanged.setdefault(plot.section, []).append(words)
    return tuple(drawn), unchanged


def _at_rest(plot: Plot, tables: Mapping[str, Columns]) -> str | None:
    """Say a picture of which no line moves; None if one does, or has too few numbers to tell."""
    if plot.kind != "lines" or plot.table == "points":
        return None
    said: dict[str, str] = {}
    for line in plot.series:
        columns = tables[line.table or plot.table]
        values = [_only(columns.get(name, ())) for name in (line.column, line.low, line.high) if name]
        if None in values:
            return None
        said[line.name] = " to ".join(dict.fromkeys(filter(None, values)))
    unit = "" if plot.unit in _PLAIN or "share" in plot.unit else f" {plot.unit}"
    if len({*said.values()}) == 1:
        return f"{plot.title}: {next(iter(said.values()))}{unit}"
    return f"{plot.title}: {', '.join(f'{name} {value}' for name, value in said.items())}{unit}"


def _only(values: Sequence[Number]) -> str | None:
    """Write the one number that a column has, to three digits; None if it has several, or few."""
    known = [value for value in values if value is not None]
    written = {f"{value:.3g}" for value in known}
    return written.pop() if len(known) >= ENOUGH and len(written) == 1 else None
