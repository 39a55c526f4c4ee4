"""Scores completions: the quick scorers where the run is, all others in a pool of processes, beside generation."""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from groupwise.core.engine import Finished
from groupwise.core.records import Completion, Prompt
from groupwise.core.reward import Reward, ScoreResult
from groupwise.core.samples import Attempt
from groupwise.core.task import Judged, ScoresSteps, Task
from groupwise.rewards.functions.results import score_results
from groupwise.rewards.pool.pool import Pool

#: Names of the two rewards that are not functions of a recipe: the task's own score, and the reward model's.
TASK, LEARNED = "task", "learned"

Decode = Callable[[tuple[int, ...]], str]


@dataclass(frozen=True)
class Mix:
    """The rewards that train, by name: reward = sum of weight x score.

    weights  of every reward, the task's own ("task") and a reward model's ("learned") included where they train
    own      those that are functions of a completion
    each     advantages are computed for each reward by itself and then added, weighted; else scores are added first
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    own: Mapping[str, Reward] = field(default_factory=dict)
    each: bool = False

    def combine(self, parts: Mapping[str, float]) -> float | None:
        """The weighted sum, NaN where a part is; None where the recipe names no rewards.

        >>> Mix({"task": 1.0, "tags": 0.2}).combine({"task": 1.0, "tags": 0.5})
        1.1
        """
        return math.fsum(w * parts[name] for name, w in self.weights.items()) if self.weights else None


class Scorer:
    """Turns sampled ids into scored completions."""

    def __init__(
        self, task: Task, decode: Decode, mix: Mix | None = None, pool: Pool | None = None, reads_steps: bool = False
    ) -> None:
        self.task, self.decode, self.mix, self.pool = task, decode, mix or Mix(), pool
        self.reads_steps = reads_steps
        self._shown: set[str] = set()
        self._unshown: list[str] = []
        self._seconds = 0.0

    def truth(self) -> Scorer:
        """The same with the task's own score alone, which is what evaluation measures."""
        return Scorer(self.task, self.decode, None, self.pool)

    def note(self, marks: Mapping[str, ScoreResult]) -> None:
        """Remember the first fault of each kind, to be shown once."""
        for name, mark in marks.items():
            kind = f"{mark.cause} in {name}"
            if mark.cause is not None and kind not in self._shown:
                self._shown.add(kind)
                self._unshown.append(f"{kind}: {mark.detail}")

    def take_unshown(self) -> list[str]:
        """Faults of kinds that nobody has been shown yet, with the user's own traceback where there is one."""
        unshown, self._unshown = self._unshown, []
        return unshown

    def take_seconds(self) -> float | None:
        """Seconds that processes have scored since the last call, all of them together; None where there are none."""
        if self.pool is None:
            return None
        before, self._seconds = self._seconds, self.pool.seconds
        return self._seconds - before

    def close(self) -> None:
        """End the processes that score."""
        if self.pool is not None:
            self.pool.close()

    @property
    def judged(self) -> bool:
        """Whether nobody knows the right answers, so that the task has no score of its own."""
        return isinstance(self.task, Judged) and self.task.judged

    @property
    def slow(self) -> list[str]:
        """The names of what the pool scores."""
        named = {TASK: self.task.quick, **{name: reward.quick for name, reward in self.mix.own.items()}}
        return [name for name, quick in named.items() if not quick] if self.pool else []

    def quick_marks(self, attempts: Sequence[Attempt]) -> dict[str, list[ScoreResult]]:
        """What is scored here, by name."""
        found = {}
        if self.judged:
            found[TASK] = [ScoreResult()] * len(attempts)
        elif TASK not in self.slow:
            found[TASK] = score_results([self.task.score(a.sample, a.completion) for a in attempts], len(attempts))
        for name, reward in self.mix.own.items():
            if name not in self.slow:
                found[name] = score_results(reward(attempts), len(attempts))
        return found


class Marking:
    """The scoring of one round of generation. It hears of completions as they end, and hands them out scored."""

    def __init__(self, scorer: Scorer, prompts: Sequence[Prompt]) -> None:
        self.scorer, self.prompts = scorer, prompts
        self._slow = scorer.slow
        self._attempts: dict[tuple[int, int], Attempt] = {}
        self._tickets: dict[tuple[int, int], dict[str, int]] = {}

    def hear(self, done: Finished) -> None:
        """A completion has ended: its slow scores are begun."""
        at = done.request, done.sample
        text = self.scorer.decode(done.tokens)
        attempt = Attempt(self.prompts[done.request].sample, text, done.finish, done.tokens)
        self._attempts[at] = attempt
        pool = self.scorer.pool
        if pool is not None:
            self._tickets[at] = {name: pool.submit(name, [attempt])[0] for name in self._slow}

    def scored(self, answers: Sequence[Sequence[Completion]]) -> list[tuple[Completion, ...]]:
        """The completions of each prompt with text, scores and faults, once every score is there."""
        places = [(i, j) for i, group in enumerate(answers) for j in range(len(group))]
        for i, j in places:
            if (i, j) not in self._attempts:  # an engine need not tell early
                completion = answers[i][j]
                self.hear(Finished(i, j, completion.tokens, completion.finish))
        attempts = [self._attempts[at] for at in places]
        found = self.scorer.quick_marks(attempts)
        pool = self.scorer.pool
        for name in self._slow:
            assert pool is not None
            found[name] = pool.wait([self._tickets[at][name] for at in places])
        by_place = {at: {name: m[k] for name, m in found.items()} for k, at in enumerate(places)}
        return [
            tuple(self._finish(c, self._attempts[i, j], by_place[i, j]) for j, c in enumerate(group))
            for i, group in enumerate(answers)
        ]

    def _finish(self, completion: Completion, attempt: Attempt, told: Mapping[str, ScoreResult]) -> Completion:
        scorer = self.scorer
        scorer.note(told)
        done = dataclasses.replace(
            completion,
            text=attempt.completion,
            score=told[TASK].value,
            reward_scores=tuple((name, mark.value) for name, mark in told.items() if name in scorer.mix.weights),
            combined=_combined(scorer.mix, {name: mark.value for name, mark in told.items()}),
            fault=fault(told),
        )
        if scorer.reads_steps and isinstance(scorer.task, ScoresSteps):
            steps = scorer.task.steps(attempt.sample, attempt.completion)
            done = dataclasses.replace(done, steps=_steps_at_tokens(steps, done, scorer.decode))
        return done


def _combined(mix: Mix, parts: Mapping[str, float]) -> float | None:
    """The weighted sum as far as it is known here: a reward model's score comes later, in `with_learned`."""
    return None if LEARNED in mix.weights else mix.combine(parts)


def with_learned(completion: Completion, learned: float, mix: Mix) -> Completion:
    """The completion with a reward model's score, alone or as one of the rewards that train."""
    if not mix.weights:
        return dataclasses.replace(completion, learned=learned)
    reward_scores = (*completion.reward_scores, *([(LEARNED, learned)] if LEARNED in mix.weights else []))
    combined = mix.combine({TASK: completion.score, **dict(reward_scores)})
    return dataclasses.replace(completion, learned=learned, reward_scores=reward_scores, combined=combined)


def fault(told: Mapping[str, ScoreResult]) -> str:
    """Why a score is missing, the first one: "timeout in task"; "" where none is.

    >>> from groupwise.core.reward import Cause
    >>> fault({"task": ScoreResult(1.0), "mine": ScoreResult(cause=Cause.TIMEOUT)})
    'timeout in mine'
    """
    return next((f"{mark.cause} in {name}" for name, mark in told.items() if mark.cause is not None), "")


def _steps_at_tokens(
    steps: Sequence[tuple[int, float]], completion: Completion, decode: Callable[[tuple[int, ...]], str]
) -> tuple[tuple[int, float], ...]:
    """Ends in the text to ends in the tokens: a step ends with the token that brings its last character.

    Searched by the length of decoded prefixes, which asks nothing of the tokenizer but that text grows with tokens.
    Raises ValueError for an end outside the text.
    """
    if not completion.tokens:
        return ()
    longer = range(1, len(completion.tokens))
    found = []
    for end, value in steps:
        if not 0 <= end <= len(completion.text):
            raise ValueError(
                f"a step ends at {end} in a completion of {len(completion.text)} characters; see task.steps"
            )
        index = bisect_left(longer, end, key=lambda count: len(decode(completion.tokens[:count])))
        found.append((index, float(value)))
    return tuple(found)
