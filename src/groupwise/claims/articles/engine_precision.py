"""Claim: GSPO needs no recomputation of the engine's log-probabilities."""

from groupwise.claims.chain_runs import GRPO, GRPO_ENGINE, GSPO, GSPO_ENGINE, SAPO, SAPO_ENGINE
from groupwise.claims.claim import Claim, Quantity
from groupwise.claims.measurements import Measurements
from groupwise.claims.verdict import Verdict, below

PAIRS = {"GSPO": (GSPO, GSPO_ENGINE), "GRPO": (GRPO, GRPO_ENGINE), "SAPO": (SAPO, SAPO_ENGINE)}
#: A loss of this much would not be called tolerated.
TOLERATED = 0.05


def judge(measured: Measurements) -> Verdict:
    """With a bf16 engine's own log-probabilities GSPO loses less than 0.05 of its held-out pass rate (mean over
    evaluations).
    """
    loss = measured.difference(GSPO_ENGINE.name, GSPO.name, "heldout_mean")
    return below(loss, TOLERATED, "GSPO loses in pass rate")


CLAIM = Claim(
    name="engine-precision",
    title="GSPO tolerates an engine of other precision: its log-probabilities need not be computed again.",
    source="S0, S1, S4; GSPO 2507.18071 section 5.4 (an expectation, without an experiment)",
    argument="A mean over a sequence averages the errors of single tokens out. But GSPO's width is a thousandth, so "
    "that small errors of the mean decide what is stopped, and a policy that samples in bf16 is another "
    "policy.",
    expected="Holds here; for GRPO and SAPO as well, whose clips are far wider than the error of bf16.",
    experiments=tuple(run for pair in PAIRS.values() for run in pair),
    quantities=tuple(
        Quantity(f"{what}, {words}, {whose}", run.name, name)
        for what, name in (
            ("held-out pass rate, mean over evaluations", "heldout_mean"),
            ("held-out pass rate at the end", "heldout_end"),
            ("share of the gradient that passes", "share_passed.mean"),
        )
        for words, pair in PAIRS.items()
        for whose, run in zip(("learner's log-probabilities", "bf16 engine's"), pair, strict=True)
    ),
    judge=judge,
)
