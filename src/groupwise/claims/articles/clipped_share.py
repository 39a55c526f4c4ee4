"""Claim: that GSPO clips two orders of magnitude more shows that GRPO's gradient is noise."""

from pathlib import Path

import torch
from torch import Tensor

from groupwise.algorithms.settings import algorithm
from groupwise.claims.claim import Claim, Quantity
from groupwise.claims.computed import computed
from groupwise.claims.figure import Figure, Line
from groupwise.claims.measurements import Measurements
from groupwise.claims.verdict import Verdict, below

NAME = "clipped-share"
LENGTHS = (32, 256, 2048, 8192)
#: Deviation of a token's log-ratio, nats: what four minibatches of a small learning rate give.
SIGMA = 0.02
#: The papers' widths: GSPO's own, and GRPO's as GSPO's paper tuned it.
WIDE = {"trust.epsilon_low": 0.2, "trust.epsilon_high": 0.27}
ROWS = {
    "grpo": algorithm("grpo", {**WIDE, "kl.beta": 0.0}),
    "gspo": algorithm("gspo"),
    "gspo_wide": algorithm("gspo", WIDE),
}


def measure(seed: int, work: Path) -> dict[str, float]:
    """A null model: independent log-ratios from Student's t with 3 degrees, advantages of random sign, nothing learned.
    The share of tokens whose gradient is stopped; GSPO's over GRPO's; the width at which GSPO would stop as many.
    """
    numbers = torch.Generator().manual_seed(seed)
    seen: dict[str, float] = {}
    for length in LENGTHS:
        log_ratio = _heavy_tails(numbers, max(256, 131_072 // length), length)
        sign = torch.randint(0, 2, (len(log_ratio),), generator=numbers).double() * 2 - 1
        for name, algo in ROWS.items():
            share = algo.loss(log_ratio, torch.zeros_like(log_ratio), sign, torch.ones_like(log_ratio).bool()).share
            seen[f"{name}_{length}"] = 1 - float(share.mean())
        seen[f"factor_{length}"] = seen[f"gspo_{length}"] / max(seen[f"grpo_{length}"], 1e-6)
        toward = (sign * log_ratio.mean(1)).sort(descending=True).values
        seen[f"matched_{length}"] = float(toward[round(seen[f"grpo_{length}"] * len(toward))])
    return seen


def _heavy_tails(numbers: torch.Generator, rows: int, length: int) -> Tensor:
    """[N,T] from Student's t with 3 degrees of freedom, scaled."""
    normal = torch.randn(rows, length, generator=numbers, dtype=torch.float64)
    squares = torch.randn(3, rows, length, generator=numbers, dtype=torch.float64).square().mean(0)
    return SIGMA / 3**0.5 * normal / squares.sqrt()


EXPERIMENT = computed(NAME, measure, seeds=5)


def judge(measured: Measurements) -> Verdict:
    """The factor would tell something of GRPO's gradient if it were small where nothing is learned: below 10."""
    smallest = {
        seed: min(measured.values(NAME, f"factor_{length}")[seed] for length in LENGTHS) for seed in measured.of(NAME)
    }
    return below(
        measured.interval_of({**smallest}), 10.0, "where nothing is learned GSPO stops more tokens by a factor of"
    )


CLAIM = Claim(
    name=NAME,
    title="GSPO stops two orders of magnitude more tokens than GRPO and learns more, which shows that most of GRPO's "
    "gradient is noise.",
    source="S0, S1, S4; GSPO 2507.18071 section 5.2 and figure 2",
    argument="Clips of 3e-4 and 0.2 stand on quantities of unlike size: a mean over L tokens has a deviation of "
    "sigma / sqrt(L). If the factor comes from that alone, it tells nothing of what a gradient is worth.",
    expected="Does not hold: the factor is there where nothing is learned.",
    experiments=(EXPERIMENT,),
    quantities=tuple(
        Quantity(f"{words}, {length} tokens", NAME, f"{key}_{length}")
        for length in LENGTHS
        for key, words in (
            ("grpo", "share stopped by GRPO (0.2, 0.27)"),
            ("gspo", "by GSPO (3e-4, 4e-4)"),
            ("factor", "GSPO's share over GRPO's"),
        )
    ),
    judge=judge,
    figure=Figure(
        title="Share of tokens that are stopped where nothing is learned",
        across="tokens of a sequence",
        up="share",
        at=LENGTHS,
        lines=tuple(
            Line(words, NAME, tuple(f"{key}_{length}" for length in LENGTHS))
            for key, words in (("gspo", "GSPO (3e-4, 4e-4)"), ("grpo", "GRPO (0.2, 0.27)"))
        ),
        hint="The gap of the papers' figure, with ratios that are noise for both.",
        log_across=True,
        log_up=True,
    ),
)
