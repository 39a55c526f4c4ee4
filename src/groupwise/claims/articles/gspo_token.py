"""Claim: GSPO-token is GSPO where advantages do not vary inside a completion."""

from pathlib import Path

import torch

from groupwise.algorithms.settings import algorithm
from groupwise.claims.claim import Claim, Effort, Experiment, Quantity
from groupwise.claims.measurements import Measurements
from groupwise.claims.verdict import Verdict, above, agree, every

NAME = "gspo-token"


def measure(seed: int, work: Path) -> dict[str, float]:
    """Values and gradients of both on one batch of rows of unlike length: equal advantages, and ones per token."""
    numbers = torch.Generator().manual_seed(seed)
    length = torch.randint(1, 40, (32, 1), generator=numbers)
    mask = torch.arange(40) < length
    old = -torch.rand(32, 40, generator=numbers, dtype=torch.float64)
    live = old + 4e-4 * torch.randn(32, 40, generator=numbers, dtype=torch.float64)
    equal = torch.randn(32, 1, generator=numbers, dtype=torch.float64).expand(32, 40)
    varied = torch.randn(32, 40, generator=numbers, dtype=torch.float64)
    seen: dict[str, float] = {}
    for name, advantage in (("equal", equal), ("varied", varied)):
        one, other = (_value_and_gradient(algo, live, old, advantage, mask) for algo in ("gspo", "gspo-token"))
        seen[f"value_{name}"] = abs(one[0] - other[0])
        seen[f"gradient_{name}"] = float((one[1] - other[1]).norm() / one[1].norm())
    return seen


def _value_and_gradient(
    name: str, live: torch.Tensor, old: torch.Tensor, advantage: torch.Tensor, mask: torch.Tensor
) -> tuple[float, torch.Tensor]:
    live = live.clone().requires_grad_()
    value = algorithm(name).loss(live, old, advantage, mask).value
    return float(value.detach()), torch.autograd.grad(value, live)[0]


def judge(measured: Measurements) -> Verdict:
    """Equal to rounding with equal advantages, and another gradient with unlike ones."""
    value = agree(max(measured.values(NAME, "value_equal").values()), 0.0, 1e-12, "the values")
    gradient = agree(max(measured.values(NAME, "gradient_equal").values()), 0.0, 1e-12, "the gradients")
    apart = above(
        measured.interval(NAME, "gradient_varied"), 0.01, "with advantages per token the gradients are apart by"
    )
    return every([value, gradient, apart])


CLAIM = Claim(
    name=NAME,
    title="GSPO-token is GSPO where a completion has one advantage, and something else where its tokens have their own.",
    source="S1, S3, S4; GSPO 2507.18071 eq 13 to 17",
    argument="s_t = sg[s] p_t / sg[p_t] has the value of s and the gradient of log p_t. Summed over tokens with one "
    "advantage that is the gradient of s; with several each token keeps its own.",
    expected="Holds.",
    experiments=(Experiment(NAME, measure, "1", {Effort.QUICK: 5}),),
    quantities=tuple(
        Quantity(f"{words}, {kind} advantages", NAME, f"{key}_{kind}")
        for kind in ("equal", "varied")
        for key, words in (("value", "difference of values"), ("gradient", "relative difference of gradients"))
    ),
    judge=judge,
)
