"""Claim: under a tight limit both of DAPO's ways with overlong answers are better than neither."""

from groupwise.claims.chain_runs import FILTERING, NAIVE, SOFT_ALONE
from groupwise.claims.claim import Claim, quantities_of
from groupwise.claims.measurements import Measurements
from groupwise.claims.verdict import Verdict, above, every

RUNS = {"neither": NAIVE, "filtering": FILTERING, "soft punishment": SOFT_ALONE}


def judge(measured: Measurements) -> Verdict:
    """The held-out pass rate under the limit, mean over evaluations, is higher with each than with neither."""
    gains = {
        words: measured.difference(NAIVE.name, run.name, "heldout_mean")
        for words, run in RUNS.items()
        if run is not NAIVE
    }
    return every(above(gain, 0.0, f"with {words} higher by") for words, gain in gains.items())


CLAIM = Claim(
    name="overlong",
    title="Under a tight limit, filtering overlong answers and punishing them softly both raise the score.",
    source="S0, S1, S3; DAPO 2503.14476 section 3.4, table 1 (30 to 36, and 38 to 41)",
    argument="An answer that is cut off scores 0 though its steps may be right, which is noise; filtering takes the "
    "noise out. But here it is also what tells the policy to be brief enough, and filtered answers tell it "
    "nothing.",
    expected="Soft punishment: holds. Filtering: does not hold under a limit that is tight for most answers.",
    experiments=tuple(RUNS.values()),
    quantities=quantities_of(
        RUNS,
        {
            "held-out pass rate, mean over evaluations": "heldout_mean",
            "held-out pass rate at the end": "heldout_end",
            "completions cut off, last ten steps": "truncated_share.end",
            "tokens, last ten steps": "length_mean.end",
        },
    ),
    judge=judge,
)
