"""Claim: dropping groups without signal makes sampling more efficient."""

from statistics import fmean

from groupwise.claims.articles import silent_groups
from groupwise.claims.articles.silent_groups import CHANCES
from groupwise.claims.claim import Claim, Quantity
from groupwise.claims.measurements import Measurements
from groupwise.claims.verdict import Verdict, above

OF = silent_groups.NAME
#: The size that DAPO uses.
USUAL = 16


def judge(measured: Measurements) -> Verdict:
    """Groups with signal among all that are generated: a tenth more with the filter than without."""
    with_filter = fmean(1 - measured.mean(OF, f"dropped_{USUAL}_{chance}") for chance in CHANCES)
    without = fmean(1 - measured.mean(OF, f"silent_{USUAL}_{chance}") for chance in CHANCES)
    return above(
        with_filter / without, 1.1, "groups with signal for each that is generated, with the filter over without,"
    )


CLAIM = Claim(
    name="rollout-efficiency",
    title="Dropping groups that are all right or all wrong makes sampling more efficient.",
    source="S3 (to raise the efficiency of the rollout), S0 (prevents massive waste); DAPO 2503.14476 section 3.2",
    argument="A group is generated before anybody knows that it is dropped, and its replacement is generated on top. "
    "Of every hundred groups as many have signal as without the filter; what it saves is updates, at 1/(1 - silent) "
    "times the generation for each.",
    expected="Does not hold; whether updates on full batches are worth it is for runs to tell.",
    experiments=(silent_groups.EXPERIMENT,),
    quantities=tuple(
        Quantity(
            f"share of groups that are generated and dropped, G = {USUAL}, p = {chance}",
            OF,
            f"dropped_{USUAL}_{chance}",
        )
        for chance in CHANCES
    ),
    judge=judge,
)
