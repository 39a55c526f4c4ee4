"""Page of the table: a line for each class of models, from its trial."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

if __package__:
    from .kinds import OTHERS
else:
    from kinds import OTHERS

Row = Mapping[str, Any]

#: Line of the page below which all is written anew.
MARK = "<!-- written by make models -->"
#: Stages of a trial that have a column, and the column's name.
COLUMNS = {"checks": "check", "samples": "samples", "trains": "trains", "routes": "routes", "adapters": "adapters"}


def page(head: str, rows: Mapping[str, Row]) -> str:
    """Put the table under what stands above the mark of a page."""
    parts = {kind: what for what, kinds in OTHERS.items() for kind in kinds.split()}
    whole = [row for kind, row in rows.items() if kind not in parts]
    others = [row for kind, row in rows.items() if kind in parts]
    lines = [f"{head.partition(MARK)[0].rstrip()}", "", MARK, *_made_by(whole), "", *_table(whole)]
    if others:
        lines += ["", "## Parts of other models", ""]
        lines += ["transformers counts them among causal language models. No policy begins from one of them alone.", ""]
        lines += ["| folder of | what it is | works |", "|---|---|---|"]
        lines += [f"| {row['class']} | {parts[row['kind']]} | {_end(row) or 'yes'} |" for row in _sorted(others)]
    return "\n".join(lines) + "\n"


def works(row: Row) -> bool:
    """Tell whether a kind can be checked, sampled, trained, and trained with adapters."""
    return "trains" in row["stages"] and not any(words for stage, words in row["stages"].items() if stage != "routes")


def _made_by(rows: Sequence[Row]) -> Iterator[str]:
    if rows:
        yield ""
        versions = sorted({f"transformers {row['transformers']}, torch {row['torch']}" for row in rows})
        yield f"**{sum(map(works, rows))} of {len(rows)} work** ({'; '.join(versions)})."


def _table(rows: Sequence[Row]) -> Iterator[str]:
    yield f"| folder of | {' | '.join(COLUMNS.values())} | exact to | else why not |"
    yield f"|---|{'---|' * len(COLUMNS)}---|---|"
    for row in _sorted(rows):
        stages = row["stages"]
        cells = [_cell(stages[stage]) if stage in stages else "" for stage in COLUMNS]
        exact = max(row.get("engine", -1.0), row.get("learner", -1.0))
        yield f"| {_name(row)} | {' | '.join(cells)} | {f'{exact:.0e}' if exact >= 0 else ''} | {_end(row)} |"


def _sorted(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["class"].lower(), row["kind"]))


def _name(row: Row) -> str:
    return f"{row['class']} ({row['kind']})"


def _cell(words: str) -> str:
    return "no" if words else "yes"


def _end(row: Row) -> str:
    """Give the reasons of the stages that failed, each once, as what was said of them."""
    reasons = dict.fromkeys(words.removeprefix("model: ") for words in row["stages"].values() if words)
    return "; ".join(reasons).replace("|", "\\|")
