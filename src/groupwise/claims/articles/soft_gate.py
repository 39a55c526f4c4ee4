"""Claim: SAPO's gate per token is nearly one gate per sequence."""

from pathlib import Path

import torch

from groupwise.algorithms.settings import algorithm
from groupwise.claims.claim import Claim, Effort, Experiment, Quantity
from groupwise.claims.measurements import Measurements
from groupwise.claims.verdict import Verdict, agree, below, every

NAME = "soft-gate"
TOKENS = 256
#: Deviation of a token's log-ratio: as on policy, as the paper's bound on the variance allows (0.02), and far beyond.
SIGMAS = (0.02, 0.14, 0.5)


def measure(seed: int, work: Path) -> dict[str, float]:
    """The mean gate over tokens against the gate of the mean log-ratio, in units of the paper's bound tau^2/4 Var; and
    the gate as it is computed, of r - 1, against the one that the bound is about, of log r.
    """
    numbers = torch.Generator().manual_seed(seed)
    sapo = algorithm("sapo")
    tau = sapo.trust.tau_positive  # type: ignore[attr-defined]
    seen: dict[str, float] = {}
    for sigma in SIGMAS:
        z = sigma * torch.randn(64, TOKENS, generator=numbers, dtype=torch.float64)
        mask = torch.ones_like(z, dtype=torch.bool)
        share = sapo.loss(z, torch.zeros_like(z), torch.ones(len(z), dtype=z.dtype), mask).share
        mean, variance = z.mean(1), z.var(1, correction=0)
        gap = (_gate(z, tau).mean(1) - _gate(mean, tau)).abs()
        seen[f"gap_{sigma}"] = float(gap.mean())
        seen[f"of_bound_{sigma}"] = float((gap / (tau**2 / 4 * variance)).max())
        seen[f"gap_as_computed_{sigma}"] = float((share.mean(1) - _gate(mean, tau)).abs().mean())
    return seen


def _gate(z: torch.Tensor, tau: float) -> torch.Tensor:
    """sech^2(tau z / 2)."""
    return 1 / torch.cosh(tau * z / 2) ** 2


def judge(measured: Measurements) -> Verdict:
    """The bound is never passed, and at the paper's largest variance the gates as computed differ by less than 0.01."""
    worst = max(value for sigma in SIGMAS for value in measured.values(NAME, f"of_bound_{sigma}").values())
    bound = agree(max(worst, 1.0), 1.0, 0.0, "the largest gap and the bound, where it is passed,")
    near = below(measured.interval(NAME, f"gap_as_computed_{SIGMAS[1]}"), 0.01, "gates at a variance of 0.02 differ by")
    return every([bound, near])


CLAIM = Claim(
    name=NAME,
    title="Where ratios are near 1 and vary little inside a sequence, SAPO's gate per token is one gate per sequence.",
    source="S3; SAPO 2511.20347 section 4.1, eq 16 and 21 to 23",
    argument="The gate's second derivative is at most tau^2/2 in size, so a mean of gates differs from the gate of the "
    "mean by at most tau^2/4 times the variance. The bound is about a gate of log r, and the gate is of r - 1.",
    expected="Holds at the variances of the paper's figures; the bound is tight for small ones.",
    experiments=(Experiment(NAME, measure, "1", {Effort.QUICK: 5}),),
    quantities=tuple(
        Quantity(f"{words}, deviation {sigma} nats", NAME, f"{key}_{sigma}")
        for sigma in SIGMAS
        for key, words in (
            ("gap", "mean gate less gate of the mean"),
            ("of_bound", "largest share of the bound"),
            ("gap_as_computed", "the same of the gate as it is computed"),
        )
    ),
    judge=judge,
)
