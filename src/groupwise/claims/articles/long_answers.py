"""Claim: DAPO's weights give long answers less influence per token."""

from groupwise.claims.articles import length_weights
from groupwise.claims.claim import Claim, Quantity
from groupwise.claims.measurements import Measurements
from groupwise.claims.verdict import Verdict, below

OF = length_weights.NAME


def judge(measured: Measurements) -> Verdict:
    """A token of 200 weighs less than nine tenths of a token of 10."""
    ratio = measured.mean(OF, "token_long_200") / measured.mean(OF, "token_short_200")
    return below(ratio, 0.9, "under DAPO a token of 200 weighs, in units of a token of 10,")


CLAIM = Claim(
    name="long-answers",
    title="DAPO weights tokens so that longer sequences have less influence per token.",
    source="S2, token-level loss weighting",
    argument="It is GRPO that does so. Under DAPO's mean over tokens all weigh alike, and a long answer as a whole has "
    "more weight, in proportion to its length.",
    expected="Does not hold: the statement is the reverse of the paper's section 3.3.",
    experiments=(length_weights.EXPERIMENT,),
    quantities=(
        Quantity("DAPO: weight of a token of 200", OF, "token_long_200"),
        Quantity("DAPO: weight of a token of 10", OF, "token_short_200"),
        Quantity("DAPO: share of the answer of 200", OF, "token_total_200"),
        Quantity("GRPO: weight of a token of 200", OF, "sequence_long_200"),
        Quantity("GRPO: weight of a token of 10", OF, "sequence_short_200"),
    ),
    judge=judge,
)
