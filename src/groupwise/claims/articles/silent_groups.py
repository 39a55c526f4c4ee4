"""Claim: a group is without signal with chance p^G + (1 - p)^G."""

import math
from pathlib import Path

import torch

from groupwise.algorithms.settings import algorithm
from groupwise.claims.claim import Claim, Quantity
from groupwise.claims.computed import computed
from groupwise.claims.figure import Figure, Line
from groupwise.claims.measurements import Measurements
from groupwise.claims.verdict import Verdict, agree, every
from groupwise.core.records import Completion, Group, Prompt
from groupwise.core.samples import Sample

NAME = "silent-groups"
SIZES = (2, 4, 8, 16, 64)
CHANCES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98)
GRPO, DAPO = algorithm("grpo"), algorithm("dapo")


def measure(seed: int, work: Path) -> dict[str, float]:
    """Over the number of right completions in a group: the chance that DAPO's filter drops it, the chance that GRPO
    gives each completion an advantage of 0, and the equation.
    """
    seen: dict[str, float] = {}
    for size in SIZES:
        dropped = [not DAPO.filter(_group(right, size)).keep for right in range(size + 1)]
        silent = [not GRPO.advantages(*_rewards(right, size)).any() for right in range(size + 1)]
        for chance in CHANCES:
            binomial = [math.comb(size, k) * chance**k * (1 - chance) ** (size - k) for k in range(size + 1)]
            seen[f"dropped_{size}_{chance}"] = sum(p for p, out in zip(binomial, dropped, strict=True) if out)
            seen[f"silent_{size}_{chance}"] = sum(p for p, out in zip(binomial, silent, strict=True) if out)
            seen[f"equation_{size}_{chance}"] = chance**size + (1 - chance) ** size
    return seen


def _rewards(right: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return (torch.arange(size) < right).double(), torch.zeros(size, dtype=torch.long)


def _group(right: int, size: int) -> Group:
    """So many right completions of all."""
    scores = [float(number < right) for number in range(size)]
    completions = (Completion.of_one_turn((1,), (0.0,), "stop", version=0, score=score) for score in scores)
    return Group(Prompt(Sample(key="", prompt="", answer=""), tokens=(0,)), tuple(completions))


EXPERIMENT = computed(NAME, measure, seeds=1)


def judge(measured: Measurements) -> Verdict:
    """What the filter drops and what has no advantage are the equation's share, at every G and p."""
    places = [f"{size}_{chance}" for size in SIZES for chance in CHANCES]

    def apart(key: str) -> float:
        return max(abs(measured.mean(NAME, f"{key}_{at}") - measured.mean(NAME, f"equation_{at}")) for at in places)

    dropped = agree(apart("dropped"), 0.0, 1e-9, "the share that DAPO drops and p^G + (1 - p)^G")
    return every([dropped, agree(apart("silent"), 0.0, 1e-9, "the share without advantages and p^G + (1 - p)^G")])


CLAIM = Claim(
    name=NAME,
    title="A group whose completions are all right or all wrong trains nothing, which happens with chance "
    "p^G + (1 - p)^G; DAPO drops just those.",
    source="S0, S1, S3; DAPO 2503.14476 section 3.2",
    argument="Equal rewards have no deviation from their mean. The chance is that of G equal outcomes; over prompts of "
    "unlike pass rates it is a mean of these, which is more than the share at the mean pass rate.",
    expected="Holds.",
    experiments=(EXPERIMENT,),
    quantities=tuple(
        Quantity(f"share of groups without signal, G = {size}, p = {chance}", NAME, f"silent_{size}_{chance}")
        for size in SIZES
        for chance in (0.05, 0.2, 0.5)
    ),
    judge=judge,
    figure=Figure(
        title="Groups without signal",
        across="pass rate of the prompt",
        up="share",
        at=CHANCES,
        lines=tuple(Line(f"G = {size}", NAME, tuple(f"silent_{size}_{p}" for p in CHANCES)) for size in SIZES),
        hint="The surer the outcome of a prompt, and the smaller its group, the more groups train nothing.",
    ),
)
