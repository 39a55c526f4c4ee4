"""Claim: the critic-free advantage tends to REINFORCE with a baseline as the group grows."""

import math
from pathlib import Path

import torch

from groupwise.algorithms.settings import algorithm
from groupwise.claims.claim import Claim, Effort, Experiment, Quantity
from groupwise.claims.measurements import Measurements
from groupwise.claims.verdict import Verdict, agree, every

NAME = "group-baseline"
SIZES = (2, 4, 16, 64, 256)
#: Chances that a completion is right: a hard prompt, and one in the middle.
CHANCES = (0.05, 0.5)


def measure(seed: int, work: Path) -> dict[str, float]:
    """E[A d log p / d p] of one completion over all groups of G, completions right with chance p: exact, by binomials.

    With the mean alone it should be (G - 1) / G of d p / d p = 1; with the deviation 1 / sqrt(p (1 - p)) in the limit.
    """
    seen: dict[str, float] = {}
    for size in SIZES:
        for chance in CHANCES:
            seen[f"mean_{size}_{chance}"] = _slope("dr-grpo", size, chance)
            seen[f"deviation_{size}_{chance}"] = _slope("grpo", size, chance)
    return seen


def _slope(name: str, size: int, chance: float) -> float:
    """The expected gradient with respect to the chance itself: d log p(right) = 1/p, d log p(wrong) = -1/(1-p)."""
    right = torch.arange(size + 1)
    rewards = (torch.arange(size) < right[:, None]).double()
    groups = right[:, None].expand(-1, size)
    advantage = algorithm(name).advantages(rewards.flatten(), groups.flatten()).view(size + 1, size)
    score = torch.where(rewards > 0, 1 / chance, -1 / (1 - chance))
    logs = [math.lgamma(size + 1) - math.lgamma(k + 1) - math.lgamma(size - k + 1) for k in range(size + 1)]
    weight = torch.tensor(
        [math.exp(c + k * math.log(chance) + (size - k) * math.log1p(-chance)) for k, c in enumerate(logs)],
        dtype=torch.float64,
    )
    return float((weight * (advantage * score).mean(1)).sum())


def judge(measured: Measurements) -> Verdict:
    """Without deviation (G - 1)/G at each G and p; with it the limit 1/sqrt(p(1-p)) is another objective's gradient."""
    at = measured.of(NAME)[0].measured
    exact = max(abs(at[f"mean_{g}_{p}"] - (g - 1) / g) for g in SIZES for p in CHANCES)
    plain = agree(exact, 0.0, 1e-8, "the gradient without deviation, and (G - 1)/G of REINFORCE's,")
    hard, middle = (at[f"deviation_{SIZES[-1]}_{p}"] for p in CHANCES)
    same = agree(hard / middle, 1.0, 0.05, "with the deviation, weights of a hard prompt and of one in the middle")
    return every([plain, same])


CLAIM = Claim(
    name=NAME,
    title="As the group grows, GRPO's advantage becomes REINFORCE with a baseline.",
    source="S1; DeepSeekMath 2402.03300 section 4; Dr. GRPO 2503.20783",
    argument="The group's mean holds the completion itself, which scales the expected gradient by (G - 1)/G and biases "
    "nothing. Divided by the deviation, a prompt of pass rate p weighs 1/sqrt(p(1-p)): in the limit the gradient of "
    "2 arcsin sqrt(p), and not of p.",
    expected="Without the deviation it holds at every G, to rounding; with it, as GRPO has it, it does not hold.",
    experiments=(Experiment(NAME, measure, "1", {Effort.QUICK: 1}),),
    quantities=tuple(
        Quantity(f"gradient {words}, G = {size}, p = {chance}", NAME, f"{key}_{size}_{chance}")
        for key, words in (("mean", "less the mean"), ("deviation", "less the mean, over the deviation"))
        for size in SIZES
        for chance in CHANCES
    ),
    judge=judge,
)
