"""Pages of the claims in Markdown: an overview, and a page for each claim."""

import re
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby
from statistics import fmean

from groupwise.claims.claim import Claim, Quantity
from groupwise.claims.measurements import Measurements, Outcome, Verdict
from groupwise.claims.page import ARTICLES, TITLE, counted

#: First line of the overview; no other file is written over.
HEADING = f"# {TITLE}"
#: Folder of the claims' own pages, beside the overview.
PAGES = "claims"
#: Characters of a line outside of tables.
WIDTH = 110
#: So many runs at most are columns of a table; more are its lines.
COLUMNS = 4
#: Half of an interval, if less, is not written.
ROUNDING = 1e-9


def overview(subjects: Mapping[str, Sequence[Claim]], measurements: Measurements, rows: str) -> str:
    """Write the overview; `rows` is the link to the file that each verdict is read from."""
    verdicts = {claim.name: claim.verdict(measurements) for each in subjects.values() for claim in each}
    blocks = [HEADING, *_introduction(verdicts.values(), rows)]
    for subject, claims in subjects.items():
        lines = ["| claim | verdict |", "|---|---|"]
        for claim in claims:
            title, outcome = in_cell(claim.title), _short(verdicts[claim.name].outcome)
            lines.append(f"| [{title}]({PAGES}/{claim.name}.md) | {outcome} |")
        blocks += [f"## {subject}", "\n".join(lines)]
    blocks += ["## Articles", "\n".join(f"- {name}: {words}" for name, words in ARTICLES.items())]
    return "\n\n".join(blocks) + "\n"


def _introduction(verdicts: Collection[Verdict], rows: str) -> Iterator[str]:
    yield _wrapped(
        "What papers and blogs say about GRPO, DAPO, GSPO, and SAPO, each statement with an experiment and a verdict. "
        f"{counted(verdicts)}."
    )
    yield (
        "    groupwise claims --list\n"
        "    groupwise claims --quick                    # mathematics and toy policies: a minute or two\n"
        "    groupwise claims --standard --at-once 2     # also training runs with three seeds, two at a time\n"
        "    groupwise claims --full --at-once 2         # five seeds; a stopped command resumes"
    )
    yield (
        "- **holds**: the whole 95 % interval over seeds meets the rule, or an exact value does.\n"
        "- **does not hold**: the whole interval breaks the rule, or one of several parts does.\n"
        "- **cannot be told** at this size: the interval includes the rule's bound."
    )
    yield _wrapped(
        "Rules are fixed in code (`groupwise.claims.articles`). A verdict is about the statement as written, at the "
        "size measured here: exact mathematics, toy policies, and tiny models. If a statement has several parts, its "
        f"page lists them. Mean held-out pass rates are over evaluations. Rows are in [{_name(rows)}]({rows})."
    )


def claim_page(claim: Claim, measurements: Measurements, rows: str) -> str:
    """Write a claim's page: the statement, its source, verdict, rule, numbers, rows, and command."""
    verdict = claim.verdict(measurements)
    mixed = len({part.outcome for part in verdict.parts}) > 1
    reason = "" if mixed else f" {verdict.because[:1].upper()}{verdict.because[1:]}."
    blocks = [heading(claim), f"**{claim.title}**", f"Source: {_linked(claim.source)}."]
    blocks.append(f"Verdict: **{verdict.outcome.value}**.{reason}")
    blocks += ["\n".join(_wrapped(f"- {_short(part.outcome)}: {part.because}") for part in verdict.parts)] * mixed
    blocks += [f"Rule: {claim.rule}", f"Why: {claim.argument}"]
    blocks += [f"Expected: {claim.expected}"] * (not _as_expected(claim, verdict))
    lines = [block if block.startswith("- ") else _wrapped(block) for block in blocks]
    lines += _tables(claim.quantities, measurements)
    lines += [_wrapped(f"Rows: {_lines_of(claim, measurements)} of [{_name(rows)}]({rows})."), f"    {claim.command}"]
    return "\n\n".join(lines) + "\n"


def heading(claim: Claim) -> str:
    """Write the first line of a claim's page; no other file is written over."""
    return f"# {claim.name}"


def _as_expected(claim: Claim, verdict: Verdict) -> bool:
    return claim.expected.lower().startswith(_short(verdict.outcome))


def _short(outcome: Outcome) -> str:
    return outcome.value.removesuffix(" at this size")


def _linked(source: str) -> str:
    """Link the articles that a source names to their list."""
    return re.sub(r"\bS\d\b", lambda name: f"[{name[0]}](../{PAGES}.md#articles)", source)


def _name(rows: str) -> str:
    return rows.rpartition("/")[2]


def _wrapped(words: str) -> str:
    indent = "  " if words.startswith("- ") else ""
    return textwrap.fill(words, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def in_cell(words: str) -> str:
    """Escape words that stand in a table of Markdown.

    >>> print(in_cell("KL(live || reference)"))
    KL(live \\|\\| reference)
    """
    return words.replace("|", "\\|")


def _lines_of(claim: Claim, measurements: Measurements) -> str:
    """List the lines of the rows that the verdict is read from, one after the other as a range."""
    rows = [row for experiment in claim.experiments for row in measurements.of(experiment.name).values()]
    ordered = enumerate(sorted(row.line for row in rows))
    runs = [[line for _, line in each] for _, each in groupby(ordered, lambda pair: pair[1] - pair[0])]
    ranges = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"{'lines' if len(rows) > 1 else 'line'} {ranges}" if rows else "none yet"


def _tables(quantities: Sequence[Quantity], measurements: Measurements) -> Iterator[str]:
    """Make the tables of a claim: one of its numbers, and one of those beside them."""
    by_what = [list(each) for _, each in groupby(quantities, lambda quantity: quantity.what)]
    for _, block in groupby(by_what, lambda each: tuple(quantity.run for quantity in each)):
        yield _table(list(block), measurements)


def _table(numbers: Sequence[Sequence[Quantity]], measurements: Measurements) -> str:
    """Make a table of numbers, each of the same runs: a line for each number, or for each run if there are many."""
    counts = [len(measurements.of(each.experiment.name)) for each in numbers[0]]
    alike = len(set(counts)) == 1
    runs = [f"{in_cell(q.run) or 'mean'}{'' if alike else _seeds(n)}" for q, n in zip(numbers[0], counts, strict=True)]
    names = [in_cell(each[0].what) for each in numbers]
    cells = [[cell(quantity, measurements) for quantity in each] for each in numbers]
    if len(runs) > COLUMNS:
        runs, names, cells = names, runs, [list(column) for column in zip(*cells, strict=True)]
    lines = [f"| {' | '.join([f'measured{_seeds(counts[0]) * alike}', *runs])} |", "|---" * (len(runs) + 1) + "|"]
    lines += [f"| {' | '.join([name, *values])} |" for name, values in zip(names, cells, strict=True)]
    return "\n".join(lines)


def _seeds(count: int) -> str:
    return f" ({count} seeds)" if count > 1 else ""


def cell(quantity: Quantity, measurements: Measurements) -> str:
    """Write a number's mean over seeds, and half of its 95 % interval; seeds that lack the number are left out."""
    values = measurements.numbers(quantity.experiment.name, quantity.name)
    if not values:
        return "not measured"
    interval, mean = measurements.interval_of(values), fmean(values.values())
    around = (
        f" ± {digits((interval.high - interval.low) / 2, 2)}"
        if interval and interval.high - interval.low > ROUNDING
        else ""
    )
    lacking = "" if len(values) == len(measurements.of(quantity.experiment.name)) else _seeds(len(values))
    return f"{digits(mean, 4)}{around}{lacking}"


def digits(number: float, count: int) -> str:
    """Round a number to so many digits, without an exponent where that is short.

    >>> digits(537612.0, 4), digits(0.041234, 2), digits(3.2e-16, 2)
    ('537,600', '0.041', '3.2e-16')
    """
    rounded = f"{number:.{count}g}"
    if abs(number) < 1e-6 or "e" not in rounded:
        return rounded
    return f"{float(rounded):,.0f}" if abs(number) >= 1 else f"{float(rounded):f}".rstrip("0")
