"""Claim: a larger group makes a less noisy gradient."""

import math
from pathlib import Path
from statistics import fmean

import torch

from groupwise.algorithms.settings import algorithm
from groupwise.claims.claim import Claim, Quantity
from groupwise.claims.computed import computed
from groupwise.claims.figure import Figure, Line
from groupwise.claims.measurements import Measurements
from groupwise.claims.verdict import Verdict, agree, below, every

NAME = "group-size"
SIZES = (2, 4, 8, 16, 32, 64)
#: Pass rates of the prompts, each as likely: all alike, and spread as in training.
PROMPTS = {"alike": (0.2,), "spread": (0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98)}
#: Completions in all, of whichever number of prompts.
COMPLETIONS = 512
#: Leave-one-out: unbiased at every G, so that nothing but noise differs.
RLOO = algorithm("rloo", {"kl.beta": 0.0})


def measure(seed: int, work: Path) -> dict[str, float]:
    """Deviation over mean of the gradient of a logit that all prompts share, made from 512 completions: with the others
    of the group as baseline, and, one completion a prompt, with its true pass rate, which no critic could better.
    """
    seen: dict[str, float] = {}
    for name, chances in PROMPTS.items():
        truth = fmean(p * (1 - p) for p in chances)
        squares = fmean(p * (1 - p) ** 4 + (1 - p) * p**4 for p in chances)
        seen[f"{name}_critic"] = math.sqrt((squares - truth**2) / COMPLETIONS) / truth
        for size in SIZES:
            means, squares = zip(*(_moments(size, p) for p in chances), strict=True)
            seen[f"{name}_bias_{size}"] = fmean(means) / truth - 1
            seen[f"{name}_{size}"] = math.sqrt((fmean(squares) - fmean(means) ** 2) * size / COMPLETIONS) / truth
    return seen


def _moments(size: int, chance: float) -> tuple[float, float]:
    """Mean and mean square of a group's gradient, exact: d log p(R) / d logit = R - p."""
    right = torch.arange(size + 1)
    rewards = (torch.arange(size) < right[:, None]).double()
    advantage = RLOO.advantages(rewards.flatten(), right.repeat_interleave(size)).view(size + 1, size)
    gradient = (advantage * (rewards - chance)).mean(1)
    ways = [math.comb(size, k) * chance**k * (1 - chance) ** (size - k) for k in range(size + 1)]
    binomial = torch.tensor(ways, dtype=torch.float64)
    return float(binomial @ gradient), float(binomial @ gradient.square())


EXPERIMENT = computed(NAME, measure, seeds=1)


def judge(measured: Measurements) -> Verdict:
    """Unbiased at every G; and at as many completions groups of 64 have less noise than groups of 8."""
    bias = max(abs(measured.mean(NAME, f"{name}_bias_{size}")) for name in PROMPTS for size in SIZES)
    noise = measured.mean(NAME, "spread_64") / measured.mean(NAME, "spread_8")
    return every(
        [
            agree(bias, 0.0, 1e-9, "the mean gradient and the true one"),
            below(noise, 1.0, "noise of groups of 64 over that of groups of 8, from as many completions,"),
        ]
    )


CLAIM = Claim(
    name=NAME,
    title="A small group's mean is a noisy baseline, and a larger group makes a less noisy gradient.",
    source="S1 (with finite G this estimate is noisy, the price of not maintaining a critic)",
    argument="The noise that the baseline adds falls with 1/(G - 1). From as many completions a larger group also "
    "means fewer prompts, and where these are of unlike difficulty that adds more than the baseline saves.",
    expected="For prompts that are alike it holds, with little left to gain from G = 8 on; for unlike ones it does "
    "not.",
    experiments=(EXPERIMENT,),
    quantities=tuple(
        Quantity(f"noise over signal of 512 completions, {words}, {what}", NAME, f"{name}_{key}")
        for name, words in (("alike", "prompts all of 0.2"), ("spread", "prompts of 0.02 to 0.98"))
        for key, what in (*((size, f"G = {size}") for size in SIZES), ("critic", "a perfect critic, one a prompt"))
    ),
    judge=judge,
    figure=Figure(
        title="Noise of a gradient from 512 completions",
        across="completions a prompt",
        up="deviation over mean",
        at=SIZES,
        lines=(
            *(
                Line(f"{words}, group mean", NAME, tuple(f"{name}_{size}" for size in SIZES))
                for name, words in (("alike", "prompts all of 0.2"), ("spread", "prompts of 0.02 to 0.98"))
            ),
            Line("prompts of 0.02 to 0.98, a perfect critic and one completion", NAME, ("spread_critic",) * len(SIZES)),
        ),
        hint="Where prompts differ, noise has its least at a group of a few: then missing prompts cost more than the "
        "baseline.",
        log_across=True,
    ),
)
