"""Claim: GSPO's ratio is the better one, at clips that stop equally much."""

from groupwise.claims.chain_runs import GRPO, GSPO, GSPO_MATCHED
from groupwise.claims.claim import Claim, quantities_of
from groupwise.claims.measurements import Measurements
from groupwise.claims.verdict import Verdict, above

RUNS = {"GRPO": GRPO, "GSPO": GSPO, "GSPO, width matched by share": GSPO_MATCHED}


def judge(measured: Measurements) -> Verdict:
    """GSPO with a clip that passes what GRPO's does has a higher held-out pass rate, mean over evaluations."""
    return above(measured.difference(GRPO.name, GSPO_MATCHED.name, "heldout_mean"), 0.0, "held-out pass rate higher by")


CLAIM = Claim(
    name="matched-clips",
    title="A ratio per sequence is the better unit: GSPO learns better than GRPO, and not because it clips more.",
    source="S0, S1, S4; GSPO 2507.18071 sections 4.2 and 5.1",
    argument="Rewards are given to sequences, so weights should be too. But with the papers' widths two things differ "
    "at once, and to tell them apart the clip must pass as much.",
    expected="Cannot be told.",
    experiments=tuple(RUNS.values()),
    quantities=quantities_of(
        RUNS,
        {
            "held-out pass rate, mean over evaluations": "heldout_mean",
            "held-out pass rate at the end": "heldout_end",
            "share of the gradient that passes": "share_passed.mean",
            "variance of token log-ratios": "log_ratio_variance.mean",
        },
    ),
    judge=judge,
)
