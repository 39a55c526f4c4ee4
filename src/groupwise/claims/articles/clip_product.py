"""Claim: GSPO bounds a sequence's ratio because it clips the mean."""

import math
from pathlib import Path

import torch

from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.settings import algorithm
from groupwise.claims.claim import Claim, Quantity
from groupwise.claims.computed import computed
from groupwise.claims.figure import Figure, Line
from groupwise.claims.measurements import Measurements
from groupwise.claims.verdict import Verdict, agree, below, every

NAME = "clip-product"
LENGTHS = (64, 256, 1024, 4096, 16384)
#: What GRPO's clip and GSPO's are, and GSPO's ratio under a clip as wide as GRPO's.
CLIPS = {
    "grpo": algorithm("grpo", {"kl.beta": 0.0}),
    "gspo": algorithm("gspo"),
    "gspo_wide": algorithm("gspo", {"trust.epsilon_low": 0.2, "trust.epsilon_high": 0.2}),
}
#: So little inside the clip.
INSIDE = 1e-9


def measure(seed: int, work: Path) -> dict[str, float]:
    """The largest log-ratio of a sequence at which every token still has its whole gradient."""
    seen = {f"{name}_{length}": _largest(algo, length) for name, algo in CLIPS.items() for length in LENGTHS}
    return {**seen, "passed": min(_passed(algo, length) for algo in CLIPS.values() for length in LENGTHS)}


def _largest(algo: Algorithm, length: int) -> float:
    """All ratios at the upper end of the clip: their sum in logs."""
    return float(_at_the_end(algo, length).sum())


def _passed(algo: Algorithm, length: int) -> float:
    live = _at_the_end(algo, length)
    out = algo.loss(live, torch.zeros_like(live), torch.ones(1, dtype=live.dtype), torch.ones_like(live).bool())
    return float(out.share.mean())


def _at_the_end(algo: Algorithm, length: int) -> torch.Tensor:
    epsilon: float = algo.trust.epsilon_high  # type: ignore[attr-defined]
    return torch.full((1, length), math.log1p(epsilon - INSIDE), dtype=torch.float64)


EXPERIMENT = computed(NAME, measure, seeds=1)


def judge(measured: Measurements) -> Verdict:
    """The product is attained with no gradient stopped; at the same width the mean's clip bounds it by half or less."""
    longest = LENGTHS[-1]
    product = measured.mean(NAME, f"grpo_{longest}")
    passed = agree(measured.mean(NAME, "passed"), 1.0, 0.0, "at the ends of the clips the gradient that passes and 1")
    attained = agree(product, longest * math.log(1.2), 1e-3, f"GRPO's largest log-ratio and {longest} log 1.2")
    wide = measured.mean(NAME, f"gspo_wide_{longest}") / product
    tighter = below(wide, 0.5, "at the same width GSPO's largest log-ratio over GRPO's is")
    return every([passed, attained, tighter])


CLAIM = Claim(
    name=NAME,
    title="Clipped token by token, a sequence of 1024 tokens may have a ratio of 1.2^1024 = 10^81; GSPO's geometric "
    "mean bounds it directly.",
    source="S1, on why sequence-level ratios; GSPO 2507.18071 eq 5 and 7",
    argument="With every ratio inside the clip nothing is stopped, and their product is 1.2^L. A clip of the mean at "
    "1 + e allows the same product, (1 + e)^L: it is the width of 4e-4 that bounds it, a five-hundredth of 0.2.",
    expected="The first half holds. The second does not: at the same width both bounds are the same.",
    experiments=(EXPERIMENT,),
    quantities=tuple(
        Quantity(f"largest log-ratio of {length} tokens {words} (nats)", NAME, f"{key}_{length}")
        for key, words in (
            ("grpo", "by GRPO's 0.2"),
            ("gspo", "by GSPO's 4e-4"),
            ("gspo_wide", "by GSPO's mean at 0.2"),
        )
        for length in LENGTHS
    ),
    judge=judge,
    figure=Figure(
        title="The largest log-ratio that is not stopped",
        across="tokens",
        up="nats",
        at=LENGTHS,
        lines=tuple(
            Line(words, NAME, tuple(f"{key}_{length}" for length in LENGTHS))
            for key, words in (("grpo", "GRPO, 0.2"), ("gspo_wide", "GSPO's mean, 0.2"), ("gspo", "GSPO, 4e-4"))
        ),
        hint="At the same width the two lines lie on each other: what bounds a sequence is the width, not the mean.",
        log_across=True,
        log_up=True,
    ),
)
