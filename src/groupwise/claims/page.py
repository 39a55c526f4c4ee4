"""The claims as one page of Markdown: a table of verdicts, then each claim with its numbers and the command."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from groupwise.claims.claim import Claim, Quantity
from groupwise.claims.measurements import Measurements
from groupwise.claims.verdict import Outcome, Verdict

#: The page's first line; no other file is written over.
TITLE = "# What the articles say, measured"
#: The articles by the names that sources have.
ARTICLES: Mapping[str, str] = {
    "S0": "From GRPO to DAPO and GSPO: What, Why and How? (a blog, English and Chinese)",
    "S1": "Policy Optimization without a Critic: The GRPO Family (a blog)",
    "S2": "Unraveling PPO Variants: From GRPO to DAPO and GSPO (Data Party THU)",
    "S3": "RL derived: PPO, GRPO, DAPO, GSPO, SAPO (zhuanlan.zhihu.com/p/1986141224588027138)",
    "S4": "notes on GSPO's paper (zhuanlan.zhihu.com/p/1932894729042917355)",
}


def markdown(claims: Sequence[Claim], measurements: Measurements, rows: str) -> str:
    """The page; `rows` is where the file is that each verdict is read from, as a link."""
    verdicts = {claim.name: claim.verdict(measurements) for claim in claims}
    lines = [TITLE, "", *_introduction(verdicts.values(), rows)]
    lines += ["", "| claim | verdict |", "|---|---|"]
    lines += [f"| [{claim.title}](#{claim.name}) | {verdicts[claim.name].outcome.value} |" for claim in claims]
    for claim in claims:
        lines += ["", *_section(claim, verdicts[claim.name], measurements, rows)]
    return "\n".join(lines) + "\n"


def counted(verdicts: Collection[Verdict]) -> str:
    """How many of each outcome.

    >>> counted([Verdict(Outcome.HOLDS, ""), Verdict(Outcome.FAILS, ""), Verdict(Outcome.HOLDS, "")])
    '3 claims: holds 2, does not hold 1'
    """
    count = Counter(verdict.outcome for verdict in verdicts)
    order = (Outcome.HOLDS, Outcome.FAILS, Outcome.UNDECIDED, Outcome.NOT_MEASURED)
    return f"{len(verdicts)} claims: " + ", ".join(f"{each.value} {count[each]}" for each in order if count[each])


def _introduction(verdicts: Collection[Verdict], rows: str) -> Iterator[str]:
    yield (
        "Each statement is a small experiment: what is claimed and where, what was expected, what was measured, and a "
        "verdict by a rule that is fixed in code (`groupwise.claims.articles`). A verdict is about the statement as it "
        "stands there, at the size measured here; one that does not hold may have a half that does, which its section "
        "says."
    )
    yield ""
    yield f"{counted(verdicts)}. The rows are in [{rows.rpartition('/')[2]}]({rows}); this page is made from them:"
    yield ""
    yield "    groupwise claims --list"
    yield "    groupwise claims --quick        # mathematics and toys, minutes"
    yield "    groupwise claims --standard     # training runs as well, on three seeds"
    yield ""
    yield from (f"- {name}: {words}" for name, words in ARTICLES.items())


def _section(claim: Claim, verdict: Verdict, measurements: Measurements, rows: str) -> Iterator[str]:
    yield f"## {claim.name}"
    yield ""
    yield f"**{claim.title}**"
    yield ""
    yield f"Source: {claim.source}."
    yield ""
    yield f"Why: {claim.argument}"
    yield ""
    yield f"Expected: {claim.expected}"
    yield ""
    yield f"**{verdict.outcome.value}**: {verdict.because}."
    if len({part.outcome for part in verdict.parts}) > 1:
        yield ""
        yield from (f"- {part}" for part in verdict.parts)
    yield ""
    yield "| measured | mean | 95 % interval | seeds |"
    yield "|---|---|---|---|"
    yield from (f"| {' | '.join(cells(quantity, measurements))} |" for quantity in claim.quantities)
    yield ""
    names = ", ".join(f"`{experiment.name}`" for experiment in claim.experiments)
    yield f"Rows: {names} in [{rows.rpartition('/')[2]}]({rows}). One seed again:"
    yield ""
    yield f"    groupwise claims --only {claim.name} --{claim.effort.words} --seed 0"


def cells(quantity: Quantity, measurements: Measurements) -> tuple[str, str, str, str]:
    """A number of a claim's table: what it is, the mean over seeds, the interval around it, and how many seeds."""
    values = measurements.values(quantity.experiment, quantity.name)
    if not values:
        return quantity.words, "not measured", "", "0"
    interval = measurements.interval(quantity.experiment, quantity.name)
    around = f"{interval.low:.4g} to {interval.high:.4g}" if interval else ""
    return quantity.words, f"{measurements.mean(quantity.experiment, quantity.name):.4g}", around, str(len(values))
