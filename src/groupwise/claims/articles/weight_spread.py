"""Claim: the spread of GRPO's token weights grows with the length."""

from groupwise.claims.articles import uniform_weights
from groupwise.claims.articles.uniform_weights import LENGTHS
from groupwise.claims.claim import Claim, Quantity
from groupwise.claims.figure import Figure, Line
from groupwise.claims.measurements import Measurements
from groupwise.claims.verdict import Verdict, above

OF = uniform_weights.NAME


def judge(measured: Measurements) -> Verdict:
    """The deviation at 4096 tokens is above that at 16 by a tenth or more."""
    short, long = (measured.values(OF, f"grpo_deviation_{length}") for length in (LENGTHS[0], LENGTHS[-1]))
    growth = measured.interval_of({seed: long[seed] / short[seed] for seed in long})
    return above(growth, 1.1, f"deviation of weights at {LENGTHS[-1]} tokens over that at {LENGTHS[0]},")


CLAIM = Claim(
    name="weight-spread",
    title="The token weights of GRPO's gradient vary the more the longer the sequence is.",
    source="S0 (higher variance, especially in long sequences), S1 and S4 (noise accumulates with length)",
    argument="The deviation over tokens is that of single ratios, whatever their number. The largest of more draws is "
    "larger, so the range grows, slowly. Only ratios that move together along a sequence could make more of it.",
    expected="Does not hold for independent ratios; the range grows by a tenth or two for four times the tokens.",
    experiments=(uniform_weights.EXPERIMENT,),
    quantities=tuple(
        Quantity(f"GRPO: {words}, {length} tokens", OF, f"grpo_{key}_{length}")
        for key, words in (("deviation", "deviation of weights over their mean"), ("range", "largest over smallest"))
        for length in LENGTHS
    ),
    judge=judge,
    figure=Figure(
        title="How much GRPO's token weights vary",
        across="tokens",
        up="relative to their mean",
        at=LENGTHS,
        lines=(
            Line("deviation", OF, tuple(f"grpo_deviation_{length}" for length in LENGTHS)),
            Line("largest over smallest", OF, tuple(f"grpo_range_{length}" for length in LENGTHS)),
        ),
        hint="The claim would have the deviation rise with the length; only the range does.",
        log_across=True,
    ),
)
