"""The claims as one HTML page: a table of verdicts, a plot for each claim that has a figure, and all numbers."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from groupwise.claims.claim import Claim, Figure, Place
from groupwise.claims.measurements import Measurements
from groupwise.claims.page import ARTICLES, cells, counted
from groupwise.claims.verdict import Verdict
from groupwise.reports.page.page import now
from groupwise.reports.records import Curves, Mark, Number, Page, Plot, RunPage, Section, Series, Status, Table

TITLE = "What the articles say, measured"
#: The section that a page gives a run's tables.
NUMBERS = Section("ran", "All numbers", "Means over seeds, with 95 % intervals.")


def report(claims: Sequence[Claim], measurements: Measurements, rows: str) -> Page:
    """Make the page, without figures of which nothing was measured. `rows` is the file that verdicts are read from."""
    verdicts = {claim.name: claim.verdict(measurements) for claim in claims}
    drawn = {claim.name: curves for claim in claims if claim.figure and (curves := _curves(claim.figure, measurements))}
    figures = {claim.name: claim.figure for claim in claims if claim.figure and claim.name in drawn}
    return Page(
        title=TITLE,
        written=now(),
        sections=(*(_section(c, verdicts[c.name]) for c in claims if c.name in drawn), NUMBERS),
        plots=tuple(_plot(name, figure, drawn[name]) for name, figure in figures.items()),
        runs=(
            RunPage(
                id="claims",
                label=TITLE,
                status=Status("finished", counted(verdicts.values())),
                points=drawn,
                tables=tuple(_numbers(claim, verdicts[claim.name], measurements, rows) for claim in claims),
            ),
        ),
        tables=(_verdicts(claims, verdicts),),
    )


def _section(claim: Claim, verdict: Verdict) -> Section:
    return Section(claim.name, claim.title, f"{verdict} ({claim.source})", short=claim.name)


def _verdicts(claims: Sequence[Claim], verdicts: dict[str, Verdict]) -> Table:
    rows = tuple((c.title, verdicts[c.name].outcome.value, verdicts[c.name].because) for c in claims)
    words = ". ".join(f"{name}: {article}" for name, article in ARTICLES.items())
    return Table("Verdicts", ("claim", "verdict", "because"), rows, words=words)


def _numbers(claim: Claim, verdict: Verdict, measurements: Measurements, file: str) -> Table:
    head = ("measured", "mean", "95 % interval", "seeds")
    rows = tuple(cells(quantity, measurements) for quantity in claim.quantities)
    lines = (row.line for experiment in claim.experiments for row in measurements.of(experiment.name).values())
    where = ", ".join(map(str, sorted(lines)))
    words = (
        f"{claim.argument} Expected: {claim.expected} Holds where: {claim.rule} Rows: "
        f"{f'lines {where} of {file}' if where else 'none yet'}. One seed again: {claim.command}"
    )
    return Table(f"{claim.name}: {verdict.outcome.value}", head, rows, words, numbers=(1, 2, 3))


def _plot(name: str, figure: Figure, curves: Curves) -> Plot:
    lines = [line for line in figure.lines if line.words in curves.columns]
    (across, up), (log_across, log_up) = figure.axes, figure.log
    return Plot(
        id=name,
        section=name,
        title=figure.title,
        hint=figure.hint,
        unit=up,
        series=tuple(Series(line.words, line.words, f"{line.words}.low", f"{line.words}.high") for line in lines),
        table="points",
        log=log_up,
        marks=tuple(Mark(at, words) for at, words in figure.marks),
        across=across,
        log_across=log_across,
    )


def _curves(figure: Figure, measurements: Measurements) -> Curves | None:
    """Make columns of every line that was measured, mean and interval at each place; None if none was."""
    columns: dict[str, list[Number]] = {}
    for line in figure.lines:
        if all(measurements.of(experiment) for experiment in line.experiments):
            columns |= _columns(line.words, line.places(measurements))
    if not columns:
        return None
    count = max(map(len, columns.values()))
    places: Any = list(figure.at) or list(range(1, count + 1))
    return Curves(places, {name: [*column, *[None] * (count - len(column))] for name, column in columns.items()})


def _columns(words: str, places: Sequence[Place]) -> dict[str, list[Number]]:
    means: list[Number] = [fmean(values.values()) if values else None for values in places]
    around = [Measurements.interval_of(values) for values in places]
    if not any(around):
        return {words: means}
    return {
        words: means,
        f"{words}.low": [interval and interval.low for interval in around],
        f"{words}.high": [interval and interval.high for interval in around],
    }
