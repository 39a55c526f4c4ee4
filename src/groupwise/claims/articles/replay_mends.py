"""Claim: on a mixture of experts GRPO needs routing replay."""

from groupwise.claims.claim import Claim, Quantity
from groupwise.claims.measurements import Measurements
from groupwise.claims.moe_runs import RATES, run
from groupwise.claims.verdict import Verdict, above, every


def judge(measured: Measurements) -> Verdict:
    """At each of two learning rates GRPO with replay ends with a higher held-out pass rate than without."""
    gains = {
        rate: measured.difference(run("grpo", rate).name, run("grpo-r2", rate).name, "heldout_end") for rate in RATES
    }
    return every(above(gain, 0.0, f"at {rate:g} higher by") for rate, gain in gains.items())


CLAIM = Claim(
    name="replay-mends",
    title="On a mixture of experts GRPO's token ratios break as experts change, and routing replay mends it.",
    source="S0, S1, S3, S4; GSPO 2507.18071 section 5.3, figure 3",
    argument="Under an update some tokens go through other experts, which moves their ratios; the same experts again "
    "would take that away.",
    expected="Written after the runs of docs/moe.md, whose rows these are: does not hold or cannot be told.",
    experiments=tuple(run(name, rate) for rate in RATES for name in ("grpo", "grpo-r2")),
    quantities=tuple(
        Quantity(f"{what}, {words}, learning rate {rate:g}", run(name, rate).name, key)
        for what, key in (
            ("held-out pass rate at the end", "heldout_end"),
            ("best held-out pass rate", "heldout_best"),
            ("variance of token log-ratios", "log_ratio_variance.mean"),
        )
        for rate in RATES
        for name, words in (("grpo", "without replay"), ("grpo-r2", "with replay"))
    ),
    judge=judge,
)
