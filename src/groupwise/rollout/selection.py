"""A task's problems as a run uses them: those whose prompts fit, and how long the longest is."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from groupwise.core.errors import UsageError
from groupwise.core.samples import Sample
from groupwise.core.task import Streams, Task

#: The longest prompt is looked for among this many of the longest texts; of a stream, among this many draws.
LOOKED_AT, DRAWN = 32, 256

Ask = Callable[[Sample], tuple[int, ...]]


@dataclass(frozen=True)
class Selection:
    """What a run trains on and is evaluated on.

    train    the training problems, or the task itself where it makes them as they are asked for
    heldout  the problems of an evaluation
    longest  tokens of the longest prompt
    notes    what was left out, in words
    """

    train: Sequence[Sample] | Streams
    heldout: Sequence[Sample]
    longest: int
    notes: tuple[str, ...]


def select(task: Task, ask: Ask, limit: int, evaluated: int) -> Selection:
    """The task's problems whose prompts have at most `limit` tokens (0: all), and the first `evaluated` held-out ones.

    Raises UsageError where the limit leaves none.
    """
    train: Sequence[Sample] | Streams = task if isinstance(task, Streams) else task.samples("train")
    heldout, notes = task.samples("heldout"), []
    if limit:
        heldout, told = _fitting(heldout, ask, limit, "held-out")
        notes += told
        if not isinstance(train, Streams):
            train, told = _fitting(train, ask, limit, "training")
            notes += told
    if len(heldout) < evaluated:
        left = f"max_prompt_tokens = {limit} leaves" if limit else "the task holds out"
        raise UsageError(f"evaluation.problems = {evaluated}: {left} only {len(heldout)}")
    chosen = heldout[:evaluated]
    return Selection(train, chosen, _longest(train, chosen, ask), tuple(notes))


def _fitting(samples: Sequence[Sample], ask: Ask, limit: int, what: str) -> tuple[Sequence[Sample], list[str]]:
    kept = [s for s in samples if len(ask(s)) <= limit]
    if not kept:
        raise UsageError(f"max_prompt_tokens = {limit}: every {what} prompt is longer; raise it")
    gone = len(samples) - len(kept)
    told = f"{gone} of {len(samples)} {what} problems have more than max_prompt_tokens = {limit} and are left out"
    return kept, [told] if gone else []


def _longest(train: Sequence[Sample] | Streams, heldout: Sequence[Sample], ask: Ask) -> int:
    """Tokens of the longest prompt. Texts are gone through one by one: a file may be larger than memory."""
    drawn = (train.draw(i, 0, {}) for i in range(DRAWN)) if isinstance(train, Streams) else train
    return max(len(ask(s)) for s in [*_longest_texts(drawn), *_longest_texts(heldout)])


def _longest_texts(samples: Iterable[Sample]) -> list[Sample]:
    return heapq.nlargest(LOOKED_AT, samples, key=lambda s: len(s.prompt) + sum(len(m["content"]) for m in s.messages))
