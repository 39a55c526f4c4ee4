"""One file of a user's own: a trust region, an advantage, a filter, a task and a reward."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

import groupwise
from groupwise.algorithms.parts.advantage import GroupMean
from groupwise.algorithms.parts.trust import Clip
from groupwise.core.masked import keep, row_mean
from groupwise.core.task import Demonstration


@dataclass(frozen=True)
class StaleClip(Clip):
    """PPO's clip, which lets nothing pass of a bad completion that the policy has left behind."""

    delta: float = 0.5

    @property
    def equation(self) -> str:
        return f"S = M {super().equation.removeprefix('S = ')},  M = 0 where A < 0 and mean_t log r_t < -delta, else 1"

    def __call__(self, log_ratio: Tensor, advantage: Tensor, logp_live: Tensor, mask: Tensor) -> groupwise.Surrogate:
        value, share = super().__call__(log_ratio, advantage, logp_live, mask)
        stopped = (row_mean(log_ratio, mask) < -self.delta)[:, None] & (advantage < 0)
        return groupwise.Surrogate(keep(value, ~stopped), keep(share, ~stopped))


@dataclass(frozen=True)
class Scaled(GroupMean):
    """The distance to the group's mean, times a factor."""

    equation = "A_i = factor (R_i - mean_group R)"
    factor: float = 0.5

    def scaled(self, centred: Tensor, votes: Tensor, group: Tensor) -> Tensor:
        return self.factor * centred


@dataclass(frozen=True)
class SomeRight(groupwise.Filter):
    """Groups without a single right completion are replaced."""

    equation = "1 <= right completions"
    max_rounds: int = 2

    def __call__(self, group: groupwise.Group) -> groupwise.Verdict:
        right = any(score >= 1 for score in group.scores)
        return groupwise.Verdict(right, groupwise.Signal.MIXED if right else groupwise.Signal.ALL_WRONG)


@dataclass(frozen=True)
class Doubles(groupwise.Task):
    """`7+7=` -> `14`; even numbers are held out."""

    largest: int = 60
    alphabet = "0123456789+="
    quick = True

    def samples(self, split: str) -> Sequence[groupwise.Sample]:
        numbers = range(1 if split == "train" else 2, self.largest, 2)
        return [groupwise.Sample(key=str(n), prompt=f"{n}+{n}=", answer=str(2 * n)) for n in numbers]

    def score(self, sample: groupwise.Sample, completion: str) -> float:
        return float(completion == sample.answer)

    def demonstrations(self, count: int, seed: int) -> Sequence[Demonstration]:
        rng = random.Random(seed)
        chosen = rng.choices(self.samples("train"), k=count)
        return [Demonstration(one.prompt, rng.choice([one.answer, f"{one.answer}0"])) for one in chosen]


def brevity(sample: groupwise.Sample, completion: str) -> float:
    """As short as can be."""
    return 1 / (1 + len(completion))
