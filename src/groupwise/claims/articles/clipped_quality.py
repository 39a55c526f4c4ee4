"""Claim: GSPO's clip keeps the samples of high quality."""

from pathlib import Path

import torch

from groupwise.algorithms.settings import algorithm
from groupwise.claims.claim import Claim, Quantity
from groupwise.claims.computed import computed
from groupwise.claims.measurements import Measurements
from groupwise.claims.toys import ToyRun
from groupwise.claims.verdict import Verdict, above, every

NAME = "clipped-quality"
#: Four minibatches a step as in GSPO's paper, and a rate at which 10 to 15 % are stopped, as in its figure.
RATE, UPDATES, STEPS = 0.15, 4, 8
GSPO = algorithm("gspo")


def measure(seed: int, work: Path) -> dict[str, float]:
    """A toy run: how often the completions are right that the clip keeps, and those that it stops; what share of the
    wrong ones it stops; and how many of the stopped had gone against their advantage.
    """
    run = ToyRun(GSPO, seed, RATE, UPDATES)
    columns: list[list[torch.Tensor]] = [[], [], []]
    for _ in range(STEPS):
        for update in list(run.step())[1:]:  # before the first one every ratio is 1
            against = update.advantage * (update.live - update.old).mean(1) < 0
            for column, values in zip(columns, (update.out.share[:, 0], update.reward, against), strict=True):
                column.append(values)
    share, reward, against = (torch.cat(column) for column in columns)
    stopped = share == 0
    right_passed, right_stopped = float(reward[~stopped].mean()), float(reward[stopped].mean())
    return {
        "stopped": float(stopped.double().mean()),
        "right_kept": right_passed,
        "right_stopped": right_stopped,
        "gained": right_passed - right_stopped,
        "wrong_stopped": float(stopped[reward == 0].double().mean()),
        "against": float(against[stopped].double().mean()),
    }


EXPERIMENT = computed(NAME, measure, seeds=10)


def judge(measured: Measurements) -> Verdict:
    """What is kept is right more often than what is stopped, and of the wrong ones more are stopped than kept."""
    better = above(measured.interval(NAME, "gained"), 0.0, "what is kept is right more often than what is stopped by")
    return every(
        [better, above(measured.interval(NAME, "wrong_stopped"), 0.5, "of the wrong completions it stops a share of")]
    )


CLAIM = Claim(
    name=NAME,
    title="GSPO filters completions and keeps only those of high quality.",
    source="S0 (filters and retains only high-quality samples), S4 (picks the 50 best of 1000)",
    argument="The clip looks at the ratio and at the sign of the advantage, not at its size: it stops a completion "
    "that has already moved the way of its advantage, right or wrong. A mean log-ratio is below 0 on average and the "
    "lower width is the narrower, so that wrong ones are stopped somewhat more often.",
    expected="Does not hold: most wrong ones are kept.",
    experiments=(EXPERIMENT,),
    quantities=(
        Quantity("share of completions that are stopped", NAME, "stopped"),
        Quantity("share of right ones among the kept", NAME, "right_kept"),
        Quantity("share of right ones among the stopped", NAME, "right_stopped"),
        Quantity("difference", NAME, "gained"),
        Quantity("share of the wrong ones that are stopped", NAME, "wrong_stopped"),
        Quantity("share of the stopped that had moved against their advantage", NAME, "against"),
    ),
    judge=judge,
)
