"""Completions whose worth is known beforehand, right ones and wrong ones, and how rewards score them."""

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from groupwise.core.reward import TASK, Cause, ScoreResult
from groupwise.core.samples import Attempt, Sample
from groupwise.core.task import KnowsGold, Task
from groupwise.rollout.scoring import Scorer

#: Trials that are scored together, and seconds after which no more are begun.
TOGETHER, SECONDS = 32, 20.0

#: A completion's text -> its ids, for rewards that read them.
Encode = Callable[[str], tuple[int, ...]]

_NUMBER = re.compile(r"([^\w-]{0,4})(-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?)([^\d]*)")


class Kind(StrEnum):
    """Kind of a completion."""

    GOLD = "gold completions"
    BARE = "gold answers alone"
    OTHER = "gold completions of another problem"
    MORE = "gold answers + 1"
    LESS = "gold answers - 1"
    EMPTY = "empty completions"
    PROMPT = "prompts in the place of completions"


#: Those that are wrong, and of them those that are off by one.
WRONG = (Kind.OTHER, Kind.MORE, Kind.LESS, Kind.EMPTY)
OFF_BY_ONE = (Kind.MORE, Kind.LESS)


@dataclass(frozen=True)
class Trial:
    """A sample with the completions that it is scored on."""

    sample: Sample
    completions: Mapping[Kind, str]


@dataclass(frozen=True)
class TrialScores:
    """Results of one reward by kind, a mapping each trial. After a timeout a reward is not tried further."""

    name: str
    results: Sequence[Mapping[Kind, ScoreResult]]

    def of(self, *kinds: Kind) -> list[ScoreResult]:
        """List all results of these kinds."""
        return [trial[kind] for trial in self.results for kind in kinds if kind in trial]

    def values(self, *kinds: Kind) -> list[float]:
        """List the scores of these kinds, those that are missing left out."""
        return [result.value for result in self.of(*kinds) if result.votes]

    def together(self, *kinds: Kind) -> list[tuple[float, ...]]:
        """List the scores of every trial that has one of each of these kinds."""
        complete = [[trial[kind] for kind in kinds] for trial in self.results if trial.keys() >= {*kinds}]
        return [tuple(r.value for r in results) for results in complete if all(r.votes for r in results)]


def gold_of(task: Task, sample: Sample) -> str:
    """Return a completion that should score 1.0, "" if none is known."""
    return task.gold(sample) if isinstance(task, KnowsGold) else sample.answer


def trials(task: Task, samples: Sequence[Sample]) -> list[Trial]:
    """Make trials of the samples whose gold completion is known, each with right and wrong ones."""
    golds = [(sample, gold) for sample in samples if (gold := gold_of(task, sample))]
    return [
        Trial(sample, _completions(sample, gold, [*golds[place + 1 :], *golds[:place]]))
        for place, (sample, gold) in enumerate(golds)
    ]


def ungraded_trials(samples: Sequence[Sample]) -> list[Trial]:
    """Make trials of texts that any data has, for rewards that no gold completion can be shown to."""
    return [Trial(sample, {Kind.PROMPT: sample.prompt, Kind.EMPTY: ""}) for sample in samples]


def _completions(sample: Sample, gold: str, others: Sequence[tuple[Sample, str]]) -> dict[Kind, str]:
    bare = sample.answer.strip()
    different = (text for s, text in others if s.answer != sample.answer and s.source == sample.source)
    completions = {
        Kind.GOLD: gold,
        Kind.BARE: bare if bare != gold.strip() else "",
        Kind.OTHER: next(different, ""),
        Kind.MORE: off_by(gold, bare, 1),
        Kind.LESS: off_by(gold, bare, -1),
    }
    return {**{kind: text for kind, text in completions.items() if text}, Kind.EMPTY: ""}


def off_by(completion: str, answer: str, step: int) -> str:
    """Put another number where a completion's answer stands last; "" if the answer is no single number.

    >>> off_by("24+48 = 72\\n#### 1,072", "1,072", 1), off_by("so it is x", "x", 1)
    ('24+48 = 72\\n#### 1,073', '')
    """
    wrong = shifted(answer, step)
    before, answered, after = completion.rpartition(answer) if wrong else ("", "", "")
    return before + wrong + after if answered else wrong


def shifted(answer: str, step: int) -> str:
    """Add `step` to a number as it is written; "" if there is no one number.

    >>> shifted("$1,999", 1), shifted("18.50", -1), shifted("-1", 1), shifted("3/4", 1)
    ('$2,000', '17.50', '0', '')
    """
    match = _NUMBER.fullmatch(answer)
    if match is None:
        return ""
    before, number, after = match.groups()
    value = Decimal(number.replace(",", "")) + step
    return f"{before}{value:{',' if ',' in number else ''}f}{after}"


def mean(values: Sequence[float]) -> float:
    """Return the mean, NaN of nothing."""
    return math.fsum(values) / len(values) if values else math.nan


def score_trials(scorer: Scorer, trials: Sequence[Trial], encode: Encode) -> list[TrialScores]:
    """Try every reward on every trial, the task's own score first, as far as time allows."""
    return [TrialScores(name, list(_results(scorer, name, trials, encode))) for name in (TASK, *scorer.rewards.own)]


def _results(
    scorer: Scorer, name: str, trials: Sequence[Trial], encode: Encode
) -> Iterator[Mapping[Kind, ScoreResult]]:
    started = time.perf_counter()
    # The first alone: where a reward hangs on it, nothing else is waited for.
    for chunk in (trials[:1], *(trials[at : at + TOGETHER] for at in range(1, len(trials), TOGETHER))):
        texts = [(trial.sample, text) for trial in chunk for text in trial.completions.values()]
        results = _score(scorer, name, [Attempt(sample, text, "stop", encode(text)) for sample, text in texts])
        remaining = iter(results)
        yield from ({kind: next(remaining) for kind in trial.completions} for trial in chunk)
        late = any(result.cause is Cause.TIMEOUT for result in results)
        if late or time.perf_counter() - started > SECONDS:
            return


def _score(scorer: Scorer, name: str, attempts: Sequence[Attempt]) -> list[ScoreResult]:
    if name in scorer.slow:
        assert scorer.pool is not None
        return scorer.pool.wait(scorer.pool.submit(name, attempts))
    return scorer.quick_results(attempts, [None] * len(attempts))[name]
