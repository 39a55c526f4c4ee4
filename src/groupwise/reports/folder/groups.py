"""Lines of rollouts.jsonl as the groups that a page shows. Pure."""

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from groupwise.reports.folder.columns import short
from groupwise.reports.folder.lines import count_of, number, parsed, table
from groupwise.reports.folder.scan import RIGHT, kind_of, kind_of_rewards
from groupwise.reports.records import Number, RolloutGroup, RolloutRow

#: Characters of a text that a page shows.
LONGEST_TEXT = 20_000

#: What an update says of a row that is not said per token.
_OF_THE_ROW = frozenset({"update", "weight"})


def group_of(lines: Sequence[bytes], odd: Counter[str]) -> RolloutGroup | None:
    """A group from its lines; None where one of them cannot be read, because the others mean little without it."""
    tables = [_table_of(line) for line in lines]
    rows = [row_of(row, odd) for row in tables]
    good = [row for row in rows if row is not None]
    if not good or len(good) < len(rows):
        odd["row"] += len(rows) - len(good)
        return None
    first = tables[0]
    scores = [row.score for row in good if row.score is not None]
    return RolloutGroup(
        step=count_of(first.get("step")) or 0,
        group=count_of(first.get("group")) or 0,
        key=_text(first.get("key")),
        source=_text(first.get("source")),
        prompt=_cut(_text(first.get("prompt")), odd),
        answer=_cut(_text(first.get("answer")), odd),
        kind=kind_of_rewards([row.measured for row in good])
        if "measured" in first
        else kind_of(sum(score >= RIGHT for score in scores), len(scores)),
        fate=_text(first.get("fate")),
        fresh=first.get("fresh") is not False,
        completions=good,
    )


def row_of(row: Mapping[str, Any], odd: Counter[str]) -> RolloutRow | None:
    """A completion; None where it has no text. A number that is missing, or none, is a gap."""
    text = row.get("completion")
    if not isinstance(text, str) or not isinstance(row.get("prompt"), str):
        return None
    pieces = _pieces(row.get("pieces"))
    answers = _answers(row.get("spans"))
    columns = _without(_columns(row, len(pieces), odd), answers) if pieces else {}
    shown, columns = _shown(pieces, columns)
    return RolloutRow(
        text=_cut(text, odd),
        score=short(number(row.get("score"))),
        reward=short(number(row.get("reward"))),
        advantage=short(number(row.get("advantage"))),
        finish=_text(row.get("finish")),
        stop=_text(row.get("stop")),
        tokens=count_of(row.get("tokens")) or len(pieces),
        version=count_of(row.get("version")) or 0,
        spans=_spans(row.get("spans")),
        turns=[_turn(table(turn)) for turn in _list(row.get("turns"))],
        ended=_text(row.get("ended")),
        answers=answers,
        parts={name: short(number(value)) for name, value in table(row.get("parts")).items()},
        learned=short(number(row.get("learned"))),
        measured=short(number(row.get("measured"))),
        logged={name: _logged(value, odd) for name, value in table(row.get("logged")).items()},
        fault=_text(row.get("fault")),
        pieces=shown,
        columns=columns,
    )


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _spans(value: object) -> list[dict[str, Number]]:
    """Which version sampled which tokens, where several did; of an odd one nothing is shown."""
    spans = [table(span) for span in _list(value) if table(span).get("own") is not False]
    several = len({str(span.get("version")) for span in spans}) > 1
    return [{name: count_of(span.get(name)) for name in ("start", "stop", "version")} for span in spans if several]


def _answers(value: object) -> list[tuple[int, int]]:
    """The stretches of tokens that an environment wrote."""
    edges = [
        (count_of(s.get("start")), count_of(s.get("stop"))) for s in map(table, _list(value)) if s.get("own") is False
    ]
    return [(start, stop) for start, stop in edges if start is not None and stop is not None]


def _without(columns: dict[str, list[Number]], stretches: Sequence[tuple[int, int]]) -> dict[str, list[Number]]:
    """The columns with gaps in these stretches: nothing is known there, for the policy did not sample it."""
    gaps = {index for start, stop in stretches for index in range(start, stop)}
    if not gaps:
        return columns
    return {name: [None if i in gaps else value for i, value in enumerate(column)] for name, column in columns.items()}


def _turn(turn: Mapping[str, Any]) -> dict[str, Number | str]:
    """What a turn of an episode brought."""
    numbers = {name: short(number(turn.get(name))) for name in ("reward", "advantage")}
    texts = {name: _text(turn.get(name)) for name in ("state", "fault")}
    return {**numbers, **texts, "calls": ", ".join(_call(table(call)) for call in _list(turn.get("calls")))}


def _call(call: Mapping[str, Any]) -> str:
    """A call of a tool, and why it failed where it did."""
    tool, failure = _text(call.get("tool")) or "no tool", _text(call.get("failure"))
    return f"{tool} ({failure})" if failure else tool


def _table_of(line: bytes) -> dict[str, Any]:
    try:
        return table(parsed(line, Counter()))
    except ValueError:
        return {}


def _columns(row: Mapping[str, Any], tokens: int, odd: Counter[str]) -> dict[str, list[Number]]:
    """What is written per token, and by the last update that trained the row; a number stands for all tokens."""
    values = {**table(row.get("per_token")), **_last_update(row.get("updates"))}
    listed = {name: _listed(value, tokens) for name, value in values.items()}
    odd["column"] += sum(column is None for column in listed.values())
    live, old = listed.get("logp_live"), listed.get("logp_old")
    if "log_ratio" not in values and live and old:
        listed["log_ratio"] = _difference(live, old)
    return {name: [short(value) for value in column] for name, column in listed.items() if column is not None}


def _difference(live: Sequence[Number], old: Sequence[Number]) -> list[Number]:
    """live - old in float32, as the run computed what it did not write; all gaps where a number is missing."""
    first, second = ([value for value in column if value is not None] for column in (live, old))
    if len(first) != len(live) or len(second) != len(old):
        return [None] * len(live)
    return [*array("f", [a - b for a, b in zip(array("f", first), array("f", second), strict=True)])]


def _last_update(updates: object) -> dict[str, Any]:
    tables = [table(update) for update in updates] if isinstance(updates, list) else []
    last = max(tables, key=lambda update: count_of(update.get("update")) or 0, default={})
    return {name: value for name, value in last.items() if name not in _OF_THE_ROW}


def _listed(value: object, tokens: int) -> list[Number] | None:
    """A column as long as the tokens; None where it is not."""
    if isinstance(value, list):
        return [number(one) for one in value] if len(value) == tokens else None
    return None if isinstance(value, (str, dict)) else [number(value)] * tokens


def _shown(pieces: list[str], columns: dict[str, list[Number]]) -> tuple[list[str], dict[str, list[Number]]]:
    """The tokens that fit in the longest text, and a last one that says how many do not."""
    fit = sum(length <= LONGEST_TEXT for length in accumulate(map(len, pieces)))
    if fit == len(pieces):
        return pieces, columns
    more = f" [cut here: {len(pieces) - fit:,} more tokens]"
    return [*pieces[:fit], more], {name: [*column[:fit], None] for name, column in columns.items()}


def _logged(value: object, odd: Counter[str]) -> Number | str:
    """A number as it is, and anything else as text."""
    return short(number(value)) if value is None or number(value) is not None else _cut(_text(value), odd)


def _cut(text: str, odd: Counter[str]) -> str:
    if len(text) <= LONGEST_TEXT:
        return text
    odd["long"] += 1
    return f"{text[:LONGEST_TEXT]} [cut here: {len(text):,} characters in all]"


def _pieces(value: object) -> list[str]:
    return value if isinstance(value, list) and all(isinstance(piece, str) for piece in value) else []


def _text(value: object) -> str:
    """A text as it is, nothing for nothing, and its words for anything else: an answer may be a number."""
    return "" if value is None else value if isinstance(value, str) else str(value)
