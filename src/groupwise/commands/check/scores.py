"""The rewards of a run, tried on completions whose worth is known. Scored exactly as a run would score them."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from groupwise.commands.check.trials import Kind, Trial
from groupwise.core.reward import Cause, ScoreResult
from groupwise.core.samples import Attempt
from groupwise.rollout.scoring import TASK, Scorer

#: Trials that are scored together, and seconds after which no more are begun.
TOGETHER, SECONDS = 32, 20.0

#: A completion's text -> its ids, for rewards that read them.
Encode = Callable[[str], tuple[int, ...]]


@dataclass(frozen=True)
class TrialScores:
    """What one reward gave: of each trial, its results by kind. After a timeout a reward is not tried further."""

    name: str
    results: Sequence[Mapping[Kind, ScoreResult]]

    def of(self, *kinds: Kind) -> list[ScoreResult]:
        """All results of these kinds."""
        return [trial[kind] for trial in self.results for kind in kinds if kind in trial]

    def values(self, *kinds: Kind) -> list[float]:
        """The scores of these kinds, those that are missing left out."""
        return [result.value for result in self.of(*kinds) if result.cause is None]

    def together(self, *kinds: Kind) -> list[tuple[float, ...]]:
        """The scores of every trial that has one of each of these kinds."""
        complete = [[trial[kind] for kind in kinds] for trial in self.results if trial.keys() >= {*kinds}]
        return [tuple(r.value for r in results) for results in complete if all(r.cause is None for r in results)]


def mean(values: Sequence[float]) -> float:
    """NaN of nothing."""
    return math.fsum(values) / len(values) if values else math.nan


def score_trials(scorer: Scorer, trials: Sequence[Trial], encode: Encode) -> list[TrialScores]:
    """Every reward on every trial, the task's own score first, as far as time allows."""
    return [TrialScores(name, list(_results(scorer, name, trials, encode))) for name in (TASK, *scorer.mix.own)]


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
    return scorer.quick_results(attempts)[name]
