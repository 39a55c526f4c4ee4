"""Which groups train: keep or drop a whole group, with a reason that is counted."""

import math
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from groupwise.algorithms.parts import Part, require_within
from groupwise.core.records import Group

#: A completion with at least this score is right, whatever is added to its reward later.
RIGHT = 1.0 - 1e-6


class Signal(Enum):
    """What the correctness of a group's completions says about it."""

    MIXED = "mixed"
    ALL_RIGHT = "all right"
    ALL_WRONG = "all wrong"
    UNSCORED = "unscored"


class Verdict(NamedTuple):
    keep: bool
    reason: Signal


class Filter(Part, Protocol):
    """(group) -> Verdict.

    max_rounds      rounds of generation a step may spend to replace dropped groups
    mask_truncated  completions cut off at the limit neither vote nor train: DAPO's overlong filtering
    """

    max_rounds: int = 1
    mask_truncated: bool = False

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
    """Only groups with right and wrong completions train; the others are replaced by new prompts.

    0 < |{i : completion i is right}| < G, on correctness and not on the shaped reward, cut off completions included.
    Source: DAPO (2503.14476), section 3.2.
    """

    equation = "0 < right completions < G, or a new prompt takes the group's place"

    max_rounds: int = 10
    mask_truncated: bool = False

    def __post_init__(self) -> None:
        require_within(self, 1, 1000, "max_rounds")

    def __call__(self, group: Group) -> Verdict:
        reason = signal(group)
        return Verdict(reason is Signal.MIXED, reason)


def signal(group: Group) -> Signal:
    """Mixed, all right or all wrong, over the completions that have a score."""
    right = [score >= RIGHT for score in group.scores if not math.isnan(score)]
    if not right:
        return Signal.UNSCORED
    if all(right):
        return Signal.ALL_RIGHT
    return Signal.MIXED if any(right) else Signal.ALL_WRONG
