"""Claim: a clip keeps each token's ratio inside the band."""

import math
from pathlib import Path

import torch

from groupwise.algorithms.settings import algorithm
from groupwise.claims.claim import Claim, Quantity
from groupwise.claims.computed import computed
from groupwise.claims.figure import Figure, Line
from groupwise.claims.measurements import Measurements
from groupwise.claims.toys import ascent
from groupwise.claims.verdict import Verdict, agree, below, every

NAME = "clip-confines"
#: A rare token's probability under the old policy, in a vocabulary of two.
RARE = (0.3, 0.1, 0.03, 0.01)
GRPO = algorithm("grpo", {"kl.beta": 0.0})
POINTS = 1181


def measure(seed: int, work: Path) -> dict[str, float]:
    """How far the ratio of a clipped token goes, and how many gradients are 0 elsewhere than the equation says."""
    return {"misplaced": _misplaced(), **{f"ratio_{rare}": _ratio_of_clipped_token(rare) for rare in RARE}}


def _misplaced() -> float:
    """PPO's gradient is 0 where A > 0 and r > 1.2, and where A < 0 and r < 0.8; no point lies just on an end."""
    ratio = torch.linspace(0.05, 3.0, POINTS, dtype=torch.float64)
    wrong = 0
    for sign in (1.0, -1.0):
        live, advantage = ratio.log()[:, None], sign * torch.ones(POINTS, dtype=torch.float64)
        weight = ascent(GRPO, live, torch.zeros_like(live), advantage, torch.ones_like(live).bool())
        wrong += int(((weight[:, 0] == 0) != (ratio > 1.2 if sign > 0 else ratio < 0.8)).sum())
    return float(wrong)


def _ratio_of_clipped_token(rare: float) -> float:
    """Two tokens: the common one has a negative advantage, the rare one a positive; plain gradient descent until the
    clip stops both.
    """
    old = torch.tensor([[math.log(rare)], [math.log1p(-rare)]], dtype=torch.float64)
    logit = torch.tensor(math.log(rare / (1 - rare)), dtype=torch.float64, requires_grad=True)
    advantage, mask = torch.tensor([1.0, -1.0], dtype=torch.float64), torch.ones(2, 1, dtype=torch.bool)
    for _ in range(10_000):
        live = torch.stack([torch.nn.functional.logsigmoid(logit), torch.nn.functional.logsigmoid(-logit)])[:, None]
        (gradient,) = torch.autograd.grad(GRPO.loss(live, old, advantage, mask).value, logit)
        if gradient == 0:
            break
        with torch.no_grad():
            logit -= 0.3 * gradient
    return float(torch.sigmoid(logit.detach())) / rare


EXPERIMENT = computed(NAME, measure, seeds=1)


def judge(measured: Measurements) -> Verdict:
    """The gradient is 0 just where the equation says, and a clipped token's ratio stays within a step of 1.2."""
    zeros = agree(measured.mean(NAME, "misplaced"), 0.0, 0.0, "where the gradient is 0 and where the equation has it")
    ratio = measured.mean(NAME, f"ratio_{RARE[-1]}")
    return every([zeros, below(ratio, 1.3, "the ratio of a clipped token went to")])


CLAIM = Claim(
    name=NAME,
    title="A clip at 0.8 and 1.2 keeps any single token's probability from changing by more than that.",
    source="S1 (prevents any single token's probability from changing too much), S0 (caps it at 1.2); PPO 1707.06347 "
    "eq 7",
    argument="The clip takes the gradient of a token whose ratio has left the band. It does not hold the ratio there: "
    "other tokens move the same parameters. In a vocabulary of two a rare token rises as long as the common one falls.",
    expected="Does not hold. The common one stops at 0.8 of its probability, and the rare one has what is left: at "
    "0.01 it goes to (1 - 0.8 x 0.99) / 0.01 = 20.8.",
    experiments=(EXPERIMENT,),
    quantities=(
        *(
            Quantity(
                f"ratio of a clipped token of old probability {rare}, after descent on one batch", NAME, f"ratio_{rare}"
            )
            for rare in RARE
        ),
        Quantity(
            f"ratios whose gradient is 0 elsewhere than PPO's equation says, of {2 * POINTS:,}", NAME, "misplaced"
        ),
    ),
    judge=judge,
    figure=Figure(
        title="Where the ratio of a clipped token ends",
        across="the token's old probability",
        up="ratio",
        at=RARE,
        lines=(Line("after descent on one batch", NAME, tuple(f"ratio_{rare}" for rare in RARE)),),
        marks=((1.2, "the clip's upper end"),),
        hint="The rarer the token, the farther it leaves the band after its own gradient has stopped.",
        log_across=True,
        log_up=True,
    ),
)
