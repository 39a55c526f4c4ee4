"""A task's problems as a run uses them: those whose prompts fit, and how long the longest is."""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from groupwise.core.errors import UsageError
from groupwise.core.samples import Sample
from groupwise.core.task import Streams, Task
from groupwise.rollout.collect import Encode

#: The longest prompt is looked for among this many of the longest texts; of a stream, among this many draws.
LOOKED_AT, DRAWN = 32, 256


@dataclass(frozen=True)
class Selection:
    """What a run trains on and is evaluated on.

    train    the training problems, or the task itself where it makes them one by one
    heldout  the problems of an evaluation
    longest  tokens of the longest prompt
    notes    what was left out, in words
    """

    train: Sequence[Sample] | Streams
    heldout: Sequence[Sample]
    longest: int
    notes: tuple[str, ...]


def select(task: Task, encode: Encode, limit: int, evaluated: int) -> Selection:
    """The task's problems whose prompts have at most `limit` tokens (0: all), and the first `evaluated` held-out ones.

    Raises UsageError where the limit leaves none.
    """
    train: Sequence[Sample] | Streams = task if isinstance(task, Streams) else task.samples("train")
    heldout = task.samples("heldout")
    notes: list[str] = []
    if limit:
        heldout = _fitting(heldout, encode, limit, "held-out", notes)
        if not isinstance(train, Streams):
            train = _fitting(train, encode, limit, "training", notes)
    if len(heldout) < evaluated:
        left = f"max_prompt_tokens = {limit} leaves" if limit else "the task holds out"
        raise UsageError(f"evaluation.problems = {evaluated}: {left} only {len(heldout)}")
    chosen = heldout[:evaluated]
    return Selection(train, chosen, _longest(train, chosen, encode), tuple(notes))


def _fitting(samples: Sequence[Sample], encode: Encode, limit: int, split: str, notes: list[str]) -> Sequence[Sample]:
    """The samples whose prompts have at most `limit` tokens; a line about the others is added to `notes`."""
    fitting = [s for s in samples if len(encode(s)) <= limit]
    if not fitting:
        raise UsageError(f"max_prompt_tokens = {limit}: every {split} prompt is longer; raise it")
    longer = len(samples) - len(fitting)
    if longer:
        notes.append(
            f"{longer} of {len(samples)} {split} problems have more than max_prompt_tokens = {limit} and are left out"
        )
    return fitting


def _longest(train: Sequence[Sample] | Streams, heldout: Sequence[Sample], encode: Encode) -> int:
    """Tokens of the longest prompt. Texts are gone through one by one: a file may be larger than memory."""
    drawn = (train.draw(i, 0, {}) for i in range(DRAWN)) if isinstance(train, Streams) else train
    return max(len(encode(s)) for s in [*_longest_texts(drawn), *_longest_texts(heldout)])


def _longest_texts(samples: Iterable[Sample]) -> list[Sample]:
    return heapq.nlargest(LOOKED_AT, samples, key=lambda s: len(s.prompt) + sum(len(m["content"]) for m in s.messages))
