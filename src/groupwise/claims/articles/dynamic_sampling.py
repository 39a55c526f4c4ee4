"""Claim: dynamic sampling reaches a higher score in as many updates."""

from groupwise.claims.chain_runs import DYNAMIC_SAMPLING, GRPO
from groupwise.claims.claim import Claim, quantities_of
from groupwise.claims.measurements import Measurements
from groupwise.claims.verdict import Verdict, above

RUNS = {"every group trains": GRPO, "dynamic sampling": DYNAMIC_SAMPLING}


def judge(measured: Measurements) -> Verdict:
    """The held-out pass rate, mean over the run's evaluations, is higher with it."""
    gain = measured.difference(GRPO.name, DYNAMIC_SAMPLING.name, "heldout_mean")
    return above(gain, 0.0, "held-out pass rate higher by")


CLAIM = Claim(
    name="dynamic-sampling",
    title="Dynamic sampling reaches a higher score in as many updates.",
    source="S0, S1, S3; DAPO 2503.14476 section 3.2, figure 6 and table 1",
    argument="Each update has only groups with a signal, so its gradient has less noise.",
    expected="Holds, by little where few groups are silent.",
    experiments=tuple(RUNS.values()),
    quantities=quantities_of(
        RUNS,
        {
            "held-out pass rate, mean over evaluations": "heldout_mean",
            "held-out pass rate at the end": "heldout_end",
            "tokens generated": "generated_tokens",
            "seconds of training": "seconds_training",
        },
    ),
    judge=judge,
)
