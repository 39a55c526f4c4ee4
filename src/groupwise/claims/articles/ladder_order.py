"""Claim: of DAPO's techniques dynamic sampling brings most, and the token mean least."""

from groupwise.claims.articles.ablation_ladder import RUNGS
from groupwise.claims.chain_runs import LADDER
from groupwise.claims.claim import Claim, Quantity
from groupwise.claims.measurements import Measurements
from groupwise.claims.verdict import Verdict, above

BEFORE, TOKENS, DAPO = LADDER[-3:]
RATE = "heldout_mean"


def judge(measured: Measurements) -> Verdict:
    """Dynamic sampling gains more than the token mean, in the held-out pass rate, mean over evaluations."""
    before, tokens, dapo = (measured.numbers(run.name, RATE) for run in (BEFORE, TOKENS, DAPO))
    seeds = before.keys() & tokens.keys() & dapo.keys()
    more = {seed: (dapo[seed] - tokens[seed]) - (tokens[seed] - before[seed]) for seed in seeds}
    return above(measured.interval_of(more), 0.0, "dynamic sampling gains more than the token mean by")


CLAIM = Claim(
    name="ladder-order",
    title="Of DAPO's techniques dynamic sampling brings most (+8), and the token mean least (+1).",
    source="S1 (the bottleneck), S0, S3; DAPO 2503.14476 table 1; verl's rerun has +2 and +6",
    argument="Both are the last rungs of one ladder of single runs, and the rerun of another group turns them around.",
    expected="Dynamic sampling gains more here, for it is paid for with more generation.",
    experiments=(BEFORE, TOKENS, DAPO),
    quantities=tuple(
        Quantity(f"held-out pass rate, mean over evaluations, {words}", run.name, RATE)
        for words, run in list(RUNGS.items())[-3:]
    ),
    judge=judge,
)
