"""Measures that completions are judged by: the task's score, the reward that trains, or one of several rewards."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from groupwise.core.numbers.metrics import Metrics, Sum, mean_of, merge
from groupwise.core.records import Completion, Group

#: What a metric may name beside a reward: the task's own score, and the reward that trains.
CORRECTNESS, REWARD = "correctness", "reward"
#: Scores that differ by no more than this are equal: the range within a group, not the deviation.
TIE = 1e-6


@dataclass(frozen=True)
class Measure:
    """Measure that an evaluation and the words of a run go by.

    metric   CORRECTNESS, REWARD, or the name of one of several rewards
    pass_at  reward units from which on a completion passes; None: there is no passing, and the mean is what counts

    >>> one = Completion.of_one_turn((5,), (-0.5,), "stop", version=0, score=1.0, combined=-3.0)
    >>> Measure().passes(one), Measure(REWARD, pass_at=-2.0).passes(one), Measure(REWARD, pass_at=None).value(one)
    (True, False, -3.0)
    """

    metric: str = CORRECTNESS
    pass_at: float | None = 1.0

    def value(self, completion: Completion) -> float:
        """Return the value of a completion, reward units; NaN if it has none."""
        return metric_value(completion, self.metric)

    def passes(self, completion: Completion) -> bool:
        """Return whether its value is high enough; one without a value does not pass."""
        return self.pass_at is not None and self.value(completion) >= self.pass_at - TIE


def metric_value(completion: Completion, metric: str) -> float:
    """Return the task's score, the reward that trains, or the score of one reward by its name; NaN if there is none."""
    if metric == CORRECTNESS:
        return completion.score
    if metric == REWARD:
        return completion.trains_on
    return completion.by_reward.get(metric, math.nan)


def values_of(group: Group, metric: str) -> list[float]:
    """Return the values of the group's completions that have one."""
    values = (metric_value(completion, metric) for completion in group.completions)
    return [value for value in values if not math.isnan(value)]


def differ(values: Sequence[float]) -> bool:
    """Return whether there is something to prefer among them.

    >>> differ([0.5, 0.5]), differ([0.5, 0.6]), differ([0.5])
    (False, True, False)
    """
    return len(values) > 1 and max(values) - min(values) > TIE


class Logged(NamedTuple):
    """The numbers that rewards log, by `reward.name`: their means over completions, and what they add up to."""

    means: Metrics
    totals: Metrics

    @classmethod
    def of(cls, numbers: Mapping[str, Sequence[tuple[float, int]]]) -> Logged:
        """Take (number, completions that it is of together) of each completion: a call's number is added once.

        >>> logged = Logged.of({"mine.cost": [(0.5, 2), (0.5, 2), (0.25, 1)]})
        >>> logged.totals["mine.cost"].read()
        0.75
        """
        by_name = sorted(numbers.items())
        means = {name: mean_of([number for number, _ in each]) for name, each in by_name}
        totals = {name: Sum(math.fsum(number / count for number, count in each)) for name, each in by_name}
        return cls(means, totals)

    def merged(self, other: Logged) -> Logged:
        """Merge both."""
        return Logged(merge([self.means, other.means]), merge([self.totals, other.totals]))


def logged_of(completions: Sequence[Completion]) -> Logged:
    """Return what rewards log of completions one by one."""
    columns: dict[str, list[tuple[float, int]]] = {}
    for completion in completions:
        for name, value in completion.logged:
            if isinstance(value, (int, float)):
                columns.setdefault(name, []).append((value, 1))
    return Logged.of(columns)
