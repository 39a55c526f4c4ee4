"""Claim: a clip on each token's ratio bounds the ratio of a sequence."""

import math
from pathlib import Path

import torch

from groupwise.algorithms.settings import algorithm
from groupwise.claims.claim import Claim, Effort, Experiment, Quantity
from groupwise.claims.measurements import Measurements
from groupwise.claims.verdict import Verdict, above, agree, every
from groupwise.core.statistics import Interval

#: Tokens of the longest sequence.
LENGTH = 1024
#: A rare token's probability under the old policy, in a vocabulary of two.
RARE = 0.01
WITHOUT_KL = {"kl.beta": 0.0}


def measure(seed: int, work: Path) -> dict[str, float]:
    """The log-ratio of a sequence whose every token is inside the clip; where the clip's gradient is 0; how far the ratio
    of a clipped token goes all the same.
    """
    grpo, gspo = algorithm("grpo", WITHOUT_KL), algorithm("gspo")
    epsilon = grpo.trust.epsilon_high  # type: ignore[attr-defined]
    width = gspo.trust.epsilon_high  # type: ignore[attr-defined]
    one = torch.ones(1, LENGTH, dtype=torch.float64)
    inside = grpo.loss(one * math.log1p(epsilon - 1e-9), 0 * one, one[:, 0], one.bool())
    mean = gspo.loss(one * math.log1p(width - 1e-9), 0 * one, one[:, 0], one.bool())
    return {
        "log_ratio_inside_clip": float(inside.log_ratio.sum()),
        "passed_inside_clip": float(inside.share.mean()),
        "log_ratio_inside_gspo": LENGTH * float(mean.log_ratio[0, 0]),
        "passed_inside_gspo": float(mean.share.mean()),
        "misplaced_zeros": _misplaced_zeros(),
        "ratio_of_clipped_token": _ratio_of_clipped_token(),
    }


def _misplaced_zeros() -> float:
    """Tokens whose gradient is 0 where PPO's equation has one, or has one where it is 0: A > 0 and r > 1.2, A < 0 and
    r < 0.8.
    """
    ratio = torch.linspace(0.05, 3.0, 1181, dtype=torch.float64)  # no point at 0.8 or 1.2, where both hold
    wrong = 0
    for sign in (1.0, -1.0):
        live = ratio.log()[:, None].requires_grad_()
        mask = torch.ones_like(live, dtype=torch.bool)
        out = algorithm("grpo", WITHOUT_KL).loss(live, torch.zeros_like(live), sign * torch.ones(len(ratio)), mask)
        (gradient,) = torch.autograd.grad(out.value, live)
        beyond = ratio > 1.2 if sign > 0 else ratio < 0.8
        wrong += int(((gradient[:, 0] == 0) != beyond).sum())
    return float(wrong)


def _ratio_of_clipped_token() -> float:
    """Two tokens: the common one has a negative advantage, the rare one a positive; plain gradient descent until the
    clip stops both. Only the common token's ratio is then next to its bound.
    """
    old = torch.tensor([[math.log(RARE)], [math.log1p(-RARE)]], dtype=torch.float64)
    logit = torch.tensor(math.log(RARE / (1 - RARE)), dtype=torch.float64, requires_grad=True)
    advantage, mask = torch.tensor([1.0, -1.0], dtype=torch.float64), torch.ones(2, 1, dtype=torch.bool)
    for _ in range(10_000):
        live = torch.stack([torch.nn.functional.logsigmoid(logit), torch.nn.functional.logsigmoid(-logit)])[:, None]
        (gradient,) = torch.autograd.grad(algorithm("grpo", WITHOUT_KL).loss(live, old, advantage, mask).value, logit)
        if gradient == 0:
            break
        with torch.no_grad():
            logit -= 0.1 * gradient
    return float(torch.sigmoid(logit.detach())) / RARE


def judge(measured: Measurements) -> Verdict:
    """The product is attained, the gradient is 0 just where the equation says, and the clipped token stays inside."""
    mean = {name: measured.mean("clip-product", name) for name in measured.of("clip-product")[0].measured}
    ratio = mean["ratio_of_clipped_token"]
    attained = agree(mean["log_ratio_inside_clip"], LENGTH * math.log(1.2), 1e-5, f"log-ratio and {LENGTH} log 1.2")
    zeros = agree(mean["misplaced_zeros"], 0.0, 0.0, "where the gradient is 0 and where the equation has it")
    confined = above(
        Interval(1.2 - ratio, 1.2 - ratio, "exact"), 0.0, f"1.2 less the clipped token's ratio, {ratio:.3g}:"
    )
    return every([attained, zeros, confined])


CLAIM = Claim(
    name="clip-product",
    title="A clip on each token's ratio at 0.8 and 1.2 bounds the ratio of a sequence of L tokens by 0.8^L and 1.2^L; "
    "GSPO's clip on the mean bounds it tightly.",
    source="S1 and S0, on why GSPO needs no replay; PPO 1707.06347 eq 7; GSPO 2507.18071 eq 5 and 7",
    argument="The clip takes the gradient of a token whose ratio has left the band; it does not hold the ratio there, "
    "since other tokens move the same parameters. Where every ratio is inside, their product may be 1.2^L, and nothing "
    "is stopped. The mean's clip at 1 + 4e-4 has the same form, (1 + 4e-4)^L; it is tight because it is narrow.",
    expected="Does not hold: a clipped token's ratio leaves the band. (With two tokens the rare one's goes to 0.208 / 0.01.)",
    experiments=(Experiment("clip-product", measure, "1", {Effort.QUICK: 1}),),
    quantities=(
        Quantity(
            f"log-ratio of {LENGTH} tokens, each just inside GRPO's clip (nats)",
            "clip-product",
            "log_ratio_inside_clip",
        ),
        Quantity("share of gradient that passes there", "clip-product", "passed_inside_clip"),
        Quantity(
            f"log-ratio of {LENGTH} tokens just inside GSPO's clip (nats)", "clip-product", "log_ratio_inside_gspo"
        ),
        Quantity("share of gradient that passes there", "clip-product", "passed_inside_gspo"),
        Quantity(
            "ratios whose gradient is 0 elsewhere than PPO's equation says, of 2,362", "clip-product", "misplaced_zeros"
        ),
        Quantity("ratio of a clipped rare token after descent on one batch", "clip-product", "ratio_of_clipped_token"),
    ),
    judge=judge,
)
