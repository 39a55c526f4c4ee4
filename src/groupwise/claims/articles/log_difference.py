"""Claim: the mean log-ratio must be exponentiated."""

from pathlib import Path

import torch
from torch import Tensor

from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.parts.aggregate import count
from groupwise.algorithms.settings import algorithm
from groupwise.claims.claim import Claim, Quantity
from groupwise.claims.computed import computed
from groupwise.claims.measurements import Measurements
from groupwise.claims.toys import ascent
from groupwise.claims.verdict import Verdict, above, every

NAME = "log-difference"
LENGTHS = (32, 256, 2048)
SIGMA = 0.02
ROWS = {"papers": algorithm("gspo"), "wide": algorithm("gspo", {"trust.epsilon_low": 0.2, "trust.epsilon_high": 0.2})}


def measure(seed: int, work: Path) -> dict[str, float]:
    """GSPO's gradient against that of the same objective with 1 + log s in the place of s, at GSPO's widths and at 0.2;
    and the deviation of log s over sequences of one length, over that of s.
    """
    numbers = torch.Generator().manual_seed(seed)
    seen: dict[str, float] = {}
    for length in LENGTHS:
        live = SIGMA * torch.randn(256, length, generator=numbers, dtype=torch.float64)
        advantage = torch.randn(256, generator=numbers, dtype=torch.float64)
        mask, old = torch.ones_like(live, dtype=torch.bool), torch.zeros_like(live)
        for name, algo in ROWS.items():
            size = 1.0 if name == "papers" else 0.15 / SIGMA * length**0.5  # with sequences out to the clip at 0.2
            whole = ascent(algo, size * live, old, advantage, mask)
            apart = whole - _of_logs(algo, size * live, old, advantage, mask)
            seen[f"{name}_{length}"] = float(apart.norm() / whole.norm())
        log_s = live.mean(1)
        seen[f"spread_{length}"] = float(log_s.std() / log_s.exp().std())
    return seen


def _of_logs(algo: Algorithm, live: Tensor, old: Tensor, advantage: Tensor, mask: Tensor) -> Tensor:
    """[N,T] the gradient of weight min((1 + log s) A, clip(1 + log s) A)."""
    live = live.clone().requires_grad_()
    ratio, per_token = 1 + algo.ratio(live, old, mask), advantage[:, None]
    low: float = algo.trust.epsilon_low  # type: ignore[attr-defined]
    high: float = algo.trust.epsilon_high  # type: ignore[attr-defined]
    surrogate = torch.minimum(ratio * per_token, ratio.clamp(1 - low, 1 + high) * per_token)
    return torch.autograd.grad((algo.aggregate(mask, count(mask)) * surrogate).sum(), live)[0]


EXPERIMENT = computed(NAME, measure, seeds=5)


def judge(measured: Measurements) -> Verdict:
    """At GSPO's widths the gradient is another one by a hundredth or more, and so is the spread."""
    other = above(
        measured.interval(NAME, f"papers_{LENGTHS[-1]}"), 0.01, "at GSPO's widths the gradient changes by a share of"
    )
    off = {seed: abs(value - 1) for seed, value in measured.values(NAME, f"spread_{LENGTHS[0]}").items()}
    return every(
        [other, above(measured.interval_of(off), 0.01, "the spread of log s differs from that of s by a share of")]
    )


CLAIM = Claim(
    name=NAME,
    title="GSPO's mean log-ratio must be exponentiated: in log space the ratio would depend on the length, need other "
    "clips, and train something else.",
    source="S0, why exponentiate",
    argument="Near 1, s and 1 + log s are the same number up to the square of their distance from it, and their "
    "gradients up to that distance, 4e-4 at the clip. The length is taken out by the mean, before the exponential.",
    expected="Does not hold. At a width of 0.2 the gradients would differ by a tenth or more.",
    experiments=(EXPERIMENT,),
    quantities=tuple(
        Quantity(f"{words}, {length} tokens", NAME, f"{key}_{length}")
        for key, words in (
            ("papers", "relative change of the gradient at GSPO's widths"),
            ("wide", "at 0.2, with ratios out to there"),
            ("spread", "deviation of log s over that of s"),
        )
        for length in LENGTHS
    ),
    judge=judge,
)
