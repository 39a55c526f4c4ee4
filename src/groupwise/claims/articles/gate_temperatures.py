"""Claim: SAPO is more stable with the larger temperature for negative advantages."""

from groupwise.claims.chain_runs import SAPO, SAPO_BELOW, SAPO_EQUAL
from groupwise.claims.claim import Claim, Quantity
from groupwise.claims.measurements import Measurements
from groupwise.claims.verdict import Verdict, above, every

RUNS = {"0.95": SAPO_BELOW, "1.0": SAPO_EQUAL, "1.05": SAPO}


def judge(measured: Measurements) -> Verdict:
    """The held-out pass rate at the end rises from 0.95 to 1.0, and from 1.0 to 1.05."""
    first = measured.difference(SAPO_BELOW.name, SAPO_EQUAL.name, "heldout_end")
    second = measured.difference(SAPO_EQUAL.name, SAPO.name, "heldout_end")
    return every([above(first, 0.0, "from 0.95 to 1.0 higher by"), above(second, 0.0, "from 1.0 to 1.05 higher by")])


CLAIM = Claim(
    name="gate-temperatures",
    title="tau for negative advantages should be above the one for positive ones: 1.05 is more stable than 1.0 and "
    "0.95.",
    source="S3; SAPO 2511.20347 section 3 (eq 9) and figure 5",
    argument="A negative advantage lifts many tokens that were not sampled. But a gate at 1.05 passes 0.989 of the "
    "gradient at a ratio of 1.2 and one at 1.0 passes 0.990.",
    expected="Cannot be told: the gates are the same within a hundredth where nearly all ratios are.",
    experiments=tuple(RUNS.values()),
    quantities=tuple(
        Quantity(f"{what}, tau for negative advantages {words}", run.name, name)
        for what, name in (
            ("held-out pass rate at the end", "heldout_end"),
            ("best held-out pass rate", "heldout_best"),
            ("share of the gradient of negative advantages that passes", "share_passed_negative.mean"),
        )
        for words, run in RUNS.items()
    ),
    judge=judge,
)
