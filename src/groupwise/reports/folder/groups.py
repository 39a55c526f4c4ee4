"""Lines of rollouts.jsonl as the groups that a page shows. Pure."""

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from groupwise.reports.folder.columns import short
from groupwise.reports.folder.lines import count_of, number, parsed, table, tables
from groupwise.reports.folder.scan import kind_of
from groupwise.reports.records import Number, RolloutGroup, RolloutRow

#: Characters of a text that a page shows.
LONGEST_TEXT = 20_000

#: Columns of an update that are not per token.
_OF_THE_ROW = frozenset({"update", "weight"})


def group_of(lines: Sequence[bytes], odd: Counter[str]) -> RolloutGroup | None:
    """Read a group from its lines; None if one of them cannot be read, because the others mean little without it."""
    read = [_table_of(line) for line in lines]
    rows = [row_of(row, odd) for row in read]
    good = [row for row in rows if row is not None]
    if not good or len(good) < len(rows):
        odd["row"] += len(rows) - len(good)
        return None
    first = read[0]
    return RolloutGroup(
        step=count_of(first.get("step")) or 0,
        group=count_of(first.get("group")) or 0,
        key=_text(first.get("key")),
        source=_text(first.get("source")),
        prompt=_cut(_text(first.get("prompt")), odd),
        answer=_cut(_text(first.get("answer")), odd),
        kind=kind_of([row.score for row in good], [row.measured for row in good] if "measured" in first else ()),
        fate=_text(first.get("fate")),
        fresh=first.get("fresh") is not False,
        completions=good,
    )


def row_of(row: Mapping[str, Any], odd: Counter[str]) -> RolloutRow | None:
    """Read a completion; None if it has no text. A number that is missing, or none, is a gap."""
    text = row.get("completion")
    if not isinstance(text, str) or not isinstance(row.get("prompt"), str):
        return None
    pieces = _pieces(row.get("pieces"))
    spans = tables(row.get("spans"))
    answers = _answers(spans)
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
        spans=_spans(spans),
        turns=[_turn(turn) for turn in tables(row.get("turns"))],
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


def _spans(spans: Sequence[Mapping[str, Any]]) -> list[dict[str, Number]]:
    """Tell which version sampled which tokens, if several did."""
    own = [span for span in spans if span.get("own") is not False]
    several = len({str(span.get("version")) for span in own}) > 1
    return [{name: count_of(span.get(name)) for name in ("start", "stop", "version")} for span in own if several]


def _answers(spans: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """Find the stretches of tokens that an environment wrote."""
    edges = [(count_of(span.get("start")), count_of(span.get("stop"))) for span in spans if span.get("own") is False]
    return [(start, stop) for start, stop in edges if start is not None and stop is not None]


def _without(columns: dict[str, list[Number]], stretches: Sequence[tuple[int, int]]) -> dict[str, list[Number]]:
    """Leave gaps in these stretches of the columns: the policy did not sample them."""
    gaps = {index for start, stop in stretches for index in range(start, stop)}
    if not gaps:
        return columns
    return {name: [None if i in gaps else value for i, value in enumerate(column)] for name, column in columns.items()}


def _turn(turn: Mapping[str, Any]) -> dict[str, Number | str]:
    """Read what a turn of an episode brought."""
    numbers = {name: short(number(turn.get(name))) for name in ("reward", "advantage")}
    texts = {name: _text(turn.get(name)) for name in ("state", "fault")}
    return {**numbers, **texts, "calls": ", ".join(map(_call, tables(turn.get("calls"))))}


def _call(call: Mapping[str, Any]) -> str:
    """Name the tool of a call, and why the call failed if it did."""
    tool, failure = _text(call.get("tool")) or "no tool", _text(call.get("failure"))
    return f"{tool} ({failure})" if failure else tool


def _table_of(line: bytes) -> dict[str, Any]:
    try:
        return table(parsed(line, Counter()))
    except ValueError:
        return {}


def _columns(row: Mapping[str, Any], tokens: int, odd: Counter[str]) -> dict[str, list[Number]]:
    """Read the columns per token, those of the row's last update included; a number stands for all tokens."""
    values = {**table(row.get("per_token")), **_last_update(row.get("updates"))}
    listed = {name: _listed(value, tokens) for name, value in values.items()}
    odd["column"] += sum(column is None for column in listed.values())
    live, old = listed.get("logp_live"), listed.get("logp_old")
    if "log_ratio" not in values and live and old:
        listed["log_ratio"] = _difference(live, old)
    return {name: [short(value) for value in column] for name, column in listed.items() if column is not None}


def _difference(live: Sequence[Number], old: Sequence[Number]) -> list[Number]:
    """Compute live - old in float32, as the run did without writing it; all gaps if a number is missing."""
    first, second = ([value for value in column if value is not None] for column in (live, old))
    if len(first) != len(live) or len(second) != len(old):
        return [None] * len(live)
    return [*array("f", [a - b for a, b in zip(array("f", first), array("f", second), strict=True)])]


def _last_update(updates: object) -> dict[str, Any]:
    last = max(tables(updates), key=lambda update: count_of(update.get("update")) or 0, default={})
    return {name: value for name, value in last.items() if name not in _OF_THE_ROW}


def _listed(value: object, tokens: int) -> list[Number] | None:
    """Make a column as long as the tokens; None if it is not."""
    if isinstance(value, list):
        return [number(one) for one in value] if len(value) == tokens else None
    return None if isinstance(value, (str, dict)) else [number(value)] * tokens


def _shown(pieces: list[str], columns: dict[str, list[Number]]) -> tuple[list[str], dict[str, list[Number]]]:
    """Keep the tokens that fit in the longest text, and a last one that says how many do not."""
    fit = sum(length <= LONGEST_TEXT for length in accumulate(map(len, pieces)))
    if fit == len(pieces):
        return pieces, columns
    more = f" [cut here: {len(pieces) - fit:,} more tokens]"
    return [*pieces[:fit], more], {name: [*column[:fit], None] for name, column in columns.items()}


def _logged(value: object, odd: Counter[str]) -> Number | str:
    """Take a number as it is, and anything else as text."""
    return short(number(value)) if value is None or number(value) is not None else _cut(_text(value), odd)


def _cut(text: str, odd: Counter[str]) -> str:
    if len(text) <= LONGEST_TEXT:
        return text
    odd["long"] += 1
    return f"{text[:LONGEST_TEXT]} [cut here: {len(text):,} characters in all]"


def _pieces(value: object) -> list[str]:
    return value if isinstance(value, list) and all(isinstance(piece, str) for piece in value) else []


def _text(value: object) -> str:
    """Take a text as it is, nothing for nothing, and anything else in its words: an answer may be a number."""
    return "" if value is None else value if isinstance(value, str) else str(value)
