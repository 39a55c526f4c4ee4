"""Claim: of the four combinations of signs a clip limits two."""

from pathlib import Path

import torch

from groupwise.algorithms.settings import algorithm
from groupwise.claims.claim import Claim, Quantity
from groupwise.claims.computed import computed
from groupwise.claims.figure import Figure, Line
from groupwise.claims.measurements import Measurements
from groupwise.claims.verdict import Verdict, agree, every

NAME = "clip-quadrants"
#: log r from -1 to 1; no point at 0, and none on an end of a clip.
POINTS = torch.linspace(-1, 1, 2000, dtype=torch.float64)
SHOWN = (0.4, 0.6, 0.79, 0.81, 0.9, 1.0, 1.1, 1.19, 1.21, 1.5, 2.0, 2.7)
ROWS = {
    "grpo": algorithm("grpo", {"kl.beta": 0.0}),
    "gspo": algorithm("gspo", {"trust.epsilon_low": 0.2, "trust.epsilon_high": 0.2}),
    "sapo": algorithm("sapo"),
}
QUADRANTS = {
    "better_rose": (1.0, 1.0),
    "better_fell": (1.0, -1.0),
    "worse_fell": (-1.0, -1.0),
    "worse_rose": (-1.0, 1.0),
}


def measure(seed: int, work: Path) -> dict[str, float]:
    """Live less old log-probability from -1 to 1, for either sign of the advantage: the share of gradient that passes
    in each quadrant, and at some ratios.
    """
    seen: dict[str, float] = {}
    for name in ROWS:
        for quadrant, (sign, side) in QUADRANTS.items():
            inside = POINTS[POINTS * side > 0]
            seen[f"{name}_{quadrant}"] = float(_passed(name, inside, sign).mean())
        for sign, words in ((1.0, "better"), (-1.0, "worse")):
            shown = _passed(name, torch.tensor(SHOWN, dtype=torch.float64).log(), sign).tolist()
            seen |= {f"{name}_{words}_at_{ratio}": value for ratio, value in zip(SHOWN, shown, strict=True)}
    return seen


def _passed(name: str, log_ratio: torch.Tensor, sign: float) -> torch.Tensor:
    live = log_ratio[:, None]
    advantage = torch.full(log_ratio.shape, sign, dtype=torch.float64)
    return ROWS[name].loss(live, torch.zeros_like(live), advantage, torch.ones_like(live).bool()).share[:, 0]


EXPERIMENT = computed(NAME, measure, seeds=1)


def judge(measured: Measurements) -> Verdict:
    """GRPO and GSPO pass all where a better one fell or a worse one rose, and up to the ends of the clip elsewhere."""
    up, down = (
        float((POINTS[POINTS * side > 0].exp() * side < end * side).double().mean())
        for side, end in ((1, 1.2), (-1, 0.8))
    )
    expected = {"better_rose": up, "better_fell": 1.0, "worse_fell": down, "worse_rose": 1.0}
    return every(
        agree(
            max(abs(measured.mean(NAME, f"{name}_{quadrant}") - share) for quadrant, share in expected.items()),
            0.0,
            1e-9,
            f"{name.upper()}: what passes in each quadrant and what the equation has",
        )
        for name in ("grpo", "gspo")
    )


CLAIM = Claim(
    name=NAME,
    title="Of the four combinations of advantage and ratio a clip limits two: a better token's rise and a worse "
    "token's fall.",
    source="S0, how the signs affect training; PPO 1707.06347 eq 7",
    argument="The minimum takes the clipped value only where it is the smaller one. So a clip stops moves that already "
    "went the way of their advantage, and never one that went the other way. SAPO's gate damps all four.",
    expected="Holds of GRPO and GSPO. (S0 speaks of A and r having the same sign, where r - 1 is meant.)",
    experiments=(EXPERIMENT,),
    quantities=tuple(
        Quantity(
            f"{name.upper()}: share that passes, log r up to 1, where a {quadrant.replace('_', ' one ')}",
            NAME,
            f"{name}_{quadrant}",
        )
        for name in ROWS
        for quadrant in QUADRANTS
    ),
    judge=judge,
    figure=Figure(
        title="The gradient that passes",
        across="ratio",
        up="share",
        at=SHOWN,
        lines=tuple(
            Line(f"{words}, A {sign} 0", NAME, tuple(f"{name}_{key}_at_{ratio}" for ratio in SHOWN))
            for name, words in (("grpo", "clip at 0.2"), ("sapo", "SAPO's gate"))
            for key, sign in (("better", ">"), ("worse", "<"))
        ),
        hint="A clip stops one side of each sign; the gate closes slowly, and on both sides.",
        log_across=True,
    ),
)
