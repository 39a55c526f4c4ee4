"""Claim: the deviation favours prompts that are nearly always or nearly never solved."""

import math

from groupwise.claims.articles import group_baseline
from groupwise.claims.articles.group_baseline import CHANCES, SIZES
from groupwise.claims.claim import Claim, Quantity
from groupwise.claims.figure import Figure, Line
from groupwise.claims.measurements import Measurements
from groupwise.claims.verdict import Verdict, above, below, every

OF = group_baseline.NAME
#: The size that DAPO and DeepSeek-R1 use.
USUAL = 16


def judge(measured: Measurements) -> Verdict:
    """At G = 16 prompts of 0.05 and 0.95 weigh a fifth more than one of 0.5; at G = 256 all weigh 1/sqrt(p(1-p))."""
    middle = measured.mean(OF, f"deviation_{USUAL}_0.5")
    favoured = (
        above(measured.mean(OF, f"deviation_{USUAL}_{p}") / middle, 1.2, f"a prompt of {p} weighs, against one of 0.5,")
        for p in (0.05, 0.95)
    )
    largest = SIZES[-1]
    limit = {p: 1 / math.sqrt(p * (1 - p)) for p in (0.1, 0.2, 0.5, 0.8, 0.9)}
    apart = max(abs(measured.mean(OF, f"deviation_{largest}_{p}") / weight - 1) for p, weight in limit.items())
    return every([*favoured, below(apart, 0.05, f"at G = {largest} the weights are off 1/sqrt(p(1-p)) by a share of")])


CLAIM = Claim(
    name="group-deviation",
    title="Dividing by the group's deviation gives prompts that are nearly always or nearly never solved more weight.",
    source="Dr. GRPO 2503.20783 (question-level difficulty bias), against S1, who leaves it out of the limit",
    argument="A prompt of pass rate p weighs 1/sqrt(p(1-p)) in the limit, so that what is ascended is the mean of "
    "2 arcsin sqrt(p) and not of p. In a group of two the deviation is the same wherever there is one, and favours "
    "nobody.",
    expected="Holds from G = 4 on; the limit is reached late for extreme prompts, whose groups are mostly without "
    "signal.",
    experiments=(group_baseline.EXPERIMENT,),
    quantities=tuple(
        Quantity(f"weight of a prompt, G = {size}, p = {chance}", OF, f"deviation_{size}_{chance}")
        for size in SIZES
        for chance in (0.02, 0.05, 0.5)
    ),
    judge=judge,
    figure=Figure(
        title="What a prompt weighs under GRPO's deviation",
        across="its pass rate",
        up="weight",
        at=CHANCES,
        lines=tuple(Line(f"G = {size}", OF, tuple(f"deviation_{size}_{p}" for p in CHANCES)) for size in SIZES),
        hint="Flat is the pass rate itself, as for G = 2; larger groups lift both ends toward 1/sqrt(p(1-p)).",
    ),
)
