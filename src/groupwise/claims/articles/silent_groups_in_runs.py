"""Claim: over training the share of groups without signal is what p^G + (1 - p)^G says of the pass rate."""

from statistics import fmean

from groupwise.claims.chain_runs import GRPO
from groupwise.claims.claim import Claim, Quantity
from groupwise.claims.measurements import Measurements, Row
from groupwise.claims.verdict import Verdict, below

#: Completions of a group in the recipe.
GROUP = 8
#: Shares that differ by less say the same for a plan.
NEAR = 0.05


def apart(row: Row) -> float:
    """Mean over steps of the share seen less the share that the step's pass rate predicts."""
    curves = row.measured["curves"]
    pairs = zip(curves["pass_rate"], curves["groups_mixed_share"], strict=True)
    return fmean(1 - mixed - silent(rate) for rate, mixed in pairs)


def silent(rate: float) -> float:
    """p^G + (1 - p)^G.

    >>> silent(0.5)
    0.0078125
    """
    return rate**GROUP + (1 - rate) ** GROUP


def judge(measured: Measurements) -> Verdict:
    """Seen and predicted share differ by less than 0.05 in the mean over steps."""
    gaps: dict[object, float] = {seed: abs(apart(row)) for seed, row in measured.of(GRPO.name).items()}
    return below(measured.interval_of(gaps), NEAR, "share of groups without signal, seen less predicted,")


CLAIM = Claim(
    name="silent-groups-in-runs",
    title="Over training the share of groups without signal is p^G + (1 - p)^G of the pass rate p.",
    source="S0, S1; DAPO 2503.14476 section 3.2, figure 3b",
    argument="The formula is of one prompt. Prompts differ, and a prompt that is easier or harder than the mean is "
    "silent more often: the function is convex almost everywhere, so the mean pass rate predicts too little.",
    expected="Does not hold: more groups are silent than predicted.",
    experiments=(GRPO,),
    quantities=(
        Quantity("groups with signal, first three steps", GRPO.name, "groups_mixed_share.start"),
        Quantity("groups with signal, last ten steps", GRPO.name, "groups_mixed_share.end"),
        Quantity("pass rate, first three steps", GRPO.name, "pass_rate.start"),
        Quantity("pass rate, last ten steps", GRPO.name, "pass_rate.end"),
    ),
    judge=judge,
)
