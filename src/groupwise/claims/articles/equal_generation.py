"""Claim: dynamic sampling is better at equal generation too."""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from groupwise.claims.articles.dynamic_sampling import RUNS
from groupwise.claims.chain_runs import DYNAMIC_SAMPLING, GRPO
from groupwise.claims.claim import Claim, Quantity
from groupwise.claims.measurements import Measurements
from groupwise.claims.verdict import Verdict, above


class Learning(NamedTuple):
    """Of each evaluation of a run: the tokens that were generated before it, and the held-out pass rate."""

    tokens: Sequence[float]
    rates: Sequence[float]

    def after(self, tokens: float) -> float:
        """The pass rate after so many generated tokens, between two evaluations on the line."""
        return float(np.interp(tokens, self.tokens, self.rates))


def learning(measured: Measurements, experiment: str) -> dict[object, Learning]:
    """By seed."""
    heldout, generated = measured.heldout(experiment), measured.curves(experiment, "generated_tokens")
    return {seed: _learning(heldout[seed], generated[seed]) for seed in heldout}


def _learning(heldout: Sequence[tuple[int, float]], generated: Sequence[float | None]) -> Learning:
    totals = [0.0, *accumulate(tokens or 0.0 for tokens in generated)]
    return Learning([totals[step] for step, _ in heldout], [rate for _, rate in heldout])


def judge(measured: Measurements) -> Verdict:
    """After as many tokens as the shorter of both runs generated, the pass rate is higher with it."""
    plain, dynamic = learning(measured, GRPO.name), learning(measured, DYNAMIC_SAMPLING.name)
    gains: dict[object, float] = {}
    for seed in plain.keys() & dynamic.keys():
        tokens = min(plain[seed].tokens[-1], dynamic[seed].tokens[-1])
        gains[seed] = dynamic[seed].after(tokens) - plain[seed].after(tokens)
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
