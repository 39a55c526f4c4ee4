"""Claim: inside a sequence GSPO weighs all tokens alike, and GRPO's weights spread with the length."""

from pathlib import Path

import torch

from groupwise.algorithms.settings import algorithm
from groupwise.claims.claim import Claim, Effort, Experiment, Quantity
from groupwise.claims.measurements import Measurements
from groupwise.claims.verdict import Verdict, above, agree, every

NAME = "token-weights"
LENGTHS = (16, 64, 256, 1024)
#: Deviation of a token's log-ratio, nats.
SIGMA = 0.05


def measure(seed: int, work: Path) -> dict[str, float]:
    """Independent log-ratios of one deviation: what each token's log-probability is multiplied with in the gradient, as
    a deviation over tokens and as largest over smallest.
    """
    numbers = torch.Generator().manual_seed(seed)
    seen: dict[str, float] = {}
    for length in LENGTHS:
        log_ratio = SIGMA * torch.randn(64, length, generator=numbers, dtype=torch.float64)
        for name in ("grpo", "gspo"):
            weight = _coefficients(name, log_ratio)
            relative = weight / weight.mean(1, keepdim=True)
            seen[f"{name}_deviation_{length}"] = float(relative.std(1).mean())
            seen[f"{name}_range_{length}"] = float((weight.amax(1) / weight.amin(1)).mean())
    return seen


def _coefficients(name: str, log_ratio: torch.Tensor) -> torch.Tensor:
    """[N,T] d loss / d logp_live of advantage -1, without the trust region: ratios beyond it have none."""
    live = log_ratio.clone().requires_grad_()
    mask = torch.ones_like(live, dtype=torch.bool)
    loss = algorithm(name, {"trust.kind": "none", "kl.beta": 0.0}).loss(
        live, torch.zeros_like(live), -torch.ones(len(live), dtype=live.dtype), mask
    )
    return torch.autograd.grad(loss.value, live)[0]


def judge(measured: Measurements) -> Verdict:
    """GSPO's deviation is 0; GRPO's at the longest length is above that at the shortest by a tenth or more."""
    uniform = agree(max(measured.values(NAME, f"gspo_deviation_{LENGTHS[-1]}").values()), 0.0, 1e-12, "GSPO's weights")
    short, long = (measured.values(NAME, f"grpo_deviation_{length}") for length in (LENGTHS[0], LENGTHS[-1]))
    growth = measured.interval_of({seed: long[seed] / short[seed] for seed in long})
    return every([uniform, above(growth, 1.1, f"deviation at {LENGTHS[-1]} tokens over that at {LENGTHS[0]},")])


CLAIM = Claim(
    name=NAME,
    title="Inside a sequence GSPO's weights are uniform, while the spread of GRPO's grows with its length.",
    source="S0, S1, S4; GSPO 2507.18071 eq 10 and 12",
    argument="GSPO's gradient has one factor s_i for all tokens. GRPO's has r_t, so its spread over tokens is that of "
    "single ratios. Those of more tokens have a wider range, as the largest of more draws is larger, but no larger "
    "deviation, unless ratios move together along the sequence.",
    expected="Uniform: holds. Growth of the deviation: does not hold for independent ratios; the range grows slowly.",
    experiments=(Experiment(NAME, measure, "1", {Effort.QUICK: 5}),),
    quantities=tuple(
        Quantity(f"{algo.upper()}: {words}, {length} tokens", NAME, f"{algo}_{key}_{length}")
        for algo in ("grpo", "gspo")
        for key, words in (("deviation", "deviation of weights over their mean"), ("range", "largest over smallest"))
        for length in LENGTHS
    ),
    judge=judge,
)
