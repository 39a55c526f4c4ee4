"""The words for what a run is measured by, and the columns that it is under."""

from collections.abc import Mapping
from typing import NamedTuple

#: The metric of a run that is measured by the task's score.
CORRECTNESS = "correctness"
#: Names of a metric that are not a reward's own.
WORDS: Mapping[str, str] = {CORRECTNESS: "score", "reward": "reward", "learned": "learned score"}


class Measured(NamedTuple):
    """A measure of a run.

    words            "pass rate", "reward", "learned score", "reward mine"
    column           of an evaluation's row
    training_column  of a step's row
    """

    words: str
    column: str
    training_column: str


PASS_RATE = Measured("pass rate", "avg_at_k", "pass_rate")


def measured(metric: str, has_mark: bool) -> Measured:
    """Choose the measure by the metric of [evaluation]: the pass rate if the metric has a pass mark.

    >>> measured("reward", has_mark=False).words, measured("mine", has_mark=False).words, measured("mine", True).words
    ('reward', 'reward mine', 'pass rate')
    """
    if has_mark:
        return PASS_RATE
    return Measured(WORDS.get(metric, f"reward {metric}"), "measured_mean", "measured_mean")
