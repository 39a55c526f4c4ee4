"""An algorithm in words: its equation, its parts with their values, its paper, what to watch; and what differs.

docs/algorithms.md is made here from the same rows: python -m groupwise.explain > docs/algorithms.md
"""

from __future__ import annotations

from collections.abc import Iterator

from groupwise.algo import Algorithm
from groupwise.catalog import CATALOG, algorithm, describe

OBJECTIVE = "J = sum over tokens of  w (c S - beta KL + h H)      maximised; the loss is -J"
NOTATION = """\
Notation: completion i of a group of G for one prompt, token t; r_t = pi_live / pi_old of that token; A advantage; N
completions of the optimizer batch; |o_i| trained tokens; sg[] is a stop-gradient; all log-probabilities in nats."""


def explain(name: str, settings: dict[str, object] | None = None) -> str:
    """One algorithm, for a terminal. Raises UsageError where there is none of that name."""
    row = algorithm(name, settings)
    return "\n".join([*_head(row), "", *_table(_lines(row)), "", f"watch  {row.watch}"])


def compare(name: str, other: str) -> str:
    """What differs between two algorithms, slot by slot."""
    left, right = algorithm(name), algorithm(other)
    differ = [
        (slot, side, told, equation)
        for a, b in zip(_lines(left), _lines(right), strict=True)
        if a != b
        for slot, side, told, equation in ((a[0], left.name, *a[1:]), ("", right.name, *b[1:]))
    ]
    same = [a[0] for a, b in zip(_lines(left), _lines(right), strict=True) if a == b]
    table = _table(differ) if differ else ["nothing: the two rows are the same"]
    return "\n".join([f"{left.name} against {right.name}: what differs", "", *table, "", f"same   {', '.join(same)}"])


def page() -> str:
    """docs/algorithms.md."""
    return "\n".join(_page()) + "\n"


def _page() -> Iterator[str]:
    yield "# The algorithms, each a row of parts"
    yield ""
    yield "Made from the catalog by `make docs`; `groupwise explain NAME` prints one of them, and"
    yield "`groupwise explain NAME --against OTHER` what differs between two."
    yield ""
    yield f"    {OBJECTIVE}"
    yield ""
    yield NOTATION
    for name in CATALOG:
        row = algorithm(name)
        yield ""
        yield f"## {name}"
        yield ""
        yield f"{row.summary} {_source(row)}"
        yield ""
        yield "| slot | part | equation |"
        yield "|---|---|---|"
        for slot, told, equation in _lines(row):
            yield f"| {slot} | `{told}` | {_cell(equation)} |"
        yield ""
        yield f"Watch: {row.watch}"


def _head(row: Algorithm) -> list[str]:
    return [f"{row.name}: {row.summary}", f"paper  {row.paper}", "", OBJECTIVE, NOTATION]


def _lines(row: Algorithm) -> list[tuple[str, str, str]]:
    """(slot, part with its values, its equation), in the order that data passes them; then what is not a part."""
    lines = [(slot, describe(part), _equation(part)) for slot, part in row.parts.items()]
    passes = (f"{row.passes}", "passes over a batch unless the recipe says otherwise")
    bonus = (f"{row.entropy_coefficient:g}", "h, the weight of the entropy H" if row.entropy_coefficient else "no bonus")
    return [*lines, ("entropy", *bonus), ("passes", *passes)]


def _equation(part: object) -> str:
    return str(getattr(part, "equation"))  # noqa: B009  every part has one; a missing one is an error in the tests


def _source(row: Algorithm) -> str:
    return f"Source: {row.paper}."


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _table(lines: list[tuple[str, ...]]) -> list[str]:
    """Columns as wide as their longest entry; the last one is free."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]) - 1)]
    return ["  ".join([*(t.ljust(w) for t, w in zip(line, widths, strict=False)), line[-1]]) for line in lines]


if __name__ == "__main__":
    print(page(), end="")
