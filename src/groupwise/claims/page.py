"""Page of the claims in HTML, with a plot for each claim that has a figure."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean
from typing import Any

from groupwise.claims.claim import Claim, Figure, Place, Quantity
from groupwise.claims.measurements import Measurements, Outcome, Verdict
from groupwise.reports.page.page import now
from groupwise.reports.records import Curves, Mark, Number, Page, Plot, RunPage, Section, Series, Status, Table

TITLE = "Published claims, tested"
#: The articles by the names that sources have.
ARTICLES: Mapping[str, str] = {
    "S0": "From GRPO to DAPO and GSPO: What, Why and How? (a blog, English and Chinese)",
    "S1": "Policy Optimization without a Critic: The GRPO Family (a blog)",
    "S2": "Unraveling PPO Variants: From GRPO to DAPO and GSPO (Data Party THU)",
    "S3": "RL derived: PPO, GRPO, DAPO, GSPO, SAPO (zhuanlan.zhihu.com/p/1986141224588027138)",
    "S4": "notes on GSPO's paper (zhuanlan.zhihu.com/p/1932894729042917355)",
}


def counted(verdicts: Collection[Verdict]) -> str:
    """Count each outcome.

    >>> counted([Verdict(Outcome.HOLDS, ""), Verdict(Outcome.FAILS, ""), Verdict(Outcome.HOLDS, "")])
    '3 claims: holds 2, does not hold 1'
    """
    count = Counter(verdict.outcome for verdict in verdicts)
    order = (Outcome.HOLDS, Outcome.FAILS, Outcome.UNDECIDED, Outcome.NOT_MEASURED)
    return f"{len(verdicts)} claims: " + ", ".join(f"{each.value} {count[each]}" for each in order if count[each])


def cells(quantity: Quantity, measurements: Measurements) -> tuple[str, str, str, str]:
    """Write out a number of a claim's table: what it is, its mean over seeds, the interval, and how many seeds."""
    values = measurements.numbers(quantity.experiment.name, quantity.name)
    if not values:
        return quantity.words, "not measured", "", "0"
    interval = measurements.interval_of(values)
    around = f"{interval.low:.4g} to {interval.high:.4g}" if interval else ""
    return quantity.words, f"{fmean(values.values()):.4g}", around, str(len(values))


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
        sections=(
            *(
                Section(c.name, c.title, f"{verdicts[c.name]} ({c.source})", short=c.name)
                for c in claims
                if c.name in drawn
            ),
            NUMBERS,
        ),
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
        f"{claim.argument} Expected: {claim.expected} Rule: {claim.rule} Rows: "
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
