"""Claim: the share of groups without signal is p^G + (1 - p)^G of the pass rate, in training runs."""

from collections.abc import Sequence
from statistics import fmean

from groupwise.claims.chain_runs import GRPO
from groupwise.claims.claim import Claim, Quantity
from groupwise.claims.figure import Figure, LineOverSteps
from groupwise.claims.measurements import Measurements
from groupwise.claims.trained import recipe_file
from groupwise.claims.verdict import Verdict, below
from groupwise.config.recipe import read_table

#: Completions of a group.
GROUP: int = read_table(recipe_file("chain"))["samples_per_prompt"]
#: Shares that differ by less say the same for a plan.
NEAR = 0.05
#: A number for each step, None where a step has none.
Curve = Sequence[float | None]


def apart(rates: Curve, mixed: Curve) -> float | None:
    """Mean over steps of the share seen less the share that the step's pass rate predicts; None without any."""
    steps = [(p, share) for p, share in zip(rates, mixed, strict=True) if p is not None and share is not None]
    return fmean(1 - share - silent(p, GROUP) for p, share in steps) if steps else None


def silent(rate: float, group: int) -> float:
    """p^G + (1 - p)^G.

    >>> silent(0.5, 8)
    0.0078125
    """
    return rate**group + (1 - rate) ** group


def judge(measured: Measurements) -> Verdict:
    """Seen and predicted share differ by less than 0.05 in the mean over steps."""
    rates, mixed = measured.curves(GRPO.name, "pass_rate"), measured.curves(GRPO.name, "groups_mixed_share")
    gaps = {seed: abs(gap) for seed in rates if (gap := apart(rates[seed], mixed[seed])) is not None}
    return below(measured.interval_of(gaps), NEAR, "share of groups without signal, seen less predicted,")


CLAIM = Claim(
    name="silent-groups-in-training",
    title="In training, the share of groups without signal is p^G + (1 - p)^G of the pass rate p.",
    source="S0, S1; DAPO 2503.14476 section 3.2, figure 3b",
    argument="The formula is of one prompt. Prompts differ, and a prompt that is easier or harder than the mean is "
    "silent more often: the function is convex, so the mean pass rate predicts too little.",
    expected="Does not hold: more groups are silent than predicted.",
    experiments=(GRPO,),
    quantities=(
        Quantity("groups with signal, first three steps", GRPO.name, "groups_mixed_share.start"),
        Quantity("groups with signal, last ten steps", GRPO.name, "groups_mixed_share.end"),
        Quantity("pass rate, first three steps", GRPO.name, "pass_rate.start"),
        Quantity("pass rate, last ten steps", GRPO.name, "pass_rate.end"),
    ),
    judge=judge,
    figure=Figure(
        title="Pass rate, and groups with signal",
        across="step",
        up="share",
        at=(),
        lines=tuple(
            LineOverSteps(words, GRPO.name, curve)
            for words, curve in (("pass rate", "pass_rate"), ("groups with signal", "groups_mixed_share"))
        ),
        hint=f"With groups of {GROUP} the equation leaves nearly every group a signal until the pass rate is near 1.",
    ),
)
