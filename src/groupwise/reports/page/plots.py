"""The catalog of pictures, pictures.toml, and which of them a run has the numbers for.

A series whose column has a star in it stands for every column that fits: "rewards.*.mean" becomes one line per reward,
and the star in its name becomes what the star of the column stood for.
"""

import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

from groupwise.reports.page.keys import keys_of
from groupwise.reports.records import Mark, Number, Plot, Section, Series

Columns = Mapping[str, Sequence[Number]]

DASHES = ("solid", "dash", "dot", "dashdot", "longdash")

SECTIONS = (
    Section(
        "learned", "Did it learn?", "How well the policy does, on problems it trains on and on problems it never sees."
    ),
    Section("healthy", "Is it healthy?", "Signs that training is sound, and the first signs when it is not."),
    Section("cost", "What did it cost?", "Where the time and the memory went."),
    Section("writes", "What does the policy write?", "Prompts with their groups of completions, token by token."),
    Section("ran", "What was run?", "The algorithm, the recipe as it was resolved, and the machine."),
)

#: The phases of a step in their order; what is left over is last.
PHASES = {"generate": 0, "score": 1, "annotate": 2, "update": 3, "other": 6}

#: Counts of trouble: a flat line at 0 says nothing, so where every number is 0 there is no picture.
LEFT_OUT_AT_ZERO = frozenset({"groups-fate", "stale", "age", "going-on", "restarts", "unscored", "routing-dead"})

#: The column without which a plot would only repeat what every run has.
NEEDED = {"reward-model": "learned_mean"}

#: The column beside which a plot would say the same again.
REPEATED = {"measured": "pass_rate", "sources-measured": "pass_rate", "signal": "groups_mixed_share"}


#: Numbers that a line needs before it is said to stand still, or to be equal to another.
ENOUGH = 3


def _plot(section: str, id: str, entry: Mapping[str, Any]) -> Plot:
    """Make a picture of its entry in the file; an upper end that is not there is open."""
    dashes = iter(DASHES)
    drawn = [next(dashes) if "*" not in each.get("column", "*") else "solid" for each in entry["series"]]
    made = {
        "series": tuple(Series(**each, dash=dash) for each, dash in zip(entry["series"], drawn, strict=True)),
        "marks": tuple(Mark(**mark) for mark in entry.get("marks", ())),
        **{ends: (*entry.get(ends, ()), None, None)[:2] for ends in ("limits", "reach")},
    }
    return Plot(**{**entry, **made}, id=id, section=section)


_CATALOG = tomllib.loads(files("groupwise.reports.page").joinpath("pictures.toml").read_text(encoding="utf-8"))

#: The pictures in the order of the file.
PLOTS = tuple(_plot(section, id, picture) for section, pictures in _CATALOG.items() for id, picture in pictures.items())


def plots_for(step_columns: Columns, evaluation_columns: Columns, points: Collection[str]) -> tuple[Plot, ...]:
    """Choose the plots that these columns have numbers for, with every star filled in.

    points   ids of the plots that have a table of points

    >>> [plot.id for plot in plots_for({"pass_rate": [0.5], "seconds.generate": [1]}, {}, [])]
    ['pass-rate', 'seconds']
    >>> plots_for({"entropy_mean": [None, None]}, {}, [])
    ()
    """
    tables = {
        name: {column: values for column, values in columns.items() if any(value is not None for value in values)}
        for name, columns in (("steps", step_columns), ("evaluations", evaluation_columns))
    }
    filled = (_filled(plot, tables, points) for plot in PLOTS)
    return tuple(plot for plot in filled if plot.series)


def static_columns() -> frozenset[str]:
    """Name every column of steps and evaluations that the catalog has, stars included.

    >>> "entropy_mean" in static_columns(), "rewards.*.mean" in static_columns()
    (True, True)
    """
    drawn = [series for plot in PLOTS if plot.kind != "points" for series in plot.series]
    return frozenset(name for series in drawn for name in (series.column, series.low, series.high) if name)


@cache
def limits(column: str) -> tuple[Number, Number]:
    """Tell the ends of a column's picture, low and high; None if it is open.

    >>> limits("pass_rate"), limits("sources.gcd.pass_rate"), limits("entropy_mean")
    ((0, 1), (0, 1), (None, None))
    """
    bounded = [(plot.limits, series.column) for plot in PLOTS if plot.limits != (None, None) for series in plot.series]
    fitting = (ends for ends, name in bounded if column == name or ("*" in name and _star(column, *name.split("*"))))
    return next(fitting, (None, None))


def _filled(plot: Plot, tables: Mapping[str, Columns], points: Collection[str]) -> Plot:
    if plot.kind == "points":
        return plot if plot.id in points else replace(plot, series=())
    columns = tables[plot.table]
    lacking = plot.id in NEEDED and NEEDED[plot.id] not in columns
    if lacking or REPEATED.get(plot.id) in tables["steps"]:
        return replace(plot, series=())
    lines = [one for series in plot.series for one in _expanded(series, tables[series.table or plot.table])]
    keys = keys_of(lines, plot.table)
    if plot.id in LEFT_OUT_AT_ZERO and not any(any(columns[line.column]) for line in lines):
        return replace(plot, series=())
    drawn = lines if plot.kind == "stack" else _once(lines, plot.table, tables)
    return replace(plot, series=tuple(_distinct(drawn)), keys=keys)


def _once(lines: Sequence[Series], table: str, tables: Mapping[str, Columns]) -> list[Series]:
    """Draw lines that have the same numbers as one, by both names: "score = reward"."""
    drawn: dict[str, Series] = {}
    for line in lines:
        place = line.table or table
        numbers = tables[place].get(line.column, ()) if not line.low else ()
        name = f"{place} {numbers}" if len(numbers) - list(numbers).count(None) >= ENOUGH else line.name
        first = drawn.setdefault(name, line)
        drawn[name] = first if first is line else replace(first, name=f"{first.name} = {line.name}")
    return list(drawn.values())


def _expanded(series: Series, columns: Columns) -> Iterator[Series]:
    has_band = series.low in columns and series.high in columns
    if not series.column:
        yield from [series] if has_band else []
    elif "*" in series.column:
        before, after = series.column.split("*")
        names = {column: name for column in columns if (name := _star(column, before, after))}
        for column in sorted(names, key=lambda column: PHASES.get(names[column], len(PHASES))):
            yield replace(series, name=series.name.replace("*", names[column]), column=column)
    elif series.column in columns:
        yield series if has_band else replace(series, low="", high="")


def _star(column: str, before: str, after: str) -> str:
    """Find what the star stood for, "" if the column does not fit.

    >>> _star("sources.gsm8k.main.pass_rate", "sources.", ".pass_rate")
    'gsm8k.main'
    """
    fits = column.startswith(before) and column.endswith(after) and len(column) > len(before) + len(after)
    return column[len(before) : len(column) - len(after)] if fits else ""


def _distinct(series: Sequence[Series]) -> Iterator[Series]:
    """Give no two lines of a plot the same dash, as long as the dashes last."""
    taken: list[str] = []
    for one in series:
        if not one.column:
            yield one
            continue
        free = [dash for dash in DASHES if taken.count(dash) == min(map(taken.count, DASHES))]
        taken.append(one.dash if one.dash in free else free[0])
        yield replace(one, dash=taken[-1])
