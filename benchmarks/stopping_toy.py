"""Which credit has the true gradient where the policy decides when to stop: every group written out, float64.

    python benchmarks/stopping_toy.py

A policy of one logit goes on after each turn with the chance p = sigmoid(theta), or stops; after the last turn it is
over. Each turn pays what `Toy.pays` says. Printed is d E[reward] / d theta, and what each credit expects it to be over
all groups of GROUP episodes: the mean over episodes of the sum over turns of A_t d log pi(turn t) / d theta. The table
of docs/concepts/credit.md is this one.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

import torch
from torch import Tensor

from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.parts.advantage import Advantage
from groupwise.algorithms.parts.shaping import Steps
from groupwise.algorithms.parts.turns import turns
from groupwise.algorithms.settings import algorithm
from groupwise.core.masked import group_ids, group_sum
from groupwise.core.records import Batch

GROUP = 8


@dataclass(frozen=True)
class Toy:
    """What each turn pays, reward units, and the chance to go on after it."""

    words: str
    pays: Sequence[float]
    go_on: float


TOYS = (
    Toy("every turn pays 1", (1.0, 1.0, 1.0, 1.0), 0.3),
    Toy("the first pays 1, each further one 0.5", (1.0, 0.5, 0.5, 0.5), 0.3),
)


@dataclass(frozen=True)
class ByTurnIndex(Advantage):
    """Each turn's reward minus the mean reward of that turn in the group, summed to go. Here to be compared with."""

    equation = "A_t = sum over t' >= t of r_t' - mean of r_t' over all of the group alive at t'"
    reads_steps = True
    whole = False

    def __call__(
        self, reward: Tensor, value: Tensor | None, mask: Tensor, group: Tensor, step_end: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        assert step_end is not None
        each = turns(reward, mask, step_end, gamma=float(self.whole))
        dense, groups = group_ids(group)
        columns = zip(each.to_go.unbind(1), each.alive.double().unbind(1), strict=True)
        means = [group_sum(x * on, dense, groups) / group_sum(on, dense, groups).clamp(min=1) for x, on in columns]
        centred = (each.to_go - torch.stack(means, 1)[dense]) * each.alive
        credit = centred if self.whole else centred.flip(-1).cumsum(-1).flip(-1)
        return each.at_tokens(credit, mask), each.at_tokens(each.to_go, mask)


@dataclass(frozen=True)
class ToGoWithItself(ByTurnIndex):
    """The return to go minus the mean over all of the group alive at that turn, the episode itself among them."""

    equation = "A_t = R_t - mean of R_t over all of the group alive at t"
    whole = True


def _row(**settings: object) -> Algorithm:
    chosen = {"kl.beta": 0.0, "aggregate.kind": "constant", "aggregate.limit": 1}
    return algorithm("grpo", chosen | {key.replace("__", "."): value for key, value in settings.items()})


def _own(part: Advantage) -> Algorithm:
    return dataclasses.replace(_row(), advantage=part, shaping=Steps())


#: In words -> what gives the credit.
CREDITS: Mapping[str, Algorithm] = {
    "mean of the group's episodes (`group-mean`)": _row(advantage__kind="group-mean"),
    "mean of the other episodes (`leave-one-out`)": _row(advantage__kind="leave-one-out"),
    "turns to go (`turn-to-go`)": _row(advantage__kind="turn-to-go"),
    "to go, the episode itself in the mean (no part)": _own(ToGoWithItself()),
    "rewards centred by turn index (no part)": _own(ByTurnIndex()),
    "process supervision (`process-zscore`)": _row(advantage__kind="process-zscore"),
    "state groups, by turn (`gigpo`, no deviations)": _row(
        advantage__kind="gigpo", advantage__deviation=False, advantage__gamma=1.0
    ),
    "`turn-to-go` weighed by `sequence-mean`": dataclasses.replace(
        _row(advantage__kind="turn-to-go"), aggregate=algorithm("grpo").aggregate
    ),
}


def truth(toy: Toy) -> float:
    """d E[reward] / d theta: a turn is reached with the chance p^t, and d p / d theta = p (1 - p)."""
    p = toy.go_on
    return math.fsum(t * p**t * (1 - p) * pays for t, pays in enumerate(toy.pays))


def expected(toy: Toy, row: Algorithm) -> float:
    """What the gradient under a credit is on average over all groups, by the loss of the project's own parts."""
    batch, logp, chance = _every_group(toy)
    credited = row.weigh(row.credit(batch))
    weight = credited.need("weight") * len(batch) / GROUP * chance[:, None]
    theta = torch.tensor(math.log(toy.go_on / (1 - toy.go_on)), dtype=torch.float64, requires_grad=True)
    live = torch.where(logp > 0, torch.nn.functional.logsigmoid(theta), torch.nn.functional.logsigmoid(-theta))
    loss = row.objective(weight, live, live.detach(), credited.need("advantage"), batch.mask)
    return -float(torch.autograd.grad(loss.value, theta)[0])


def _every_group(toy: Toy) -> tuple[Batch, Tensor, Tensor]:
    """Every group once, orders counted -> its rows, [N,T] whether a token goes on (1) or stops (-1), [N] its chance."""
    last, p = len(toy.pays), toy.go_on
    # An episode is how often it goes on; after the last turn either token ends it.
    chances = [p**n * (1 - p) for n in range(last)] + [p**last]
    groups = list(combinations_with_replacement(range(last + 1), GROUP))
    chance = [
        math.factorial(GROUP)
        * math.prod(chances[n] ** times / math.factorial(times) for n, times in Counter(group).items())
        for group in groups
    ]
    went_on = torch.tensor(groups).flatten()
    at = torch.arange(last)
    mask = at <= went_on[:, None]
    ids = torch.arange(len(groups)).repeat_interleave(GROUP)
    pays = torch.tensor(toy.pays, dtype=torch.float64).expand(mask.shape) * mask
    batch = Batch(
        tokens=mask.long(),
        mask=mask,
        length=mask.sum(1),
        group=ids,
        score=pays.sum(1),
        version=torch.zeros_like(ids),
        logp_engine=torch.zeros(mask.shape),
        step_score=pays,
        step_end=mask,
        step_state=mask * (at + 1),
    )
    return batch, torch.where(at < went_on[:, None], 1, -1), torch.tensor(chance, dtype=torch.float64)[ids]


def table() -> str:
    """The table of docs/concepts/credit.md."""
    lines = ["| credit | " + " | ".join(toy.words for toy in TOYS) + " |", "|---|" + "---|" * len(TOYS)]
    rows = {"**the true gradient**": [truth(toy) for toy in TOYS]}
    rows |= {words: [expected(toy, row) for toy in TOYS] for words, row in CREDITS.items()}
    lines += [f"| {' | '.join([words, *map(_number, numbers)])} |" for words, numbers in rows.items()]
    return "\n".join(lines)


def _number(x: float) -> str:
    return f"{round(x, 3) + 0.0:.3f}"  # a rounded -1e-17 has a sign


if __name__ == "__main__":
    print(table())
