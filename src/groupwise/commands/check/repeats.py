"""Problems that come more than once, in their own split or in both. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from groupwise.commands.check.problems import text_of
from groupwise.commands.check.remarks import Remark, fault, listed, note, ok
from groupwise.core.samples import Sample
from groupwise.core.task import LeavesOut, Task

#: So many problems of each split are compared.
COMPARED = 20_000


def repeats(task: Task) -> list[Remark]:
    """What the task left out because it came again, then what is still there twice."""
    train, heldout = (task.samples(split)[:COMPARED] for split in ("train", "heldout"))
    found = [*_left_out(task), *_still_there(train, heldout)]
    some = max(len(task.samples(split)) for split in ("train", "heldout")) > COMPARED
    told = f"the first {COMPARED:,} of each split compared" if some else "all problems compared"
    return found or [ok(f"no problem comes twice, none is in both splits ({told})")]


def _left_out(task: Task) -> list[Remark]:
    if not isinstance(task, LeavesOut):
        return []
    found = []
    if leaked := len(task.leaked):
        found.append(fault(f"{_shared(leaked)} ({_keys(task.leaked)}): not held out, but the files leak"))
    if again := len(task.repeated):
        what = f"{again:,} rows repeat a problem" if again > 1 else "1 row repeats a problem"
        found.append(note(f"{what} of their own split ({_keys(task.repeated)}): the first is kept"))
    return found


def _still_there(train: Sequence[Sample], heldout: Sequence[Sample]) -> list[Remark]:
    """By the text alone, white space counted as one blank; then with capitals counted as small letters."""
    found = []
    for fold, but in ((False, "for white space"), (True, "for capital letters")):
        known = {_normal(s, fold): s.key for s in train}
        both = [f"{s.key} is {known[text]}" for s in heldout if (text := _normal(s, fold)) in known]
        if both:
            told = f"{_shared(len(both))}, but {but} ({listed(both)})"
            found.append(note(told) if fold else fault(told))
            break
    for split, samples in (("training", train), ("held-out", heldout)):
        again = len(samples) - len({_normal(s, fold=False) for s in samples})
        if again:
            found.append(note(f"{again:,} of {len(samples):,} {split} problems come again in their split"))
    return found


def _shared(count: int) -> str:
    if count == 1:
        return "1 held-out problem is a training problem too"
    return f"{count:,} held-out problems are training problems too"


def _keys(samples: Sequence[Sample]) -> str:
    return listed([samples[i].key for i in range(min(len(samples), 4))])


def _normal(sample: Sample, fold: bool) -> str:
    text = " ".join(text_of(sample).split())
    return text.casefold() if fold else text
