"""Scores completions: the quick scorers where the run is, all others in a pool of processes, beside generation."""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field

from groupwise.core.engine import Finished
from groupwise.core.environment import ENVIRONMENT, Ended
from groupwise.core.numbers.measure import Logged
from groupwise.core.records import Completion, Prompt
from groupwise.core.samples import LEARNED, TASK, Attempt, Cause, Reward, Sample, ScoreResult
from groupwise.core.settings import Changeable, Settings
from groupwise.core.stream import Cohort
from groupwise.core.task import Answers, ScoresSteps, Task
from groupwise.rewards.functions.adapters import fault as raised_fault
from groupwise.rewards.functions.adapters import score_result, score_results
from groupwise.rewards.pool.work import ScorePool

Decode = Callable[[tuple[int, ...]], str]


class ScoringSettings(Settings):
    """Combination of rewards, and the worker processes that score.

    combine      "before": add rewards, then compute advantages; "after": add the advantages of each reward
    workers      worker processes; 0: one per core
    deadline     seconds allowed to score one completion
    memory_mib   memory limit of a worker, MiB
    fault_limit  largest share of a step's completions that may get no score; more end the run
    """

    combine: Literal["before", "after"] = "before"
    workers: Changeable[int] = Field(default=0, ge=0, le=1024)
    deadline: Changeable[float] = Field(default=10.0, gt=0, le=86_400)
    memory_mib: Changeable[int] = Field(default=4096, ge=64, le=2**24)
    fault_limit: Changeable[float] = Field(default=0.05, ge=0, le=1)


@dataclass(frozen=True)
class RewardWeights:
    """The rewards of a recipe, by name: reward = sum of weight x score. One of weight 0 only watches.

    weights  of every reward, the task's own ("task") and a reward model's ("learned") included where they are named
    own      those that are functions of a completion
    each     advantages are computed for each reward by itself and then added, weighted; else scores are added first
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    own: Mapping[str, Reward] = field(default_factory=dict)
    each: bool = False

    @property
    def training(self) -> Mapping[str, float]:
        """The weights of the rewards that train."""
        return {name: weight for name, weight in self.weights.items() if weight}

    @property
    def watching(self) -> Set[str]:
        """The names of the functions that watch and train nothing."""
        return self.own.keys() - self.training.keys()

    def combine(self, parts: Mapping[str, float]) -> float | None:
        """Return the weighted sum over the rewards that train and vote, which are those in `parts`; NaN if a part is,
        or where none votes. None if the recipe names no rewards.

        >>> rewards = RewardWeights({"task": 1.0, "tags": 0.2, "gold": 0.0})
        >>> rewards.combine({"task": 1.0, "tags": 0.5}), rewards.combine({"tags": 0.5}), rewards.combine({"gold": 1.0})
        (1.1, 0.1, nan)
        """
        if not self.weights:
            return None
        votes = [weight * parts[name] for name, weight in self.training.items() if name in parts]
        return math.fsum(votes) if votes else math.nan


@dataclass(eq=False)
class Scorer:
    """Turns sampled ids into scored completions.

    thinking  what the prompt has of every answer already where it opens thinking, else "": the task's own score sees it
              in front of a completion, so that thinking which is never closed has no answer
    turns     whether a chat template puts a plain prompt into a turn of the user's, which opens no thinking
    """

    task: Task
    decode: Decode
    rewards: RewardWeights = RewardWeights()
    pool: ScorePool | None = None
    reads_steps: bool = False
    thinking: str = ""
    turns: bool = False

    def __post_init__(self) -> None:
        self._shown: set[str] = set()
        self._unshown: list[str] = []
        self._seconds = 0.0
        self._logged: dict[str, list[tuple[float, int]]] = {}

    def beside(self) -> Scorer:
        """Make a scorer for an evaluation, which keeps its own account of what rewards log."""
        return dataclasses.replace(self, reads_steps=False)

    def note(self, sample: Sample, results: Mapping[str, ScoreResult], completion: Completion) -> None:
        """Take what the rewards log of a call, the first fault of each kind, those of the environment in an episode's
        turns too, and the first fault of a call for many that cost no score; each is shown once.
        """
        for name, result in results.items():
            for metric, values in result.metrics.items():
                of_call = [(value, result.of_call) for value in values]
                self._logged.setdefault(f"{name}.{metric}", []).extend(of_call)
            if result.cause is not None:
                self._note_once(_named(result.cause, name, completion), result.detail)
            elif result.detail:
                self._note_once(f"{name}, called again for each completion alone", result.detail)
        voting = [results[name] for name in self.rewards.training if name in results]
        if voting and LEARNED not in self.rewards.weights and not any(r.votes or r.cause is not None for r in voting):
            functions = ", ".join(name for name in self.rewards.own if name not in self.rewards.watching)
            self._note_once("no vote", f"{functions} gave no score (None) on {sample.key}, so it trains nothing")
        for turn in completion.turns:
            if turn.fault:
                self._note_once(f"{turn.fault} in {ENVIRONMENT}", turn.detail)

    def _note_once(self, kind: str, detail: str) -> None:
        if kind not in self._shown:
            self._shown.add(kind)
            self._unshown.append(f"{kind}: {detail}")

    def take_logged(self) -> Logged:
        """Hand out what rewards logged of their calls since the last time."""
        logged, self._logged = self._logged, {}
        return Logged.of(logged)

    def take_unshown(self) -> list[str]:
        """Hand out faults of kinds that were not shown yet, with the user's own traceback where there is one."""
        unshown, self._unshown = self._unshown, []
        return unshown

    def take_seconds(self) -> float | None:
        """Hand out the seconds that processes have scored since the last call, all together; None if there are none."""
        if self.pool is None:
            return None
        before, self._seconds = self._seconds, self.pool.seconds
        return self._seconds - before

    def close(self) -> None:
        """End the processes that score."""
        if self.pool is not None:
            self.pool.close()

    @property
    def has_answers(self) -> bool:
        """True if the task has a score of its own."""
        return has_answers(self.task)

    @property
    def by_score(self) -> bool:
        """True if the task's own score is all that trains."""
        return self.has_answers and self.rewards.training.keys() <= {TASK}

    @property
    def slow(self) -> list[str]:
        """The names of what the pool scores."""
        named = {TASK: self.task.quick, **{name: reward.quick for name, reward in self.rewards.own.items()}}
        return [name for name, quick in named.items() if not quick] if self.pool else []

    def for_task(self, attempt: Attempt) -> Attempt:
        """Return the attempt as the task's own score sees it: prompt as it is sent, and the thinking that it opens."""
        sample = attempt.sample
        if self.turns and not sample.messages and sample.begun:
            sample = dataclasses.replace(sample, messages=({"role": "user", "content": sample.prompt},))
        if sample is attempt.sample and not self.thinking:
            return attempt
        return dataclasses.replace(attempt, sample=sample, completion=self.thinking + attempt.completion)

    def quick_results(
        self, attempts: Sequence[Attempt], episodes: Sequence[Completion | None]
    ) -> dict[str, list[ScoreResult]]:
        """Score what is scored here, by name; the task's score of an episode is what its turns have brought.

        episodes  of each attempt the episode that it is; None if it is none
        """
        results = {}
        if not self.has_answers:
            results[TASK] = [ScoreResult()] * len(attempts)
        elif TASK not in self.slow:
            results[TASK] = [
                scored(self.task, self.for_task(attempt)) if episode is None else episode_result(episode)
                for attempt, episode in zip(attempts, episodes, strict=True)
            ]
        for name, reward in self.rewards.own.items():
            if name not in self.slow:
                results[name] = score_results(reward(attempts), len(attempts))
        return results


def scored(task: Task, attempt: Attempt) -> ScoreResult:
    """Return a quick task's score; one of a user's own may raise, which is a fault of this completion."""
    try:
        return score_result(task.score(attempt.sample, attempt.completion))
    except Exception as error:
        return raised_fault(error)


def episode_result(episode: Completion) -> ScoreResult:
    """Return the sum of an episode's rewards; none where a fault ended it."""
    if episode.ended is Ended.FAULT:
        last = episode.turns[-1]
        return ScoreResult(cause=Cause(last.fault), detail=last.detail)
    return score_result(math.fsum(turn.reward for turn in episode.turns))


class ScoringRound:
    """The scoring of one round of generation: it is given completions as they end, and returns them scored."""

    def __init__(self, scorer: Scorer, prompts: Sequence[Prompt]) -> None:
        self.scorer, self.prompts = scorer, prompts
        self._slow = scorer.slow
        self._attempts: dict[tuple[int, int], Attempt] = {}
        self._tickets: dict[tuple[int, int], dict[str, int]] = {}

    def begin(self, done: Finished) -> None:
        """Begin the slow scores of a completion that has ended."""
        at = done.request, done.sample
        text = self.scorer.decode(done.tokens)
        attempt = Attempt(self.prompts[done.request].sample, text, done.finish, done.tokens)
        self._attempts[at] = attempt
        pool = self.scorer.pool
        if pool is not None:
            each = {name: self.scorer.for_task(attempt) if name == TASK else attempt for name in self._slow}
            self._tickets[at] = {name: pool.submit(name, [seen])[0] for name, seen in each.items()}

    def scored(self, cohort: Cohort) -> list[tuple[Completion, ...]]:
        """Return the completions of each prompt with text, scores and faults, once every score is there."""
        self.prompts, completions = cohort.prompts, cohort.completions  # an environment may have added to a prompt
        places = [(i, j) for i, group in enumerate(completions) for j in range(len(group))]
        for i, j in places:
            if (i, j) not in self._attempts:  # an engine need not report completions as they end
                self.begin(Finished(i, j, completions[i][j].said, completions[i][j].finish))
        each = [completions[i][j] for i, j in places]
        episodes = [None if completion.ended is None else completion for completion in each]
        results = self.scorer.quick_results([self._attempts[at] for at in places], episodes)
        pool = self.scorer.pool
        for name in self._slow:
            assert pool is not None
            results[name] = pool.wait([self._tickets[at][name] for at in places])
        by_place = {at: {name: column[k] for name, column in results.items()} for k, at in enumerate(places)}
        return [
            tuple(self._finish(c, self._attempts[i, j], by_place[i, j]) for j, c in enumerate(group))
            for i, group in enumerate(completions)
        ]

    def _finish(self, completion: Completion, attempt: Attempt, results: Mapping[str, ScoreResult]) -> Completion:
        scorer = self.scorer
        scorer.note(attempt.sample, results, completion)
        scores = {name: r.value for name, r in results.items() if r.votes or r.cause is not None}
        columns = ((f"{name}.{key}", value) for name, r in results.items() for key, value in r.columns.items())
        done = dataclasses.replace(
            completion,
            text=attempt.completion,
            score=results[TASK].value,
            reward_scores=tuple((name, score) for name, score in scores.items() if name in scorer.rewards.weights),
            # a reward model's score comes later, in `with_learned`
            combined=None if LEARNED in scorer.rewards.weights else scorer.rewards.combine(scores),
            logged=tuple(columns),
            fault=fault({name: r for name, r in results.items() if name not in scorer.rewards.watching}, completion),
        )
        if scorer.reads_steps and isinstance(scorer.task, ScoresSteps) and completion.ended is None:
            steps = scorer.task.steps(attempt.sample, attempt.completion)
            done = dataclasses.replace(done, steps=_steps_at_tokens(steps, done, scorer.decode))
        return done


def has_answers(task: Task) -> bool:
    """Return whether the task has a score of its own: it knows the right answers."""
    return not isinstance(task, Answers) or task.has_answers


def with_learned(completion: Completion, learned: float, rewards: RewardWeights) -> Completion:
    """Return the completion with a reward model's score, alone or as one of the rewards that train."""
    if not rewards.weights:
        return dataclasses.replace(completion, learned=learned)
    reward_scores = (*completion.reward_scores, *([(LEARNED, learned)] if LEARNED in rewards.weights else []))
    combined = rewards.combine(dict(reward_scores))
    return dataclasses.replace(completion, learned=learned, reward_scores=reward_scores, combined=combined)


def fault(results: Mapping[str, ScoreResult], completion: Completion) -> str:
    """Say why a score is missing, the first one: "timeout in task"; "" if none is.

    >>> one = Completion.of_one_turn((5,), (-0.5,), "stop", version=0)
    >>> results = {"task": ScoreResult(cause=Cause.TIMEOUT), "mine": ScoreResult(1.0)}
    >>> fault(results, one), fault(results, dataclasses.replace(one, ended=Ended.FAULT))
    ('timeout in task', 'timeout in environment')
    """
    causes = ((result.cause, name) for name, result in results.items())
    return next((_named(cause, name, completion) for cause, name in causes if cause is not None), "")


def _named(cause: Cause, name: str, completion: Completion) -> str:
    """Return a fault by its cause and by what failed: the task's score of an episode is what its environment gives."""
    by_environment = name == TASK and completion.ended is Ended.FAULT
    return f"{cause} in {ENVIRONMENT if by_environment else name}"


def _steps_at_tokens(
    steps: Sequence[tuple[int, float]], completion: Completion, decode: Callable[[tuple[int, ...]], str]
) -> tuple[tuple[int, float], ...]:
    """Turn ends in the text into ends in the tokens: a step ends with the token that brings its last character.

    Searched by the length of decoded prefixes, which assumes of the tokenizer only that text grows with tokens.
    Raises ValueError for an end outside the text.
    """
    if not completion.tokens:
        return ()
    longer = range(1, len(completion.tokens))
    at_tokens = []
    for end, value in steps:
        if not 0 <= end <= len(completion.text):
            raise ValueError(
                f"a step ends at {end} in a completion of {len(completion.text)} characters; see task.steps"
            )
        index = bisect_left(longer, end, key=lambda count: len(decode(completion.tokens[:count])))
        at_tokens.append((index, float(value)))
    return tuple(at_tokens)
