"""Claim: of the normalisers only a constant leaves the gradient unbiased."""

import math
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from groupwise.algorithms.settings import algorithm
from groupwise.claims.claim import Claim, Quantity
from groupwise.claims.computed import computed
from groupwise.claims.measurements import Measurements
from groupwise.claims.toys import ascent
from groupwise.claims.verdict import Verdict, above, agree, every

NAME = "length-bias"
#: The chance to take another step after each of the first ones, and that an answer of so many steps is right.
GO_ON, RIGHT = (0.5, 0.6, 0.7), (0.2, 0.35, 0.5, 0.65)
GROUP = 2
ROWS = {kind: algorithm("dr-grpo", {"aggregate.kind": kind}) for kind in ("sequence-mean", "token-mean")} | {
    "constant": algorithm("dr-grpo", {"aggregate.limit": len(RIGHT)})
}


def measure(seed: int, work: Path) -> dict[str, float]:
    """A policy that decides after each step whether it stops, and is right the more often the longer it goes on: the
    expected gradient over all groups, each a batch of its own, against that of the pass rate.
    """
    slope, chance = _slopes(), _chances()
    reward = torch.tensor([0.0, 1.0], dtype=torch.float64).repeat(len(RIGHT))
    length = torch.arange(1, len(RIGHT) + 1).repeat_interleave(2)
    truth = (chance * reward) @ slope.sum(1)
    seen: dict[str, float] = {}
    for name, algo in ROWS.items():
        expected = torch.zeros(len(GO_ON), dtype=torch.float64)
        for group in map(list, product(range(len(chance)), repeat=GROUP)):
            mask = torch.arange(len(RIGHT)) < length[group, None]
            advantage = algo.advantages(reward[group], torch.zeros(GROUP, dtype=torch.long))
            zero = torch.zeros(mask.shape, dtype=torch.float64)
            weight = ascent(algo, zero, zero, advantage, mask)
            expected += chance[group].prod() * torch.einsum("nt,ntk->k", weight, slope[group])
        along = (expected @ truth / truth.norm() ** 2) * truth
        seen[f"off_{name}"] = float((expected - along).norm() / expected.norm())
        seen[f"degrees_{name}"] = math.degrees(math.asin(min(1.0, seen[f"off_{name}"])))
    return seen


def _slopes() -> Tensor:
    """[2 x steps, T, K] d log p of each token by the logit of each decision; twice, for wrong and right."""
    steps = len(RIGHT)
    slope = torch.zeros(steps, steps, len(GO_ON), dtype=torch.float64)
    for row in range(steps):
        for place, chance in enumerate(GO_ON[: row + 1]):
            slope[row, place, place] = 1 - chance if place < row else -chance
    return slope.repeat_interleave(2, 0)


def _chances() -> Tensor:
    """[2 x steps] of every outcome: so many steps, wrong and right."""
    lengths = [math.prod(GO_ON[:n]) * (1 - GO_ON[n] if n < len(GO_ON) else 1.0) for n in range(len(RIGHT))]
    both = [chance * share for chance, right in zip(lengths, RIGHT, strict=True) for share in (1 - right, right)]
    return torch.tensor(both, dtype=torch.float64)


EXPERIMENT = computed(NAME, measure, seeds=1)


def judge(measured: Measurements) -> Verdict:
    """The constant's gradient has the direction of the pass rate's, to rounding; the others' are off by 2 % or more."""
    constant = agree(
        measured.mean(NAME, "off_constant"), 0.0, 1e-7, "a constant's gradient and the pass rate's, in direction,"
    )
    others = (
        above(
            measured.mean(NAME, f"off_{kind}"),
            0.02,
            f"under a {kind.replace('-', ' ')} the gradient is off by a share of",
        )
        for kind in ("sequence-mean", "token-mean")
    )
    return every([constant, *others])


CLAIM = Claim(
    name=NAME,
    title="Only a constant in the place of the length leaves the policy gradient unbiased; DAPO's mean over tokens "
    "does not.",
    source="Dr. GRPO 2503.20783, against S0 and S1, who have the token mean as the cure",
    argument="A sum over tokens is the policy gradient; a constant only scales it. The number of tokens of a batch "
    "depends on what was sampled, and so does a weight that divides by it: batches of short answers weigh more.",
    expected="Holds; the token mean is off by less than the mean per sequence.",
    experiments=(EXPERIMENT,),
    quantities=tuple(
        Quantity(f"{words}: {what}", NAME, f"{key}_{kind}")
        for kind, words in (
            ("constant", "constant"),
            ("token-mean", "mean over tokens"),
            ("sequence-mean", "mean per sequence"),
        )
        for key, what in (("off", "share of the gradient across the true one"), ("degrees", "degrees between them"))
    ),
    judge=judge,
)
