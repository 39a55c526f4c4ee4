"""Claim: inside a sequence GSPO weighs all tokens alike."""

from pathlib import Path

import torch

from groupwise.algorithms.settings import algorithm
from groupwise.claims.claim import Claim, Quantity
from groupwise.claims.computed import computed
from groupwise.claims.measurements import Measurements
from groupwise.claims.toys import ascent
from groupwise.claims.verdict import Verdict, above, agree, every

NAME = "token-weights"
LENGTHS = (16, 64, 256, 1024, 4096)
#: Deviation of a token's log-ratio, nats.
SIGMA = 0.05
#: Without the trust region: a token beyond it has no weight at all.
ROWS = {name: algorithm(name, {"trust.kind": "none", "kl.beta": 0.0}) for name in ("grpo", "gspo")}


def measure(seed: int, work: Path) -> dict[str, float]:
    """Independent log-ratios of one deviation: what each token's log-probability is multiplied with in the gradient, as
    a deviation over tokens, relative to the mean, and as the largest over the smallest.
    """
    numbers = torch.Generator().manual_seed(seed)
    seen: dict[str, float] = {}
    for length in LENGTHS:
        live = SIGMA * torch.randn(64, length, generator=numbers, dtype=torch.float64)
        worse = -torch.ones(len(live), dtype=live.dtype)
        for name, algo in ROWS.items():
            weight = ascent(algo, live, torch.zeros_like(live), worse, torch.ones_like(live).bool())
            relative = weight / weight.mean(1, keepdim=True)
            seen[f"{name}_deviation_{length}"] = float(relative.std(1).mean())
            seen[f"{name}_range_{length}"] = float((relative.amax(1) / relative.amin(1)).mean())
    return seen


EXPERIMENT = computed(NAME, measure, seeds=5)


def judge(measured: Measurements) -> Verdict:
    """GSPO's weights do not vary inside a sequence, to rounding, and GRPO's do."""
    gspo = max(measured.largest(NAME, f"gspo_deviation_{length}") for length in LENGTHS)
    grpo = measured.interval(NAME, f"grpo_deviation_{LENGTHS[-1]}")
    return every([agree(gspo, 0.0, 1e-12, "GSPO's weights"), above(grpo, 0.01, "GRPO's have a relative deviation of")])


CLAIM = Claim(
    name="uniform-weights",
    title="Inside a sequence all tokens have the same weight in GSPO's gradient, and each its own in GRPO's.",
    source="S0, S2, S4; GSPO 2507.18071 eq 10 and 12",
    argument="GSPO's gradient has one factor s_i for all tokens of a sequence; GRPO's has the token's own ratio.",
    expected="Holds.",
    experiments=(EXPERIMENT,),
    quantities=tuple(
        Quantity(
            f"{algo.upper()}: deviation of weights over their mean, {length} tokens", NAME, f"{algo}_deviation_{length}"
        )
        for algo in ("gspo", "grpo")
        for length in (LENGTHS[0], LENGTHS[-1])
    ),
    judge=judge,
)
