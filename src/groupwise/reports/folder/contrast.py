"""First against last completions: how the policy answered one problem before training, and how it does now."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from groupwise.core.files.atomic import open_regular
from groupwise.reports.folder.columns import spaced
from groupwise.reports.folder.lines import GroupPlace, Scan, scan
from groupwise.reports.folder.read import HELDOUT, ROLLOUTS
from groupwise.reports.folder.sample import group_of
from groupwise.reports.records import Contrast, RolloutGroup, Said

#: Problems that are shown, and groups of a step that are looked at for one that is alike.
MOST, LOOKED_AT = 3, 64
#: Characters of a prompt or a completion; of a longer one its end, where the answer is.
LONGEST = 700

Pair = tuple[RolloutGroup, RolloutGroup]


def contrasts(folder: Path) -> tuple[tuple[Contrast, ...], str]:
    """Choose problems that the run's first and last evaluation both asked, spread evenly, and the first completion of
    each; without evaluations, problems alike of the first and the last step -> them, and in words which they are.

    None is chosen by how it was answered.
    """
    for name, where in ((HELDOUT, "held-out problems"), (ROLLOUTS, "training problems")):
        pairs, alike = _pairs(folder / name, same=name == HELDOUT)
        if pairs:
            kind = where if alike else f"{where} that are alike"
            first, last = pairs[0][0].step, pairs[0][1].step
            at = "after" if name == HELDOUT else "in"
            steps = f"{at} step {first} and {at} step {last}"
            words = f"{kind[:1].upper()}{kind[1:]}, spread evenly over the file; the first completion of each, {steps}."
            return tuple(map(_contrast, pairs)), words
    return (), ""


def _pairs(path: Path, same: bool) -> tuple[list[Pair], bool]:
    """Pair groups of the first and the last step of a file -> them, and if their problems are the same."""
    try:
        with open_regular(path) as file:
            return _of_file(file, scan(file, 0), same)
    except OSError:
        return [], same


def _of_file(file: IO[bytes], scanned: Scan, same: bool) -> tuple[list[Pair], bool]:
    steps = sorted(scanned.steps)
    if len(steps) < 2:
        return [], same
    first, last = (_groups(file, scanned.whole(step)) for step in (steps[0], steps[-1]))
    if same:
        by_key = {group.key: group for group in last}
        pairs = [(group, by_key[group.key]) for group in first if group.key in by_key]
        return [pairs[i] for i in spaced(len(pairs), MOST)], True
    return _alike(first, last), False


def _groups(file: IO[bytes], places: Sequence[GroupPlace]) -> list[RolloutGroup]:
    groups = []
    for i in spaced(len(places), LOOKED_AT) if places else ():
        file.seek(places[i].start)
        lines = file.read(places[i].end - places[i].start).split(b"\n")[:-1]
        if (group := group_of(lines, Counter())) is not None:
            groups.append(group)
    return groups


def _alike(first: Sequence[RolloutGroup], last: Sequence[RolloutGroup]) -> list[Pair]:
    """Pair each group with one of the same source, the nearest by the lengths of prompt and answer, each taken once."""
    left, pairs = list(last), list[Pair]()
    for group in (first[i] for i in spaced(len(first), MOST)):
        near = [other for other in left if other.source == group.source]
        if near:
            pairs.append((group, min(near, key=lambda other, to=group: _unlike(other, to))))
            left.remove(pairs[-1][1])
    return pairs


def _unlike(one: RolloutGroup, other: RolloutGroup) -> int:
    return abs(len(one.prompt) - len(other.prompt)) + abs(len(one.answer) - len(other.answer))


def _contrast(pair: Pair) -> Contrast:
    first, last = pair
    other = "" if first.prompt == last.prompt else _end(last.prompt)
    return Contrast(_end(first.prompt), _end(first.answer), _said(first), _said(last), other)


def _said(group: RolloutGroup) -> Said:
    row = group.completions[0]
    return Said(group.step, _end(row.text), row.score if row.measured is None else row.measured)


def _end(text: str) -> str:
    return text if len(text) <= LONGEST else f"[...] {text[-LONGEST:]}"
