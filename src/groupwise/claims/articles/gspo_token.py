"""Claim: GSPO-token is GSPO where advantages do not vary inside a completion."""

from pathlib import Path

import torch
from torch import Tensor

from groupwise.algorithms.settings import algorithm
from groupwise.claims.claim import Claim, Quantity
from groupwise.claims.computed import computed
from groupwise.claims.measurements import Measurements
from groupwise.claims.toys import ascent
from groupwise.claims.verdict import Verdict, above, agree, every

NAME = "gspo-token"
ROWS, LENGTH = 32, 40
GSPO, GSPO_TOKEN = algorithm("gspo"), algorithm("gspo-token")


def measure(seed: int, work: Path) -> dict[str, float]:
    """Values, clips and gradients of both on one batch of rows of unlike length, some of them beyond the clip: with one
    advantage a row, and with one a token.
    """
    numbers = torch.Generator().manual_seed(seed)
    length = torch.randint(1, LENGTH, (ROWS, 1), generator=numbers)
    mask = torch.arange(LENGTH) < length
    old = -torch.rand(ROWS, LENGTH, generator=numbers, dtype=torch.float64)
    live = old + 2e-3 * torch.randn(ROWS, LENGTH, generator=numbers, dtype=torch.float64)
    equal = torch.randn(ROWS, 1, generator=numbers, dtype=torch.float64).expand(ROWS, LENGTH)
    varied = torch.randn(ROWS, LENGTH, generator=numbers, dtype=torch.float64)
    stopped = 1 - GSPO.loss(live, old, equal, mask).share[mask].mean()
    return {
        **_apart("equal", live, old, equal, mask),
        **_apart("varied", live, old, varied, mask),
        "stopped": float(stopped),
    }


def _apart(name: str, live: Tensor, old: Tensor, advantage: Tensor, mask: Tensor) -> dict[str, float]:
    one, other = (algo.loss(live, old, advantage, mask) for algo in (GSPO, GSPO_TOKEN))
    first, second = (ascent(algo, live, old, advantage, mask) for algo in (GSPO, GSPO_TOKEN))
    return {
        f"value_{name}": float((one.value - other.value).abs()),
        f"share_{name}": float((one.share - other.share).abs().max()),
        f"gradient_{name}": float((first - second).norm() / first.norm()),
    }


EXPERIMENT = computed(NAME, measure, seeds=5)


def judge(measured: Measurements) -> Verdict:
    """Equal to rounding with one advantage a row, and another gradient with one a token."""
    equal = (
        agree(measured.largest(NAME, f"{key}_equal"), 0.0, 1e-12, f"with one advantage the {words}")
        for key, words in (("value", "values"), ("share", "clips"), ("gradient", "gradients"))
    )
    varied = above(
        measured.interval(NAME, "gradient_varied"), 0.01, "with advantages per token the gradients are apart by"
    )
    return every([*equal, varied])


CLAIM = Claim(
    name=NAME,
    title="GSPO-token is GSPO in value, clipping and gradient where a completion has one advantage, and something else "
    "where its tokens have their own.",
    source="S4; GSPO 2507.18071 eq 13 to 17",
    argument="s_t = sg[s] p_t / sg[p_t] has the value of s and the gradient of log p_t. Summed over tokens with one "
    "advantage that is the gradient of s; with several each token keeps its own.",
    expected="Holds. (S4 writes the token's ratio in place of p_t / sg[p_t], which would not be equal.)",
    experiments=(EXPERIMENT,),
    quantities=(
        Quantity("share of tokens that are clipped", NAME, "stopped"),
        *(
            Quantity(f"{words}, {what}", NAME, f"{key}_{kind}")
            for kind, what in (("equal", "one advantage"), ("varied", "advantages per token"))
            for key, words in (
                ("value", "difference of values"),
                ("share", "difference of clips"),
                ("gradient", "relative difference of gradients"),
            )
        ),
    ),
    judge=judge,
)
