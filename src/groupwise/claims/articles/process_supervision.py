"""Claim: process supervision credits another step wrongly where the policy decides when to stop."""

from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from groupwise.algorithms.settings import algorithm
from groupwise.claims.claim import Claim, Quantity
from groupwise.claims.computed import computed
from groupwise.claims.figure import Figure, Line
from groupwise.claims.measurements import Measurements
from groupwise.claims.verdict import Verdict, above, agree, below, every

NAME = "process-supervision"
#: The most steps, the chance of a right one, and the chances to go on that are tried; a right step is worth 1.
STEPS, RIGHT, GO_ON = 3, 0.5, (0.2, 0.4, 0.6, 0.8)
GROUP, USUAL = 4, 0.6
ROWS = {
    "loo": algorithm("rloo", {"kl.beta": 0.0}),
    "trajectory": algorithm("grpo", {"kl.beta": 0.0}),
    "process": algorithm("grpo-process", {"kl.beta": 0.0}),
}


class Trajectories(NamedTuple):
    """Every one that the policy can write, [S] or [S,T]: a step in each even column, after it whether it goes on.

    go_on, quality  d log p of each token by the logit of going on, and by that of a right step
    """

    chance: Tensor
    reward: Tensor
    mask: Tensor
    step_end: Tensor
    go_on: Tensor
    quality: Tensor


def measure(seed: int, work: Path) -> dict[str, float]:
    """Two decisions, to take another step and to take it well: the expected gradient of each under a credit, over all
    groups of 4, in units of the true one; and the first over the second, which a scale of the credit does not change.
    """
    seen: dict[str, float] = {}
    for chance in GO_ON:
        every_one = _trajectories(chance)
        total = every_one.reward.sum(1)
        truth = [float(every_one.chance @ (total * slope.sum(1))) for slope in (every_one.go_on, every_one.quality)]
        seen[f"true_{chance}"] = truth[0]
        for name in ROWS:
            go_on, quality = _expected(name, every_one)
            seen[f"{name}_go_on_{chance}"], seen[f"{name}_quality_{chance}"] = go_on / truth[0], quality / truth[1]
            seen[f"{name}_{chance}"] = seen[f"{name}_go_on_{chance}"] / seen[f"{name}_quality_{chance}"]
    return seen


def _trajectories(go_on: float) -> Trajectories:
    rows = []
    for steps in range(1, STEPS + 1):
        for rights in product((0.0, 1.0), repeat=steps):
            reward, mask, end, by_go_on, by_quality = (
                torch.zeros(2 * STEPS - 1, dtype=torch.float64) for _ in range(5)
            )
            chance = 1.0
            for number, right in enumerate(rights):
                reward[2 * number], by_quality[2 * number] = right, right - RIGHT
                chance *= RIGHT if right else 1 - RIGHT
                mask[2 * number] = end[2 * number] = 1
                if number + 1 < STEPS:
                    goes = number + 1 < steps
                    mask[2 * number + 1], by_go_on[2 * number + 1] = 1, goes - go_on
                    chance *= go_on if goes else 1 - go_on
            rows.append(
                (torch.tensor(chance, dtype=torch.float64), reward, mask.bool(), end.bool(), by_go_on, by_quality)
            )
    return Trajectories(*(torch.stack(column) for column in zip(*rows, strict=True)))


def _expected(name: str, every_one: Trajectories) -> tuple[float, float]:
    """By the logit of going on and by that of a right step, a mean over the completions of a group."""
    groups = torch.cartesian_prod(*[torch.arange(len(every_one.chance))] * GROUP)
    chance, rows = every_one.chance[groups].prod(1), groups.flatten()
    ids = torch.arange(len(groups)).repeat_interleave(GROUP)
    mask, reward = every_one.mask[rows], every_one.reward[rows]
    if ROWS[name].advantage.reads_steps:
        advantage = ROWS[name].advantages(reward, ids, mask, every_one.step_end[rows])
    else:
        advantage = ROWS[name].advantages(reward.sum(1), ids, mask)[:, None].expand_as(reward)
    go_on, quality = (
        float(chance @ (advantage * slope[rows] * mask).sum(1).view(-1, GROUP).mean(1))
        for slope in (every_one.go_on, every_one.quality)
    )
    return go_on, quality


EXPERIMENT = computed(NAME, measure, seeds=1)


def judge(measured: Measurements) -> Verdict:
    """Leave-one-out over whole trajectories has the true gradient. Under process supervision another step gets less
    than a third of the credit that it should have beside a right one; under z-scores of trajectories more than a half.
    """
    true = max(abs(measured.mean(NAME, f"loo_go_on_{chance}") - 1) for chance in GO_ON)
    return every(
        [
            agree(true, 0.0, 1e-9, "the gradient of going on under leave-one-out over the true one, and 1,"),
            below(
                measured.mean(NAME, f"process_{USUAL}"), 1 / 3, "under process supervision its share of the credit is"
            ),
            above(measured.mean(NAME, f"trajectory_{USUAL}"), 1 / 2, "under z-scores of trajectories it is"),
        ]
    )


CLAIM = Claim(
    name=NAME,
    title="Process supervision credits 'take another step' wrongly where the policy decides when to stop.",
    source="against DeepSeekMath 2402.03300 section 4.1.3, which has it as the finer credit",
    argument="Each step that is right half of the time is worth as much, so going on is worth half a step. Centred "
    "over all steps of the group, a usual step is worth nothing: going on to it has no credit, and one who stops loses "
    "none. Whether a step is done well is credited as it should be.",
    expected="Holds.",
    experiments=(EXPERIMENT,),
    quantities=(
        Quantity(f"true gradient of the logit of going on, chance {USUAL}", NAME, f"true_{USUAL}"),
        *(
            Quantity(f"{words}: {what}, over the true one", NAME, f"{name}_{key}_{USUAL}")
            for name, words in (
                ("loo", "leave-one-out of trajectories (RLOO)"),
                ("trajectory", "z-scores of trajectories (GRPO)"),
                ("process", "z-scores of steps (process supervision)"),
            )
            for key, what in (("go_on", "gradient of going on"), ("quality", "gradient of a right step"))
        ),
    ),
    judge=judge,
    figure=Figure(
        title="Credit for another step, against credit for a right one",
        across="chance to go on",
        up="over the true share",
        at=GO_ON,
        lines=tuple(
            Line(words, NAME, tuple(f"{name}_{chance}" for chance in GO_ON))
            for name, words in (
                ("loo", "leave-one-out"),
                ("trajectory", "z-score of trajectories"),
                ("process", "of steps"),
            )
        ),
        hint="It should be 1; process supervision pays next to nothing for another step, whatever the policy.",
    ),
)
