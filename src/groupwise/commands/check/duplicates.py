"""Problems that come more than once, in their own split or in both. Pure."""

from collections.abc import Iterator, Sequence

from groupwise.commands.check.findings import Finding, fault, listed, note, ok
from groupwise.commands.check.problems import text_of
from groupwise.core.samples import Sample
from groupwise.core.task import LeavesOut, Task

#: So many problems of each split are compared.
COMPARED = 20_000


def duplicates(task: Task) -> list[Finding]:
    """What the task left out because it came again, then what is still there twice."""
    train, heldout = (task.samples(split) for split in ("train", "heldout"))
    compared = f"the first {COMPARED:,} of each split" if max(len(train), len(heldout)) > COMPARED else "all problems"
    findings = [*_left_out(task), *_remaining(train[:COMPARED], heldout[:COMPARED])]
    return findings or [ok(f"no problem comes twice, none is in both splits ({compared} compared)")]


def _left_out(task: Task) -> Iterator[Finding]:
    if not isinstance(task, LeavesOut):
        return
    if leaked := len(task.leaked):
        yield fault(f"{_shared(leaked)} ({_keys(task.leaked)}): not held out, but the files leak")
    if repeated := len(task.repeated):
        rows = f"{repeated:,} rows repeat a problem" if repeated > 1 else "1 row repeats a problem"
        yield note(f"{rows} of their own split ({_keys(task.repeated)}): the first is kept")


def _remaining(train: Sequence[Sample], heldout: Sequence[Sample]) -> Iterator[Finding]:
    """By the text alone, white space counted as one blank; then with capitals counted as small letters."""
    for fold, difference in ((False, "white space"), (True, "capital letters")):
        trained = {_normal(s, fold): s.key for s in train}
        pairs = [f"{s.key} is {trained[text]}" for s in heldout if (text := _normal(s, fold)) in trained]
        if pairs:
            what = f"{_shared(len(pairs))}, but for {difference} ({listed(pairs)})"
            yield note(what) if fold else fault(what)
            break
    for split, samples in (("training", train), ("held-out", heldout)):
        repeated = len(samples) - len({_normal(s, fold=False) for s in samples})
        if repeated:
            yield note(f"{repeated:,} of {len(samples):,} {split} problems come again in their split")


def _shared(count: int) -> str:
    if count == 1:
        return "1 held-out problem is a training problem too"
    return f"{count:,} held-out problems are training problems too"


def _keys(samples: Sequence[Sample]) -> str:
    return listed([samples[i].key for i in range(min(len(samples), 4))])


def _normal(sample: Sample, fold: bool) -> str:
    text = " ".join(text_of(sample).split())
    return text.casefold() if fold else text
