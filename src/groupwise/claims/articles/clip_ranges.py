"""Claim: the clipped shares of GRPO and GSPO differ as much whatever the ranges."""

from groupwise.claims.articles import clipped_share
from groupwise.claims.articles.clipped_share import LENGTHS
from groupwise.claims.claim import Claim, Quantity
from groupwise.claims.measurements import Measurements
from groupwise.claims.verdict import Verdict, above

OF = clipped_share.NAME
LENGTH = 2048


def judge(measured: Measurements) -> Verdict:
    """With GRPO's ranges GSPO still stops ten times as many tokens as GRPO."""
    wide, grpo = (measured.values(OF, f"{name}_{LENGTH}") for name in ("gspo_wide", "grpo"))
    apart = {seed: wide[seed] - 10 * grpo[seed] for seed in wide}
    return above(
        measured.interval_of(apart), 0.0, f"at GRPO's ranges GSPO's share less ten times GRPO's, {LENGTH} tokens,"
    )


CLAIM = Claim(
    name="clip-ranges",
    title="Adjusting the clipping ranges does not alter how much more GSPO clips than GRPO.",
    source="GSPO 2507.18071 section 5.2",
    argument="A mean of thousands of log-ratios leaves 0.2 practically never, so that GSPO at GRPO's ranges stops "
    "nothing; and there is always a width at which both stop the same share.",
    expected="Does not hold.",
    experiments=(clipped_share.EXPERIMENT,),
    quantities=tuple(
        Quantity(f"{words}, {length} tokens", OF, f"{key}_{length}")
        for length in LENGTHS
        for key, words in (
            ("grpo", "share stopped by GRPO (0.2, 0.27)"),
            ("gspo_wide", "by GSPO at the same ranges"),
            ("matched", "width at which GSPO stops as many as GRPO"),
        )
    ),
    judge=judge,
)
