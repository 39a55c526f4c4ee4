"""Claim: GSPO clips two orders of magnitude more tokens than GRPO, which shows that GRPO's gradient is noise."""

from pathlib import Path

import torch

from groupwise.algorithms.settings import algorithm
from groupwise.claims.claim import Claim, Effort, Experiment, Quantity
from groupwise.claims.measurements import Measurements
from groupwise.claims.verdict import Verdict, below

NAME = "clipped-share"
LENGTHS = (32, 256, 2048, 8192)
#: Deviation of a token's log-ratio, nats: what four minibatches of a small learning rate give.
SIGMA = 0.02
#: The papers' widths: GSPO's own, and GRPO's as GSPO's paper tuned it.
GRPO = {"trust.epsilon_low": 0.2, "trust.epsilon_high": 0.27}


def measure(seed: int, work: Path) -> dict[str, float]:
    """A null model: independent log-ratios from Student's t with 3 degrees, advantages of random sign, nothing learned.
    The share of tokens whose gradient is stopped, and the factor between GSPO and GRPO; then GSPO at GRPO's widths.
    """
    numbers = torch.Generator().manual_seed(seed)
    seen: dict[str, float] = {}
    for length in LENGTHS:
        rows = max(64, 65_536 // length)
        normal = torch.randn(rows, length, generator=numbers, dtype=torch.float64)
        squares = torch.randn(3, rows, length, generator=numbers, dtype=torch.float64).square().mean(0)
        log_ratio = SIGMA / 3**0.5 * normal / squares.sqrt()
        sign = torch.randint(0, 2, (rows,), generator=numbers).double() * 2 - 1
        for name, algo in (
            ("grpo", algorithm("grpo", {**GRPO, "kl.beta": 0.0})),
            ("gspo", algorithm("gspo")),
            ("gspo_wide", algorithm("gspo", GRPO)),
        ):
            mask = torch.ones_like(log_ratio, dtype=torch.bool)
            share = algo.loss(log_ratio, torch.zeros_like(log_ratio), sign, mask).share
            seen[f"{name}_{length}"] = 1 - float(share.mean())
        seen[f"factor_{length}"] = seen[f"gspo_{length}"] / max(seen[f"grpo_{length}"], 1e-12)
    return seen


def judge(measured: Measurements) -> Verdict:
    """It would show something of GRPO's gradient if the factor were small where nothing is learned: below 10."""
    smallest = {
        seed: min(row.measured[f"factor_{length}"] for length in LENGTHS) for seed, row in measured.of(NAME).items()
    }
    return below(measured.interval_of(smallest), 10.0, "without any signal GSPO stops more tokens by a factor of")


CLAIM = Claim(
    name=NAME,
    title="GSPO stops two orders of magnitude more tokens than GRPO and learns more: GRPO's gradient is mostly noise.",
    source="S0, S1, S4; GSPO 2507.18071 section 5.2 and figure 2",
    argument="Clips of 3e-4 and 0.2 stand on quantities of unlike size: a mean over L tokens has a deviation of "
    "sigma / sqrt(L). If the factor comes from that alone, it says nothing of what a gradient is worth.",
    expected="Does not hold: the factor appears where nothing is learned, and is gone where the widths are the same.",
    experiments=(Experiment(NAME, measure, "1", {Effort.QUICK: 5}),),
    quantities=tuple(
        Quantity(f"{words}, {length} tokens", NAME, f"{key}_{length}")
        for length in LENGTHS
        for key, words in (
            ("grpo", "share stopped by GRPO (0.2, 0.27)"),
            ("gspo", "by GSPO (3e-4, 4e-4)"),
            ("gspo_wide", "by GSPO at GRPO's widths"),
            ("factor", "GSPO's share over GRPO's"),
        )
    ),
    judge=judge,
)
