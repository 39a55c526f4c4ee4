"""Filters say which groups train: keep or drop a whole group, with a reason that is counted."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from groupwise.algorithms.parts import Part, Signal, require_within
from groupwise.core.numbers.measure import CORRECTNESS, differ, values_of
from groupwise.core.records import Group

#: A completion with at least this score is right, whatever is added to its reward later.
RIGHT = 1.0 - 1e-6


class Verdict(NamedTuple):
    keep: bool
    reason: Signal


class Filter(Part, Protocol):
    """(group) -> Verdict.

    max_rounds      rounds of generation a step may spend to replace dropped groups
    mask_truncated  completions cut off at the limit neither vote nor train: DAPO's overlong filtering
    metric          what it goes by
    """

    max_rounds: int = 1
    mask_truncated: bool = False
    metric: str = CORRECTNESS

    def __call__(self, group: Group) -> Verdict: ...


@dataclass(frozen=True)
class KeepAll(Filter):
    """Every group trains, tied ones included (their advantage is 0)."""

    equation = "every group trains"

    mask_truncated: bool = False

    def __call__(self, group: Group) -> Verdict:
        return Verdict(True, signal(group))


@dataclass(frozen=True)
class DropUniform(Filter):
    """Only groups whose completions differ train; the others are replaced by new prompts.

    metric  what they differ in: "correctness" (right and wrong by the task's score), "reward" (the one that trains), or
            the name of one of several rewards; in a run it is what trains, unless the recipe says otherwise

    By correctness 0 < |{i : completion i is right}| < G; by a reward max_i r_i > min_i r_i. Both before the reward is
    shaped, cut off completions included.
    Source: DAPO (2503.14476), section 3.2, by correctness.
    """

    equation = "completions of a group differ in the metric (0 < right < G), or a new prompt takes its place"

    max_rounds: int = 10
    mask_truncated: bool = False
    metric: str = CORRECTNESS

    def __post_init__(self) -> None:
        require_within(self, 1, 1000, "max_rounds")

    def __call__(self, group: Group) -> Verdict:
        reason = signal(group, self.metric)
        return Verdict(reason is Signal.MIXED, reason)


def signal(group: Group, metric: str = CORRECTNESS) -> Signal:
    """Classify a group by its completions that have a value: are they right, or, by a reward, do they differ?"""
    values = values_of(group, metric)
    if metric == CORRECTNESS or not values:
        return of_passes([value >= RIGHT for value in values])
    return Signal.MIXED if differ(values) else Signal.EQUAL


def of_passes(passed: Sequence[bool]) -> Signal:
    """Mixed, all right or all wrong, of completions that have a score.

    >>> of_passes([True, False]), of_passes([])
    (<Signal.MIXED: 'mixed'>, <Signal.UNSCORED: 'unscored'>)
    """
    if not passed:
        return Signal.UNSCORED
    if all(passed):
        return Signal.ALL_RIGHT
    return Signal.MIXED if any(passed) else Signal.ALL_WRONG
