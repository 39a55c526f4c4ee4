"""Claim: real runs keep SAPO's two assumptions."""

from groupwise.claims.chain_runs import GRPO, SAPO
from groupwise.claims.claim import Claim, quantities_of
from groupwise.claims.measurements import Measurements
from groupwise.claims.verdict import Verdict, below, every

RUNS = {"SAPO": SAPO, "GRPO": GRPO}


def judge(measured: Measurements) -> Verdict:
    """In SAPO's own runs fewer than half of the completions have a variance above 0.02, and fewer than a tenth of the
    tokens a ratio that is 0.2 or more off 1.
    """
    spread, far = (measured.interval_of(measured.numbers(SAPO.name, name)) for name in ("variance_above", "ratio_far"))
    return every(
        [
            below(spread, 0.5, "completions with a variance above 0.02:"),
            below(far, 0.1, "tokens with |r - 1| above 0.2:"),
        ]
    )


CLAIM = Claim(
    name="gate-assumptions",
    title="In real runs ratios stay near 1 and vary little inside a completion (mostly below 0.02).",
    source="S3; SAPO 2511.20347 section 4.1, figures 2 and 3",
    argument="These two make a gate per token nearly one per sequence. A gate that is 0.9 at |r - 1| = 0.65 holds "
    "little, and four updates on a batch at a learning rate for a tiny policy move single tokens far.",
    expected="Near 1 for nine tokens of ten: holds. Variance: does not hold at this size.",
    experiments=tuple(RUNS.values()),
    quantities=quantities_of(
        RUNS,
        {
            "tokens with |r - 1| above 0.2": "ratio_far",
            "completions with a variance above 0.02": "variance_above",
            "variance inside a completion, median": "variance_median",
            "variance inside a completion, 99th percentile": "variance_p99",
            "mean gate less gate of the mean, in size": "gate_gap",
            "the same, 99th percentile": "gate_gap_p99",
        },
    ),
    judge=judge,
)
