"""Claim: GSPO's s_i is a ratio of perplexities, and an unbiased importance weight."""

from pathlib import Path

import torch

from groupwise.algorithms.settings import algorithm
from groupwise.claims.claim import Claim, Effort, Experiment, Quantity
from groupwise.claims.measurements import Measurements
from groupwise.claims.toys import Markov, sequences
from groupwise.claims.verdict import Verdict, agree, below, every

NAME = "perplexity-ratio"
VOCABULARY, LENGTH = 3, 6


def measure(seed: int, work: Path) -> dict[str, float]:
    """Two policies nearby, every sequence: s_i against perplexities, and E_old[weight * reward] against E_new[reward]."""
    tokens = sequences(VOCABULARY, LENGTH)
    old = Markov.drawn(2 * seed, VOCABULARY)
    new = old.moved(2 * seed + 1, size=0.5)
    live, before = new.logprobs(tokens), old.logprobs(tokens)
    mask = torch.ones_like(live, dtype=torch.bool)
    advantage = torch.ones(len(tokens), dtype=live.dtype)
    s = algorithm("gspo").loss(live, before, advantage, mask).log_ratio[:, 0].exp()
    perplexity = [torch.exp(-logp.mean(1)) for logp in (before, live)]
    chance, reward = before.sum(1).exp(), (tokens == 0).double().mean(1)
    truth = float((live.sum(1).exp() * reward).sum())
    product = (live - before).sum(1).exp()
    return {
        "perplexity_error": float((s - perplexity[0] / perplexity[1]).abs().max()),
        "bias_of_s": abs(float((chance * s * reward).sum()) - truth),
        "bias_of_product": abs(float((chance * product * reward).sum()) - truth),
        "mean_of_s": float((chance * s).sum()),
        "effect": abs(truth - float((chance * reward).sum())),
    }


def judge(measured: Measurements) -> Verdict:
    """Both parts: the identity to rounding, and a mean under the old policy that is 1 within a hundredth."""
    worst = max(measured.values(NAME, "perplexity_error").values())
    off = {seed: abs(mean - 1) for seed, mean in measured.values(NAME, "mean_of_s").items()}
    identity = agree(worst, 0.0, 1e-12, "s_i and PPL_old / PPL_new")
    return every([identity, below(measured.interval_of(off), 0.01, "E_old[s] is off 1 by")])


CLAIM = Claim(
    name=NAME,
    title="GSPO's sequence ratio s_i is the old perplexity over the new one, and stays an unbiased importance weight.",
    source="S0 (the exponent keeps it unbiased), S3 (perplexities); GSPO 2507.18071 eq 7",
    argument="s_i = exp(mean_t log r_t), and a perplexity is exp(-mean_t log p): the first half is an identity. An "
    "unbiased weight is the product of the ratios, s_i to the power of the length; any other power has another mean.",
    expected="The identity holds to rounding; s_i is biased, so the claim as a whole does not hold.",
    experiments=(Experiment(NAME, measure, "1", {Effort.QUICK: 10}),),
    quantities=(
        Quantity("largest difference of s_i and PPL_old / PPL_new", NAME, "perplexity_error"),
        Quantity("what a weight has to correct: E_new[reward] - E_old[reward]", NAME, "effect"),
        Quantity("bias of E_old[s reward]", NAME, "bias_of_s"),
        Quantity("bias of E_old[product of ratios x reward]", NAME, "bias_of_product"),
        Quantity("E_old[s], which is 1 of an unbiased weight", NAME, "mean_of_s"),
    ),
    judge=judge,
)
