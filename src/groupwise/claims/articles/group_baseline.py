"""Claim: the critic-free advantage tends to REINFORCE with a baseline as the group grows."""

import math
from pathlib import Path

import torch

from groupwise.algorithms.settings import algorithm
from groupwise.claims.claim import Claim, Quantity
from groupwise.claims.computed import computed
from groupwise.claims.measurements import Measurements
from groupwise.claims.verdict import Verdict, agree

NAME = "group-baseline"
SIZES = (2, 4, 16, 64, 256)
CHANCES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98)
#: Without the deviation, as Dr. GRPO has it, and with it.
ROWS = {"mean": algorithm("dr-grpo"), "deviation": algorithm("grpo")}


def measure(seed: int, work: Path) -> dict[str, float]:
    """The expected gradient of one prompt's pass rate p, by p itself, over all groups of G: 1 of REINFORCE with the
    exact baseline. d log p(right) = 1 / p, d log p(wrong) = -1 / (1 - p); groups by the binomial distribution.
    """
    seen: dict[str, float] = {}
    for name, algo in ROWS.items():
        for size in SIZES:
            right = torch.arange(size + 1)
            rewards = (torch.arange(size) < right[:, None]).double()
            groups = right[:, None].expand(-1, size)
            advantage = algo.advantages(rewards.flatten(), groups.flatten()).view(size + 1, size)
            for chance in CHANCES:
                score = (rewards - chance) / (chance * (1 - chance))
                seen[f"{name}_{size}_{chance}"] = float(_binomial(size, chance) @ (advantage * score).mean(1))
    return seen


def _binomial(size: int, chance: float) -> torch.Tensor:
    """[G+1] the chance of so many right ones."""
    ways = (math.lgamma(size + 1) - math.lgamma(k + 1) - math.lgamma(size - k + 1) for k in range(size + 1))
    logs = [log + k * math.log(chance) + (size - k) * math.log1p(-chance) for k, log in enumerate(ways)]
    return torch.tensor(logs, dtype=torch.float64).exp()


EXPERIMENT = computed(NAME, measure, seeds=1)


def judge(measured: Measurements) -> Verdict:
    """(G - 1) / G at every size and pass rate: a scale alone, which tends to 1."""
    places = [(size, chance) for size in SIZES for chance in CHANCES]
    apart = [abs(measured.mean(NAME, f"mean_{size}_{chance}") - (size - 1) / size) for size, chance in places]
    return agree(max(apart), 0.0, 1e-9, "the gradient over REINFORCE's and (G - 1)/G, at whatever G and p,")


CLAIM = Claim(
    name=NAME,
    title="As the group grows, the group-relative advantage without the deviation becomes REINFORCE with a baseline.",
    source="S1, on the limit of large groups",
    argument="The group's mean holds the completion itself, which scales the expected gradient by (G - 1)/G and biases "
    "nothing: it is REINFORCE with a baseline at every G, not only in the limit.",
    expected="Holds, at every G.",
    experiments=(EXPERIMENT,),
    quantities=tuple(
        Quantity(f"expected gradient over REINFORCE's, G = {size}, p = {chance}", NAME, f"mean_{size}_{chance}")
        for size in SIZES
        for chance in (0.05, 0.5)
    ),
    judge=judge,
)
