"""A part of a run's rollouts that fits in a page: whole groups, of every kind, spread over the steps."""

import dataclasses
from array import array
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice
from pathlib import Path
from typing import IO, Any

import orjson

from groupwise.core.files.atomic import open_regular
from groupwise.reports.folder.columns import short, spaced
from groupwise.reports.folder.lines import (
    DIFFER,
    EQUAL,
    GroupPlace,
    Scan,
    count_of,
    kind_of,
    labels_of,
    number,
    parsed,
    scan,
    table,
    tables,
)
from groupwise.reports.records import Curves, Number, RolloutGroup, RolloutRow, Rollouts

#: Groups that the browser of rollouts filters without a wait.
MOST_GROUPS = 400
#: The groups of these that are a run's evaluations', and their bytes.
HELDOUT_GROUPS, HELDOUT_BYTES = 80, 600_000
#: A step that is shown should show this many groups: one of each kind.
GROUPS_A_STEP = 5
#: One group may take this share of the page's bytes; beyond it, completions lose their columns per token.
SHARE_OF_A_GROUP = 1 / 8
#: Candidates in a row that did not fit, after which no more are tried.
PATIENCE = 20
#: Points of one plot, and characters of a text.
MOST_POINTS, LONGEST_TEXT = 2000, 20_000

#: The kinds of groups that a step shows first, one group of each.
_FIRST = ("mixed", DIFFER, "all right", "all wrong", EQUAL, "dropped", "fault", "surplus", "unscored")


def sample(
    path: Path, bytes_budget: int = 4_000_000, most_groups: int = MOST_GROUPS, last: int | None = None, start: int = 0
) -> tuple[Rollouts, int]:
    """Choose whole groups of a rollouts.jsonl, at most `bytes_budget` bytes of a page; the same ones every time.

    Steps are spread evenly over the run up to step `last`, the first and the last among them; of each, first a group of
    every kind. The file is read from the byte `start` up to the byte that is returned: the next `start`.
    """
    try:
        with open_regular(path) as file:
            scanned = scan(file, start).until(last)
            return _sample(file, scanned, bytes_budget, most_groups), scanned.end
    except FileNotFoundError:
        return Rollouts("no rollouts were written", []), 0
    except OSError as error:
        return Rollouts(f"{path.name} cannot be read: {error.strerror}", []), 0


def with_heldout(rollouts: Rollouts, path: Path) -> Rollouts:
    """Add a sample of a heldout.jsonl, the completions of the run's evaluations, to one of its rollouts, of which so
    many are left out that the browser holds all.
    """
    held, _ = sample(path, HELDOUT_BYTES, HELDOUT_GROUPS)
    if not held.groups:
        return rollouts
    room = MOST_GROUPS - len(held.groups)
    kept = rollouts.groups
    if len(kept) > room:
        kept = [kept[i] for i in spaced(len(kept), room)]
    return Rollouts(f"{rollouts.words}; of evaluations {held.words}", [*kept, *held.groups])


def spread(count: int) -> list[int]:
    """Order 0 .. count - 1 so that every beginning of the order is spread over the whole.

    >>> spread(6)
    [0, 5, 2, 1, 3, 4]
    """
    order, gaps = [0, count - 1][:count], deque([(0, count - 1)])
    while gaps:
        low, high = gaps.popleft()
        if high - low > 1:
            middle = (low + high) // 2
            order.append(middle)
            gaps += [(low, middle), (middle, high)]
    return order


def points(groups: Sequence[RolloutGroup]) -> dict[str, Curves]:
    """Find what the plots of points draw, by plot: "value-return" per trained token, "learned-score" per completion.

    The newest 2,000 of each; a plot without any point is left out.
    """
    newest = sorted(groups, key=lambda group: -group.step)
    rows = [(group.step, row) for group in newest for row in group.completions]
    pairs = ((step, zip(r.columns.get("value", ()), r.columns.get("returns", ()), strict=False)) for step, r in rows)
    tables = {
        "value-return": _points(((step, *pair) for step, of_row in pairs for pair in of_row), "value", "returns"),
        "learned-score": _points(((step, row.learned, row.score) for step, row in rows), "learned", "score"),
    }
    return {plot: curves for plot, curves in tables.items() if curves.step}


def _points(triples: Iterable[tuple[int, Number, Number]], *names: str) -> Curves:
    newest = list(islice((triple for triple in triples if None not in triple), MOST_POINTS))
    columns = {name: [triple[i] for triple in newest] for i, name in enumerate(names, start=1)}
    return Curves([triple[0] for triple in newest], columns)


def _sample(file: IO[bytes], scanned: Scan, budget: int, most_groups: int) -> Rollouts:
    odd: Counter[str] = Counter()
    chosen: list[RolloutGroup] = []
    room, misses = budget, 0
    for place in _candidates(file, scanned, _step_count(scanned, budget, most_groups)):
        if len(chosen) == most_groups or misses == PATIENCE:
            break
        seen: Counter[str] = Counter()
        group = group_of(_lines(file, place).split(b"\n")[:-1], seen)
        if group is not None:
            group = _fitted(group, int(budget * SHARE_OF_A_GROUP), seen)
            size = len(orjson.dumps(group))
            if size > room:
                misses += 1
                continue
            chosen.append(group)
            room, misses = room - size, 0
        odd += seen
    chosen.sort(key=lambda group: (group.step, group.group))
    return Rollouts(_words(scanned, chosen, odd), chosen)


def _step_count(scanned: Scan, budget: int, most_groups: int) -> int:
    """Choose the number of steps: as many as leave room for a few groups of each."""
    size = sum(step.end - step.start for step in scanned.steps.values())
    groups = sum(step.groups for step in scanned.steps.values())
    return max(2, min(most_groups, budget * groups // max(1, size)) // GROUPS_A_STEP) if groups else 0


def _candidates(file: IO[bytes], scanned: Scan, count: int) -> Iterator[GroupPlace]:
    """Find groups in the order in which they are wanted: of each step one of every kind, then one more at a time."""
    steps = sorted(scanned.steps)
    chosen = [steps[i] for i in spaced(len(steps), count)]
    rest: list[list[GroupPlace]] = []
    for i in spread(len(chosen)):
        here, first = scanned.whole(chosen[i]), dict[str, GroupPlace]()
        for place in here:
            for label in labels_of(_lines(file, place), place.fate):
                first.setdefault(label, place)
        wanted = {first[label].group: first[label] for label in _FIRST if label in first}
        yield from wanted.values()
        rest.append([place for place in here if place.group not in wanted])
    for turn in range(max(map(len, rest), default=0)):
        yield from (left[turn] for left in rest if turn < len(left))


def _lines(file: IO[bytes], place: GroupPlace) -> bytes:
    file.seek(place.start)
    return file.read(place.end - place.start)


def _fitted(group: RolloutGroup, most: int, odd: Counter[str]) -> RolloutGroup:
    """Fit the group in `most` bytes, if leaving out columns per token can do that, from its last completions on."""
    sizes = [len(orjson.dumps(row)) for row in group.completions]
    if sum(sizes) <= most:
        return group
    bare = [dataclasses.replace(row, pieces=[], columns={}) for row in group.completions]
    extra = [size - len(orjson.dumps(row)) for size, row in zip(sizes, bare, strict=True)]
    room = most - sum(sizes) + sum(extra)
    completions = []
    for row, without, more in zip(group.completions, bare, extra, strict=True):
        fits = more <= room
        room -= more if fits else 0
        odd["bare"] += bool(row.pieces) and not fits
        completions.append(row if fits else without)
    return dataclasses.replace(group, completions=completions)


def _words(scanned: Scan, chosen: Sequence[RolloutGroup], odd: Mapping[str, int]) -> str:
    """Tell how many of how many are shown, and what was left out."""
    shown = sum(len(group.completions) for group in chosen)
    steps = len({group.step for group in chosen})
    of_all = f"{shown:,} of {_many(scanned.rows, 'completion')}: {_many(len(chosen), 'whole group')}"
    left_out = [
        (scanned.odd + odd["row"], "row", "cannot be read and left out, with the rest of the group"),
        (odd["long"], "text", f"longer than {LONGEST_TEXT:,} characters cut off there"),
        (odd["bare"], "long completion", "shown without numbers per token, which would not fit"),
        (odd["column"], "column", "of numbers per token not as long as the tokens, and left out"),
    ]
    lines = [f"{_many(count, what)} {words}" for count, what, words in left_out if count]
    return "; ".join([f"{of_all} from {steps:,} of {_many(len(scanned.steps), 'step')}", *lines])


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def group_of(lines: Sequence[bytes], odd: Counter[str]) -> RolloutGroup | None:
    """Read a group from its lines; None if one of them cannot be read, because the others mean little without it."""
    read = [_table_of(line) for line in lines]
    good = [row for row in (row_of(row, odd) for row in read) if row is not None]
    if not good or len(good) < len(read):
        odd["row"] += len(read) - len(good)
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
    text, pieces, spans = row.get("completion"), row.get("pieces"), tables(row.get("spans"))
    if not isinstance(text, str) or not isinstance(row.get("prompt"), str):
        return None
    if not isinstance(pieces, list) or not all(isinstance(piece, str) for piece in pieces):
        pieces = []
    ends = [(count_of(s.get("start")), count_of(s.get("stop"))) for s in spans if s.get("own") is False]
    answers = [(start, stop) for start, stop in ends if start is not None and stop is not None]
    own = [span for span in spans if span.get("own") is not False]
    several = len({str(span.get("version")) for span in own}) > 1
    shown, columns = _shown(pieces, _columns(row, len(pieces), answers, odd) if pieces else {})
    numbers: Any = {name: _rounded(row.get(name)) for name in ("score", "reward", "advantage", "learned", "measured")}
    texts: Any = {name: _text(row.get(name)) for name in ("finish", "stop", "ended", "fault")}
    return RolloutRow(
        text=_cut(text, odd),
        tokens=count_of(row.get("tokens")) or len(pieces),
        version=count_of(row.get("version")) or 0,
        spans=[{name: count_of(s.get(name)) for name in ("start", "stop", "version")} for s in own if several],
        turns=_turns(tables(row.get("turns")), spans),
        anew=_anew(spans),
        answers=answers,
        parts={name: _rounded(value) for name, value in table(row.get("parts")).items()},
        logged={name: _logged(value, odd) for name, value in table(row.get("logged")).items()},
        pieces=shown,
        columns=columns,
        **numbers,
        **texts,
    )


def _turns(turns: Sequence[Mapping[str, Any]], spans: Sequence[Mapping[str, Any]]) -> list[dict[str, Number | str]]:
    """Read what the turns of an episode brought, with the row of each, from 1, and its sampled tokens."""
    own = [(count_of(s.get("start")) or 0, count_of(s.get("stop")) or 0) for s in spans if s.get("own") is not False]
    read, begin, anew = [], 0, _anew(spans)
    for turn in turns:
        stop = max(begin, count_of(turn.get("stop")) or 0)
        tokens = sum(b - a for a, b in own if begin <= a < b <= stop) if spans else stop - begin
        read.append({**_turn(turn), "tokens": tokens, "row": 1 + sum(0 < at < stop for at in anew)})
        begin = stop
    return read


def _anew(spans: Sequence[Mapping[str, Any]]) -> list[int]:
    """List the tokens from which on the policy read anew."""
    starts = (count_of(span.get("start")) for span in spans if span.get("anew") is True)
    return [start for start in starts if start is not None]


def _turn(turn: Mapping[str, Any]) -> dict[str, Number | str]:
    """Read what a turn of an episode brought; a call is its tool, and why it failed if it did."""
    calls = [(_text(call.get("tool")) or "no tool", _text(call.get("failure"))) for call in tables(turn.get("calls"))]
    return {
        **{name: _rounded(turn.get(name)) for name in ("reward", "advantage")},
        **{name: _text(turn.get(name)) for name in ("state", "fault")},
        "calls": ", ".join(f"{tool} ({failure})" if failure else tool for tool, failure in calls),
    }


def _table_of(line: bytes) -> dict[str, Any]:
    try:
        return table(parsed(line, Counter()))
    except ValueError:
        return {}


def _columns(
    row: Mapping[str, Any], tokens: int, answers: Sequence[tuple[int, int]], odd: Counter[str]
) -> dict[str, list[Number]]:
    """Read the columns per token, those of the row's last update included; a number stands for all tokens.

    Tokens that an environment wrote, `answers`, are gaps: the policy did not sample them.
    """
    last = max(tables(row.get("updates")), key=lambda update: count_of(update.get("update")) or 0, default={})
    values = {**table(row.get("per_token")), **{k: v for k, v in last.items() if k not in ("update", "weight")}}
    listed = {name: _listed(value, tokens) for name, value in values.items()}
    odd["column"] += sum(column is None for column in listed.values())
    live, old = listed.get("logp_live"), listed.get("logp_old")
    if "log_ratio" not in values and live and old:
        listed["log_ratio"] = _difference(live, old)
    gaps = {index for start, stop in answers for index in range(start, min(stop, tokens))}
    return {
        name: [None if i in gaps else short(value) for i, value in enumerate(column)]
        for name, column in listed.items()
        if column is not None
    }


def _difference(live: Sequence[Number], old: Sequence[Number]) -> list[Number]:
    """Compute live - old in float32, as the run did without writing it; all gaps if a number is missing."""
    if None in live or None in old:
        return [None] * len(live)
    first, second = array("f", live), array("f", old)  # type: ignore[arg-type]
    return [*array("f", [a - b for a, b in zip(first, second, strict=True)])]


def _listed(value: object, tokens: int) -> list[Number] | None:
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
    return _rounded(value) if value is None or number(value) is not None else _cut(_text(value), odd)


def _rounded(value: object) -> Number:
    return short(number(value))


def _cut(text: str, odd: Counter[str]) -> str:
    if len(text) <= LONGEST_TEXT:
        return text
    odd["long"] += 1
    return f"{text[:LONGEST_TEXT]} [cut here: {len(text):,} characters in all]"


def _text(value: object) -> str:
    """Take a text as it is, nothing for nothing, and anything else in its words: an answer may be a number."""
    return "" if value is None else value if isinstance(value, str) else str(value)
