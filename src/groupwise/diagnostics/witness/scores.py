"""Scores made again from the text: completions of the step, a few, by the task and by rewards that cannot hang."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from groupwise.core.errors import brief
from groupwise.core.records import Completion
from groupwise.core.samples import TASK, Attempt, Reward
from groupwise.core.task import Task
from groupwise.diagnostics.witness.again import is_ours
from groupwise.diagnostics.witness.reading import (
    Disagreement,
    Reading,
    Said,
    StepSeen,
    Unmeasured,
    agree,
    differs,
)
from groupwise.diagnostics.witness.rows import TIE
from groupwise.health.checks import GROUPS_AS_SAMPLED
from groupwise.rewards.functions.adapters import score_result, score_results
from groupwise.rewards.pool.work import ScorePool

#: Completions of a step that are scored again at most.
MOST = 16


class Rewards(Protocol):
    """Rewards of a run that are functions of a completion, by name."""

    @property
    def own(self) -> Mapping[str, Reward]: ...


class Scores(Protocol):
    """The parts that turned the step's ids into scored completions.

    slow      names of what is scored in processes
    for_task  an attempt as the task's own score sees it
    """

    @property
    def task(self) -> Task: ...

    @property
    def rewards(self) -> Rewards: ...

    @property
    def has_answers(self) -> bool: ...

    @property
    def slow(self) -> list[str]: ...

    @property
    def pool(self) -> ScorePool | None: ...

    @property
    def decode(self) -> Callable[[tuple[int, ...]], str]: ...

    def for_task(self, attempt: Attempt) -> Attempt: ...


class ScoresReading(Reading):
    """A completion's text is its ids decoded, and its score is the task's score of that text."""

    subject = GROUPS_AS_SAMPLED

    def __init__(self, scorer: Scores, is_function: bool) -> None:
        """`is_function`: the task's score is no code of the user's own, so that it is a function of the text."""
        self._scorer, self._is_function = scorer, is_function

    def begin(self, seen: StepSeen) -> Said:
        """Decode and score some completions again, in slow readings."""
        if not seen.slow:
            return
        rows = self._chosen(seen)
        attempts = [self._attempt(seen, row) for row in rows]
        for row, attempt in zip(rows, attempts, strict=True):
            text = seen.rows.completions[row].text
            if attempt.completion != text:
                words = f"{brief(text)} was scored, and its ids decode to {brief(attempt.completion)}; look at scoring"
                yield differs(seen.rows.words(row), words)
                return
        for row, attempt in zip(rows, attempts, strict=True):
            for name, theirs, score in self._quick(attempt, seen.rows.completions[row]):
                yield self._compare(seen, row, name, theirs, score)
        if self._scorer.has_answers and TASK in self._scorer.slow:
            in_processes = self._ours if self._is_function else self._users
            yield from in_processes(seen, rows, [self._scorer.for_task(attempt) for attempt in attempts])

    def _chosen(self, seen: StepSeen) -> list[int]:
        """Choose completions from all over the step, or whole groups if a user's own code scores them."""
        every = [i for i, c in enumerate(seen.rows.completions) if c.ended is None and not c.fault]
        if self._is_function:
            return every[:: max(1, -(-len(every) // MOST))]
        mixed = [row for row in every if len(set(self._recorded(seen, self._of_group(seen, row)))) > 1]
        return (mixed or every)[:MOST]

    def _of_group(self, seen: StepSeen, row: int) -> list[int]:
        return [other for other, group in enumerate(seen.rows.group) if group == seen.rows.group[row]]

    def _recorded(self, seen: StepSeen, rows: Sequence[int]) -> list[float]:
        return [seen.rows.completions[row].score for row in rows]

    def _attempt(self, seen: StepSeen, row: int) -> Attempt:
        completion = seen.rows.completions[row]
        sample = seen.result.groups[seen.rows.group[row]].prompt.sample
        return Attempt(sample, self._scorer.decode(completion.said), completion.finish, completion.said)

    def _quick(self, attempt: Attempt, completion: Completion) -> Iterator[tuple[str, float, float]]:
        """Yield each score of a completion by name, as it was and as it is now."""
        scorer = self._scorer
        if scorer.has_answers and TASK not in scorer.slow and self._is_function:
            own = scorer.for_task(attempt)
            yield TASK, completion.score, score_result(scorer.task.score(own.sample, own.completion)).value
        before = dict(completion.reward_scores)
        for name, reward in scorer.rewards.own.items():
            if name not in scorer.slow and is_ours(reward) and name in before:
                yield name, before[name], score_results(reward([attempt]), 1)[0].value

    def _compare(self, seen: StepSeen, row: int, name: str, theirs: float, score: float) -> Disagreement:
        if one_score(theirs, score):
            return agree()
        text = brief(seen.rows.completions[row].text)
        words = f"its score by {name} is {theirs:g}, and {score:g} when {text} is scored again; look at scoring"
        return differs(seen.rows.words(row), words)

    def _ours(self, seen: StepSeen, rows: Sequence[int], attempts: Sequence[Attempt]) -> Said:
        """Score again in the run's processes. Single scores may differ there, for time decides them; most may not."""
        known = [(row, score) for row, score in zip(rows, self._pooled(attempts), strict=True) if not math.isnan(score)]
        said = [self._compare(seen, row, TASK, seen.rows.completions[row].score, score) for row, score in known]
        wrong = [one for one in said if one.real]
        yield from wrong if 2 * len(wrong) > len(said) else [agree()]

    def _users(self, seen: StepSeen, rows: Sequence[int], attempts: Sequence[Attempt]) -> Said:
        """Score again what a user's own code scores, which may be random or know of the time.

        So nothing but scores of a whole group that are there in another order, twice, is a disagreement.
        """
        first, second = self._pooled(attempts), self._pooled(attempts)
        if not all(map(one_score, first, second)):
            yield Unmeasured("the task's score differs between two scorings of one text, so it is no function of texts")
            return
        now = dict(zip(rows, first, strict=True))
        for row in rows:
            group = self._of_group(seen, row)
            if any(other not in now for other in group):
                continue
            before, after = self._recorded(seen, group), [now[other] for other in group]
            if all(map(one_score, before, after)):
                yield agree()
            elif all(map(one_score, sorted(before), sorted(after))):
                other = next(i for i, x in zip(group, before, strict=True) if not one_score(x, now[i]))
                yield self._compare(seen, other, TASK, seen.rows.completions[other].score, now[other])
                return
            else:
                yield Unmeasured(f"the task scores {seen.rows.words(row)} otherwise than before: {before}, now {after}")

    def _pooled(self, attempts: Sequence[Attempt]) -> list[float]:
        pool = self._scorer.pool
        assert pool is not None
        tickets = [pool.submit(TASK, [attempt])[0] for attempt in attempts]
        return [result.value for result in pool.wait(tickets)]


def one_score(one: float, other: float) -> bool:
    """Tell whether two scores are one, or both are missing.

    >>> one_score(1.0, 1.0), one_score(math.nan, math.nan), one_score(1.0, math.nan)
    (True, True, False)
    """
    return (math.isnan(one) and math.isnan(other)) or abs(one - other) <= TIE
