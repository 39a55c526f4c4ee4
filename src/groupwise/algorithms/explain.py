"""An algorithm in words: its equation, its parts with their values, its paper, what to watch; and what differs.

docs/reference/algorithms.md is made here from the same rows (`make docs`).
"""

import dataclasses
import json
import re
import textwrap
from collections.abc import Mapping

from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.catalog import CATALOG
from groupwise.algorithms.parts import Part
from groupwise.algorithms.settings import algorithm, describe
from groupwise.core.code.user_code import NO_FILES, Files

NOTATION = """\
Notation: completion i of a group of G for one prompt, token t; r_t = pi_live / pi_old of that token; A advantage; N
completions of the optimizer batch; |o_i| trained tokens; sg[] is a stop-gradient; all log-probabilities in nats."""

PAGE = """\
# The algorithms, each a row of parts

Made from the catalog by `make docs`; `groupwise explain NAME` prints one of them, and
`groupwise explain NAME --against OTHER` what differs between two. A part of your own, from a file, goes into any slot
([adding-an-algorithm.md](../howto/adding-an-algorithm.md)).

{overview}

{notation}
"""
#: Characters of a line of the page.
WIDTH = 110
SECTION = """
## {row.name}

{row.summary} Source: {row.paper}.

    {objective}

| slot | part | equation |
|---|---|---|
{table}

Watch: {row.watch}
{dialects}"""


def explain(name: str, settings: Mapping[str, object] | None = None, files: Files = NO_FILES) -> str:
    """Explain one algorithm, for a terminal. Raises UsageError if there is none of that name."""
    row = algorithm(name, settings, files)
    head = [row.summary, f"Source: {row.paper}.", "", objective(row), "", NOTATION]
    others = [f"with the constants of {who}: {what}" for who, what in dialects(row)]
    return "\n".join([*head, "", *_table(lines(row)), "", f"watch      {row.watch}", *others])


def dialects(row: Algorithm) -> list[tuple[str, str]]:
    """List (framework, the keys that it sets otherwise, as a recipe has them, and a word on them)."""
    said = []
    for one in row.dialects:
        keys = ", ".join(f"algorithm.{key} = {json.dumps(value)}" for key, value in one.settings)
        said.append((one.of, "; ".join(filter(None, (keys, one.words)))))
    return said


def family() -> str:
    """List the algorithms of the catalog, a line each."""
    width = max(map(len, CATALOG))
    return "\n".join(f"{name:<{width}}  {row.summary}" for name, row in CATALOG.items())


def compare(name: str, other: str) -> str:
    """Compare two algorithms, slot by slot."""
    left, right = algorithm(name), algorithm(other)
    pairs = list(zip(lines(left), lines(right), strict=True))  # no row of the catalog has a likelihood term
    different: list[str] = []
    for a, b in pairs:
        if a != b:
            different += ["", a[0], *_table([(f"  {left.name}", a[1], a[2]), (f"  {right.name}", b[1], b[2])])]
    same = [a[0] for a, b in pairs if a == b]
    body = different or ["", "nothing: the two rows are the same"]
    return "\n".join([f"{left.name} against {right.name}: what differs", *body, "", f"the same: {', '.join(same)}"])


def page() -> str:
    """Make docs/reference/algorithms.md."""
    sections = []
    for row in CATALOG.values():
        said = [line for line in lines(row) if line[:2] not in (("entropy", "0"), ("passes", "1"))]
        cells = [(slot, f"`{part}`", equation.replace("|", "\\|")) for slot, part, equation in said]
        table = "\n".join(f"| {' | '.join(line)} |" for line in cells)
        others = "".join(f"\nWith the constants of {who}: {what}.\n" for who, what in dialects(row))
        sections.append(SECTION.format(row=row, objective=objective(row), table=table, dialects=others))
    return wrapped(PAGE.format(overview=overview(), notation=NOTATION) + "".join(sections))


def wrapped(text: str) -> str:
    """Break the lines of Markdown after 110 characters, but rows of tables; a line of code goes on further in."""
    out: list[str] = []
    for line in text.split("\n"):
        inside = " " * (len(line) - len(line.lstrip()))
        short = len(line) <= WIDTH or line.startswith("|")
        further = inside + "    " if inside else ""
        out += (
            [line]
            if short
            else textwrap.wrap(line, WIDTH, subsequent_indent=further, break_long_words=False, break_on_hyphens=False)
        )
    return "\n".join(out)


def objective(row: Algorithm) -> str:
    """Write the objective of a row, its parts put in: the loss is its negative."""
    factors = {"c": row.mismatch, "a": row.rejection}
    correction = "".join(f"{name} " for name, part in factors.items() if _value(part) != "1")
    ratio = row.ratio.equation.partition(" = ")[0].removeprefix("log ")
    surrogate = re.sub(r"\br\b", ratio, _value(row.trust))
    inner = f"{correction}({surrogate})" if correction else surrogate
    penalty = f" - {row.kl.beta:g} KL" if row.kl.in_loss else ""
    bonus = f" + {row.entropy_coefficient:g} H" if row.entropy_coefficient else ""
    mu = row.likelihood_coefficient
    right = f" + {mu:g} (mean log pi_live over tokens of right completions)" if mu else ""
    return f"J = sum_it {_value(row.aggregate)} [ {inner}{penalty}{bonus} ]{right}"


def _value(part: Part) -> str:
    """Take the right side of a part's equation, with the numbers of the part's fields, without its definitions."""
    text = (part.equation.partition(" = ")[2] or part.equation).partition(",  ")[0]
    for name, value in vars(part).items():
        words = str(value) if isinstance(value, str) else f"{value:g}"
        text = re.sub(rf"\b{name}\b", words.replace("\\", "\\\\"), text)
    return text


def overview() -> str:
    """Make one Markdown table of the catalog."""
    slots = ("shaping", "filter", "advantage", "ratio", "trust", "kl", "aggregate")
    head = ["| name | paper | " + " | ".join(slots) + " |", "|---" * (2 + len(slots)) + "|"]
    rows = CATALOG.values()
    cells = [[row.name, row.paper.rpartition(", ")[2], *(_short(slot, row) for slot in slots)] for row in rows]
    return "\n".join([*head, *(f"| {' | '.join(line)} |" for line in cells)])


def _short(slot: str, row: Algorithm) -> str:
    """Name a part by its kind and the values that are not defaults; an empty cell if the part does nothing."""
    part = row.parts[slot]
    if slot == "kl":
        return describe(part).replace("beta=", "") if row.kl.beta else ""
    kind = describe(part).partition("(")[0]
    fields = [(f.name, getattr(part, f.name), f.default) for f in dataclasses.fields(part)]  # type: ignore[arg-type]
    shown = [(name, value) for name, value, default in fields if value != default or (slot == "trust" and value)]
    values = [
        name if value is True else f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in shown
    ]
    if kind == "none" or (slot == "shaping" and kind == "outcome" and not values):
        return ""
    return f"{kind} ({', '.join(values)})" if values else kind


def lines(row: Algorithm) -> list[tuple[str, str, str]]:
    """List (slot, part with its values, its equation) in the order that data passes them, then what is no part."""
    parts = [(slot, describe(part), part.equation) for slot, part in row.parts.items()]
    passes = "passes over a batch unless the recipe says otherwise"
    bonus = "h, the weight of the entropy H" if row.entropy_coefficient else "no bonus"
    others = [("entropy", f"{row.entropy_coefficient:g}", bonus), ("passes", f"{row.passes}", passes)]
    if mu := row.likelihood_coefficient:
        others.append(("likelihood", f"{mu:g}", "mu, the weight of log pi_live on completions with a score above 0"))
    return [*parts, *others]


def _table(lines: list[tuple[str, str, str]]) -> list[str]:
    width = max(10, *(len(name) + 1 for name, _, _ in lines))
    return [row for name, part, equation in lines for row in (f"{name:<{width}} {part}", f"{'':<{width}} {equation}")]
