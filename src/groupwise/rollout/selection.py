"""A task's problems as a run uses them: those whose prompts fit, and how long the longest is."""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from groupwise.core.errors import UsageError
from groupwise.core.samples import Sample
from groupwise.core.task import HoldsOutSets, Streams, Task
from groupwise.rollout.collect import Encode, EvaluationSettings

#: The longest prompt is looked for among this many of the longest texts; of a stream, among this many draws.
LOOKED_AT, DRAWN = 32, 256


@dataclass(frozen=True)
class PromptLimit:
    """Treatment of long prompts.

    tokens     of a prompt at most; 0: any number
    truncates  whether longer ones lose their first tokens; else they are left out
    head       first ids that a truncated prompt keeps: 1 where prompts begin with a BOS
    """

    tokens: int = 0
    truncates: bool = False
    head: int = 0

    def truncated(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """Return the ids, where they are too many without those after the head.

        >>> PromptLimit(tokens=3, truncates=True, head=1).truncated((0, 5, 6, 7, 8))
        (0, 7, 8)
        """
        over = len(ids) - self.tokens
        return ids if not self.truncates or over <= 0 else ids[: self.head] + ids[self.head + over :]


@dataclass(frozen=True)
class Selection:
    """Problems that a run trains on and is evaluated on.

    train    the training problems, or the task itself where it makes them one by one
    heldout  the problems of an evaluation; none where nothing is evaluated
    encode   a problem -> the ids of its prompt, truncated where it is too long
    longest  tokens of the longest prompt
    notes    what was left out or truncated, in words
    """

    train: Sequence[Sample] | Streams
    heldout: Sequence[Sample]
    encode: Encode
    longest: int
    notes: tuple[str, ...]


def select(task: Task, encode: Encode, limit: PromptLimit, evaluation: EvaluationSettings) -> Selection:
    """Select the task's problems whose prompts are within the limit, and the first held-out ones of each set.

    Raises UsageError if the limit leaves none.
    """
    train: Sequence[Sample] | Streams = task if isinstance(task, Streams) else task.samples("train")
    sets = heldout_sets(task)
    notes: list[str] = []
    if limit.tokens:
        held = {name: f"held-out ({name})" if name else "held-out" for name in sets}
        sets = {name: _fitting(own, encode, limit, held[name], notes) for name, own in sets.items()}
        if not isinstance(train, Streams):
            train = _fitting(train, encode, limit, "training", notes)
    left = f"max_prompt_tokens = {limit.tokens} leaves" if limit.tokens else "the task holds out"
    chosen = list(evaluated(sets, evaluation, left).values())
    heldout = chosen[0] if len(chosen) == 1 else [sample for own in chosen for sample in own]

    def within(sample: Sample) -> tuple[int, ...]:
        return limit.truncated(encode(sample))

    return Selection(train, heldout, within, _longest(train, heldout, within), tuple(notes))


def heldout_sets(task: Task) -> Mapping[str, Sequence[Sample]]:
    """Return the task's held-out problems by the name of their set; one named "" if it has no name."""
    named = task.sets if isinstance(task, HoldsOutSets) else {}
    return named or {"": task.samples("heldout")}


def evaluated(
    sets: Mapping[str, Sequence[Sample]], evaluation: EvaluationSettings, left: str = "the task holds out"
) -> dict[str, Sequence[Sample]]:
    """Return the problems of each set to evaluate. Raises UsageError if no set has as many as the recipe says."""
    most = max(len(own) for own in sets.values())
    if evaluation.problems is not None and most < evaluation.problems:
        raise UsageError(f"evaluation.problems = {evaluation.problems}: {left} only {most}")
    return {name: own[: evaluation.most] for name, own in sets.items()}


def _fitting(
    samples: Sequence[Sample], encode: Encode, limit: PromptLimit, split: str, notes: list[str]
) -> Sequence[Sample]:
    """Return the samples that stay: those short enough, or all where longer ones are truncated; `notes` gets a line."""
    fitting = [s for s in samples if len(encode(s)) <= limit.tokens]
    if samples and not fitting and not limit.truncates:
        raise UsageError(
            f"max_prompt_tokens = {limit.tokens}: every {split} prompt is longer; raise it, or set "
            'prompt_truncation = "left"'
        )
    longer = len(samples) - len(fitting)
    if longer:
        what = "lose their first tokens" if limit.truncates else "are left out"
        notes.append(
            f"{longer} of {len(samples)} {split} problems have more than max_prompt_tokens = {limit.tokens} and {what}"
        )
    return samples if limit.truncates else fitting


def _longest(train: Sequence[Sample] | Streams, heldout: Sequence[Sample], encode: Encode) -> int:
    """Count the tokens of the longest prompt. Texts are gone through one by one: a file may be larger than memory."""
    drawn = (train.draw(i, 0, {}) for i in range(DRAWN)) if isinstance(train, Streams) else train
    texts = [heapq.nlargest(LOOKED_AT, some, key=_size) for some in (drawn, heldout)]
    return max(len(encode(sample)) for some in texts for sample in some)


def _size(sample: Sample) -> int:
    return len(sample.prompt) + len(str(sample.messages)) + len(str(sample.tools))
