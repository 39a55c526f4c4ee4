"""Page of the tables: classes that work, the others by reason, and parts of other models, from their trials."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

if __package__:
    from .kinds import OTHERS
else:
    from kinds import OTHERS

Row = Mapping[str, Any]

#: Line of the page below which all is written anew.
MARK = "<!-- written by make models -->"
#: Pattern of what a trial prints -> the reason on the page; the first that is found counts.
REASONS = {
    r"cannot sample": "local engine: not even whole texts have the model's own logits",
    r"cannot be trained": "its backward does not run in evaluation mode",
    r"computes other logits of a text than": "the text model alone gives other logits",
    r"depend on the tokens behind it": "reads text in both directions",
    r"changes its logits before or after": "changes logits outside of the output head: `groupwise eval` only",
    r"Unrecognized configuration class": "transformers has no causal language model for its text part",
    r"has no hidden_size": "no `hidden_size` and `num_hidden_layers` in config.json",
    r"requires the timm library": "not tried: needs the timm library",
    r"learner = engine: fail": "engine and learner disagree: a run stops at step 1",
    r"peft adapts other layers": "trains, but not with adapters: peft adapts other layers",
    r"its routers \(.*\) are not known": "unknown type of router",
    r"does not choose its experts by one": "the router does not select experts with a single top-k",
    r"Multiple valid text configs|shared_kv_states|StrictDataclass": "does not load alone",
}


def page(head: str, rows: Mapping[str, Row]) -> str:
    """Put the tables under what stands above the mark of a page."""
    parts = {kind: what for what, kinds in OTHERS.items() for kind in kinds.split()}
    whole = _sorted(row for kind, row in rows.items() if kind not in parts)
    others = _sorted(row for kind, row in rows.items() if kind in parts)
    good, bad = [row for row in whole if works(row)], [row for row in whole if not works(row)]
    unreplayed = [row for row in good if row["stages"].get("routes")]
    lines = [head.partition(MARK)[0].rstrip(), "", MARK, *_made_by(whole), "", *_table(good)]
    for title, some, columns in (
        ("Classes without routing replay", unreplayed, {"reason": lambda row: short(row["stages"]["routes"])}),
        ("Classes that do not work", bad, {"reason": reason}),
        ("Parts of other models", others, {"part": lambda row: parts[row["kind"]], "works": _or_yes}),
    ):
        lines += ["", f"## {title}", "", *_grouped(columns, some)] if some else []
    return "\n".join(lines) + "\n"


def works(row: Row) -> bool:
    """Tell whether a kind can be checked, sampled, trained, and trained with adapters."""
    return "trains" in row["stages"] and not any(words for stage, words in row["stages"].items() if stage != "routes")


def short(words: str) -> str:
    """Shorten what a trial prints to its reason; words without a known one stay as they are.

    >>> short("ctrl: its routers (A, B) are not known: their routes"), short("a | b")
    ('unknown type of router', 'a \\\\| b')
    """
    for pattern, words_of_page in REASONS.items():
        if found := re.search(pattern, words):
            return found.expand(words_of_page)
    return words.replace("|", "\\|")


def reason(row: Row) -> str:
    """Give the reason of the first stage that failed, routing replay left out; "" if none failed."""
    return next((short(words) for stage, words in row["stages"].items() if words and stage != "routes"), "")


def _or_yes(row: Row) -> str:
    return reason(row) or "yes"


def _made_by(rows: Sequence[Row]) -> Iterator[str]:
    if rows:
        yield ""
        versions = sorted({f"transformers {row['transformers']}, torch {row['torch']}" for row in rows})
        slow = sum(works(row) and bool(row.get("whole_texts")) for row in rows)
        yield f"**{sum(map(works, rows))} of {len(rows)} work**, {slow} without a cache ({'; '.join(versions)})."


def _table(rows: Iterable[Row]) -> Iterator[str]:
    """Write the rows of the classes that work."""
    yield "| class (model type) | routing replay | whole texts | exact to |"
    yield "|---|---|---|---|"
    for row in rows:
        replay = _cell(row["stages"]["routes"]) if "routes" in row["stages"] else ""
        exact = max(row.get("engine", -1.0), row.get("learner", -1.0))
        whole = "yes" if row.get("whole_texts") else ""
        yield f"| {_name(row)} | {replay} | {whole} | {f'{exact:.0e}' if exact >= 0 else ''} |"


def _grouped(columns: Mapping[str, Callable[[Row], str]], rows: Iterable[Row]) -> Iterator[str]:
    """Write a table with a line for each combination of the columns' values, and the classes that have it."""
    names: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        names.setdefault(tuple(value(row) for value in columns.values()), []).append(_name(row))
    yield f"| {' | '.join(columns)} | classes |"
    yield f"|{'---|' * len(columns)}---|"
    for values, classes in sorted(names.items()):
        yield f"| {' | '.join(values)} | {', '.join(classes)} |"


def _sorted(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["class"].lower(), row["kind"]))


def _name(row: Row) -> str:
    return f"{row['class']} ({row['kind']})"


def _cell(words: str) -> str:
    return "no" if words else "yes"
