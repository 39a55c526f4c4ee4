"""Claim: GSPO's s_i is an unbiased importance weight."""

from groupwise.claims.articles import perplexity_ratio
from groupwise.claims.articles.perplexity_ratio import LENGTHS
from groupwise.claims.claim import Claim, Quantity
from groupwise.claims.figure import Figure, Line
from groupwise.claims.measurements import Measurements
from groupwise.claims.verdict import Verdict, agree, below, every

OF = perplexity_ratio.NAME
LONGEST = LENGTHS[-1]


def judge(measured: Measurements) -> Verdict:
    """The product of ratios is the unbiased weight, to rounding; s_i corrects at least half of what there is."""
    product = agree(
        measured.largest(OF, f"bias_product_{LONGEST}"),
        0.0,
        1e-12,
        "E_old[product of ratios x reward] and E_new[reward]",
    )
    bias, effect = (measured.values(OF, f"{name}_{LONGEST}") for name in ("bias_s", "effect"))
    left = {seed: bias[seed] - effect[seed] / 2 for seed in bias}
    return every(
        [product, below(measured.interval_of(left), 0.0, "the bias of s_i less half of what is to be corrected,")]
    )


CLAIM = Claim(
    name="sequence-weight",
    title="GSPO's sequence ratio s_i, exponentiated, stays an unbiased importance weight.",
    source="S0, on why it is exponentiated",
    argument="An unbiased weight is the product of the ratios, s_i to the power of the length. Any other power has "
    "another mean: E_old[s] is below 1, and the longer the sequence, the less of the difference between the two "
    "policies it corrects.",
    expected="Does not hold.",
    experiments=(perplexity_ratio.EXPERIMENT,),
    quantities=(
        *(
            Quantity(f"E_old[s], which is 1 of an unbiased weight, {length} tokens", OF, f"mean_s_{length}")
            for length in LENGTHS
        ),
        Quantity(
            f"what a weight has to correct: E_new[reward] - E_old[reward], {LONGEST} tokens", OF, f"effect_{LONGEST}"
        ),
        Quantity(f"bias of E_old[s x reward], {LONGEST} tokens", OF, f"bias_s_{LONGEST}"),
        Quantity(f"bias of E_old[product of ratios x reward], {LONGEST} tokens", OF, f"bias_product_{LONGEST}"),
    ),
    judge=judge,
    figure=Figure(
        title="What a weight leaves uncorrected",
        across="tokens",
        up="reward units",
        at=LENGTHS,
        lines=tuple(
            Line(words, OF, tuple(f"{key}_{length}" for length in LENGTHS))
            for key, words in (
                ("effect", "without a weight"),
                ("bias_s", "with s"),
                ("bias_product", "with the product"),
            )
        ),
        hint="At one token s is the ratio itself; with every further token it corrects less.",
    ),
)
