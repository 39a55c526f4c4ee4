"""Claim: dynamic sampling is better at equal generation too."""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from groupwise.claims.articles.dynamic_sampling import RUNS
from groupwise.claims.chain_runs import DYNAMIC_SAMPLING, GRPO
from groupwise.claims.claim import Claim, Quantity
from groupwise.claims.measurements import Measurements, Row
from groupwise.claims.verdict import Verdict, above


def spent(row: Row) -> tuple[Sequence[float], Sequence[float]]:
    """Of each evaluation: tokens that were generated before it, and its pass rate."""
    totals = [0.0, *accumulate(row.measured["curves"]["generated_tokens"])]
    steps, rates = zip(*row.measured["heldout"], strict=True)
    return [totals[step] for step in steps], rates


def rate_after(tokens: float, row: Row) -> float:
    """The held-out pass rate after so many generated tokens, between two evaluations on the line."""
    return float(np.interp(tokens, *spent(row)))


def judge(measured: Measurements) -> Verdict:
    """After as many tokens as the shorter of both runs generated, the pass rate is higher with it."""
    plain, dynamic = measured.of(GRPO.name), measured.of(DYNAMIC_SAMPLING.name)
    gains: dict[object, float] = {}
    for seed in plain.keys() & dynamic.keys():
        tokens = min(spent(plain[seed])[0][-1], spent(dynamic[seed])[0][-1])
        gains[seed] = rate_after(tokens, dynamic[seed]) - rate_after(tokens, plain[seed])
    return above(measured.interval_of(gains), 0.0, "held-out pass rate higher by")


CLAIM = Claim(
    name="equal-generation",
    title="Dynamic sampling makes training more efficient: after as much generation the score is higher.",
    source="S3 (raises the efficiency of the rollout); DAPO 2503.14476 section 3.2 (generation is not the bottleneck)",
    argument="What is dropped was generated as well, so that a step costs 1/(1 - silent) times the generation. It pays "
    "only where an update on a full batch is worth more than that.",
    expected="Cannot be told, or does not hold.",
    experiments=tuple(RUNS.values()),
    quantities=tuple(
        Quantity(f"{what}, {words}", run.name, name)
        for what, name in (("tokens generated", "generated_tokens"), ("rounds of generation a step", "rounds.mean"))
        for words, run in RUNS.items()
    ),
    judge=judge,
)
