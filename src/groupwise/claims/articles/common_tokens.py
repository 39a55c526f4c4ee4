"""Claim: clip-higher is for common tokens."""

from groupwise.claims.articles import rare_tokens
from groupwise.claims.claim import Claim, Quantity
from groupwise.claims.measurements import Measurements
from groupwise.claims.verdict import Verdict, above

OF = rare_tokens.NAME


def judge(measured: Measurements) -> Verdict:
    """More than half of what it lets through had a probability above a half."""
    return above(measured.interval(OF, "freed_common"), 0.5, "of what clip-higher lets through, a share above 0.5 of")


CLAIM = Claim(
    name="common-tokens",
    title="Clip-higher keeps tokens of high probability from being clipped too much.",
    source="S2, clip-higher",
    argument="A token of probability 0.9 cannot have a ratio above 1/0.9, so no upper clip at 1.2 ever stops it.",
    expected="Does not hold: it is the rare ones that the upper clip stops.",
    experiments=(rare_tokens.EXPERIMENT,),
    quantities=(
        Quantity("share of the freed that were more probable than 0.5", OF, "freed_common"),
        Quantity("the most probable that the usual clip stops", OF, "most_probable"),
    ),
    judge=judge,
)
