"""Claim: GSPO's s_i is a ratio of perplexities."""

from pathlib import Path

import torch

from groupwise.algorithms.settings import algorithm
from groupwise.claims.claim import Claim, Quantity
from groupwise.claims.computed import computed
from groupwise.claims.measurements import Measurements
from groupwise.claims.toys import Markov, sequences
from groupwise.claims.verdict import Verdict, agree

NAME = "perplexity-ratio"
VOCABULARY, LENGTHS = 3, (1, 2, 4, 6, 8)
GSPO = algorithm("gspo")


def measure(seed: int, work: Path) -> dict[str, float]:
    """Two policies nearby, every sequence: s_i against perplexities; and as a weight, E_old[s] and E_old[s reward]
    against E_new[reward], beside the product of the ratios, which is the unbiased weight.
    """
    seen: dict[str, float] = {}
    old = Markov.drawn(2 * seed, VOCABULARY)
    new = old.moved(2 * seed + 1, size=0.5)
    for length in LENGTHS:
        tokens = sequences(VOCABULARY, length)
        live, before = new.logprobs(tokens), old.logprobs(tokens)
        advantage = torch.ones(len(tokens), dtype=live.dtype)
        s = GSPO.loss(live, before, advantage, torch.ones_like(live).bool()).log_ratio[:, 0].exp()
        perplexity = [torch.exp(-logp.mean(1)) for logp in (before, live)]
        chance, reward = before.sum(1).exp(), (tokens == 0).double().mean(1)
        product = (live - before).sum(1).exp()
        truth = float((live.sum(1).exp() * reward).sum())
        seen |= {
            f"apart_{length}": float((s - perplexity[0] / perplexity[1]).abs().max()),
            f"effect_{length}": abs(truth - float((chance * reward).sum())),
            f"mean_s_{length}": float((chance * s).sum()),
            f"mean_product_{length}": float((chance * product).sum()),
            f"bias_s_{length}": abs(float((chance * s * reward).sum()) - truth),
            f"bias_product_{length}": abs(float((chance * product * reward).sum()) - truth),
        }
    return seen


EXPERIMENT = computed(NAME, measure, seeds=10)


def judge(measured: Measurements) -> Verdict:
    """Equal for every sequence, to rounding."""
    apart = max(measured.largest(NAME, f"apart_{length}") for length in LENGTHS)
    return agree(apart, 0.0, 1e-12, "s_i and PPL_old / PPL_new")


CLAIM = Claim(
    name=NAME,
    title="GSPO's sequence ratio s_i is the old policy's perplexity over the new one's.",
    source="S3, whose perplexity lacks the logarithm; GSPO 2507.18071 eq 7",
    argument="s_i = exp(mean_t log r_t), and a perplexity is exp(-mean_t log p). S3 adds that the old one should rise "
    "for a good sample: it is a constant of the sample.",
    expected="Holds to rounding.",
    experiments=(EXPERIMENT,),
    quantities=tuple(
        Quantity(f"largest difference of s_i and PPL_old / PPL_new, {length} tokens", NAME, f"apart_{length}")
        for length in LENGTHS
    ),
    judge=judge,
)
