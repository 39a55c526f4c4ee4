"""Claim: GSPO and SAPO need no routing replay."""

from groupwise.claims.claim import Claim, Quantity
from groupwise.claims.measurements import Measurements
from groupwise.claims.moe_runs import RATES, run
from groupwise.claims.verdict import Verdict, below, every

#: What replay may gain at most where it is not needed: held-out pass rate.
UNNEEDED = 0.05
RUNS = ("gspo", "sapo")


def judge(measured: Measurements) -> Verdict:
    """At each of two learning rates replay gains less than 0.05 of the held-out pass rate at the end, for both."""
    gains = {
        (name, rate): measured.difference(run(name, rate).name, run(f"{name}-r2", rate).name, "heldout_end")
        for name in RUNS
        for rate in RATES
    }
    return every(below(gain, UNNEEDED, f"{name} at {rate:g} gains") for (name, rate), gain in gains.items())


CLAIM = Claim(
    name="replay-unneeded",
    title="GSPO and SAPO train mixtures of experts without routing replay.",
    source="S0, S1, S3, S4; GSPO 2507.18071 section 5.3, SAPO 2511.20347 section 5",
    argument="A mean over a sequence, or a soft gate, should not care that single tokens went through other experts.",
    expected="Written after the runs of docs/moe.md, whose rows these are: holds, or cannot be told.",
    experiments=tuple(run(name, rate) for rate in RATES for base in RUNS for name in (base, f"{base}-r2")),
    quantities=tuple(
        Quantity(f"{what}, {base.upper()} {words}, learning rate {rate:g}", run(base + replay, rate).name, key)
        for what, key in (("held-out pass rate at the end", "heldout_end"), ("best held-out pass rate", "heldout_best"))
        for rate in RATES
        for base in RUNS
        for replay, words in (("", "without replay"), ("-r2", "with replay"))
    ),
    judge=judge,
)
