"""Estimators of KL(live || ref) from sampled tokens, divergences of whole distributions, and where the penalty is put.
x = logp_ref - logp_live below.

`value` says whose expectation is right for samples of the live policy; `gradient` what differentiating the estimator
gives there, on policy. Off policy a ratio is needed in front for either to hold, which only k3-ratio has. A divergence
is exact at each prefix, value and gradient, whoever sampled the token.
"""

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from groupwise.algorithms.calls import call
from groupwise.algorithms.parts import Part, require_within
from groupwise.algorithms.parts.ratio import bounded


class Estimator(Part, Protocol):
    """(logp_live, logp_ref, token_log_ratio), each [N,T] nats -> kl [N,T] nats."""

    def __call__(self, logp_live: Tensor, logp_ref: Tensor, token_log_ratio: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class K1(Estimator):
    """k1 = -x. value: unbiased, can be negative. gradient: 0 in expectation, so it is useless inside a loss."""

    equation = "KL = -x,  x = log pi_ref - log pi_live"

    def __call__(self, logp_live: Tensor, logp_ref: Tensor, token_log_ratio: Tensor) -> Tensor:
        return bounded(logp_live - logp_ref)


@dataclass(frozen=True)
class K2(Estimator):
    """k2 = x^2 / 2. value: biased, never negative. gradient: the gradient of KL(live || ref), on policy."""

    equation = "KL = x^2 / 2,  x = log pi_ref - log pi_live"

    def __call__(self, logp_live: Tensor, logp_ref: Tensor, token_log_ratio: Tensor) -> Tensor:
        return bounded(logp_live - logp_ref) ** 2 / 2


@dataclass(frozen=True)
class K3(Estimator):
    """k3 = exp(x) - x - 1. value: unbiased, never negative. gradient: that of KL(ref || live), on policy.

    Source: DeepSeekMath (2402.03300) eq 4.
    """

    equation = "KL = exp(x) - x - 1,  x = log pi_ref - log pi_live"

    def __call__(self, logp_live: Tensor, logp_ref: Tensor, token_log_ratio: Tensor) -> Tensor:
        x = bounded(logp_ref - logp_live)
        return x.exp() - x - 1


@dataclass(frozen=True)
class K3Ratio(Estimator):
    """r k3, r = pi_live / pi_old token by token: value and gradient are KL(live || ref)'s, off policy too.

    Source: DeepSeek-V3.2's unbiased estimate.
    """

    equation = "KL = r_t (exp(x) - x - 1),  x = log pi_ref - log pi_live"

    def __call__(self, logp_live: Tensor, logp_ref: Tensor, token_log_ratio: Tensor) -> Tensor:
        return token_log_ratio.exp() * K3()(logp_live, logp_ref, token_log_ratio)


class Divergence(Part, Protocol):
    """(log p, log q), [..., ids] nats each of the live policy and the reference -> divergence [...] nats.

    k  how many of the reference's most likely ids are read; 0: the whole vocabulary
    """

    k: int

    def __call__(self, log_p: Tensor, log_q: Tensor) -> Tensor: ...


#: The least probability that a tail is taken to have: float32's sum of K probabilities is not nearer to 1.
TAIL = 1e-6


def jensen_shannon(log_p: Tensor, log_q: Tensor, mixture: float) -> Tensor:
    """Compute the generalised Jensen-Shannon divergence of p from q, [..., ids] nats each -> [...] nats.

        b KL(q || m) + (1 - b) KL(p || m),  m = b q + (1 - b) p,  b = mixture

    At b = 1 and 0, where that is 0, it is the reverse KL(p || q) and the forward KL(q || p). Source: GKD (2306.13649)
    eq 1, with both ends as TRL has them.
    """
    if mixture in (0, 1):
        log_of, log_to = (log_p, log_q) if mixture else (log_q, log_p)
        return (log_of.exp() * (log_of - log_to)).sum(-1)
    log_m = torch.logaddexp(log_q + math.log(mixture), log_p + math.log1p(-mixture))
    return (mixture * log_q.exp() * (log_q - log_m) + (1 - mixture) * log_p.exp() * (log_p - log_m)).sum(-1)


@dataclass(frozen=True)
class Full(Divergence):
    """Generalised Jensen-Shannon divergence over the whole vocabulary, made in the chunks of the head.

    mixture  weight of the reference in m: 1 is the reverse KL(live || ref), 0 the forward KL(ref || live), as in TRL
    """

    equation = "KL = b KL(pi_ref || m) + (1 - b) KL(pi_live || m),  m = b pi_ref + (1 - b) pi_live,  b = mixture"
    k = 0
    mixture: float = 1.0

    def __post_init__(self) -> None:
        require_within(self, 0, 1, "mixture")

    def __call__(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        return jensen_shannon(log_p, log_q, self.mixture)


@dataclass(frozen=True)
class TopK(Divergence):
    """Divergence over the reference's k most likely ids, as `full` over all.

    k        ids of the reference's distribution that are kept, at each token; all, if it has fewer
    mixture  weight of the reference in m: 1 is the reverse KL(live || ref), 0 the forward KL(ref || live)
    tail     the mass outside is one more id, at least 1e-6 of it; false: both are renormalised over the k ids
    """

    equation = f"{Full.equation}, over the k likeliest ids of pi_ref and a tail"
    k: int = 64
    mixture: float = 1.0
    tail: bool = True

    def __post_init__(self) -> None:
        require_within(self, 1, 1e6, "k")
        require_within(self, 0, 1, "mixture")

    def __call__(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        log_p, log_q = (_with_tail(x) if self.tail else x.log_softmax(-1) for x in (log_p, log_q))
        return jensen_shannon(log_p, log_q, self.mixture)


def _with_tail(logp: Tensor) -> Tensor:
    """Map [..., K] -> [..., K+1]: with the log-probability of all other ids together."""
    rest = (1 - logp.exp().sum(-1, keepdim=True)).clamp(min=TAIL)
    return torch.cat([logp, rest.log()], dim=-1)


#: Where the penalty acts: inside the loss beside the surrogate, or subtracted from the reward of each token.
Place = Literal["loss", "reward"]
#: Kinds of divergences, which the head makes.
DIVERGENCES = (Full, TopK)
#: The policy that the penalty holds the live one to: the reference model, or the one that sampled.
Against = Literal["reference", "old"]


@dataclass(frozen=True)
class KL(Part):
    """beta times an estimator, in the loss or in the reward.

    beta       weight of the penalty, at least 0; 0 needs no reference
    estimator  k1, k2, k3 or k3-ratio, of the sampled token; full or top-k: a divergence of whole distributions
    place      "loss" or "reward"
    against    "reference", or "old": pi_old in place of pi_ref, which needs no reference model; in the loss only
    """

    beta: float = 0.0
    estimator: Estimator | Divergence = K3()
    place: Place = "loss"
    against: Against = "reference"

    def __post_init__(self) -> None:
        if self.beta < 0:
            raise ValueError(f"beta = {self.beta}: must not be negative")
        if self.against == "old" and self.place == "reward":
            raise ValueError('place = "reward": with against = "old" that is 0 everywhere; take place = "loss"')
        if isinstance(self.estimator, DIVERGENCES) and (self.place == "reward" or self.against == "old"):
            wrong, right = ("place", "loss") if self.place == "reward" else ("against", "reference")
            raise ValueError(
                f'{wrong} = "{getattr(self, wrong)}": a divergence of whole distributions ({self.estimator}) is a term '
                f'of the loss, against the reference; take {wrong} = "{right}"'
            )

    @property
    def divergence(self) -> Divergence | None:
        """The divergence of whole distributions that the loss has; None if it has none."""
        return self.estimator if self.in_loss and isinstance(self.estimator, DIVERGENCES) else None

    @property
    def top(self) -> int:
        """The number of the reference's most likely ids that the loss reads of each token."""
        return self.divergence.k if self.divergence is not None else 0

    @property
    def equation(self) -> str:
        """The penalty and where it acts."""
        if not self.beta:
            return "no penalty"
        acts = "" if self.place == "loss" else ";  r_t = r_t - beta KL_t, with pi_old for pi_live"
        equation = self.estimator.equation
        return (equation.replace("pi_ref", "pi_old") if self.against == "old" else equation) + acts

    @property
    def reads_reference(self) -> bool:
        return self.beta > 0 and self.against == "reference"

    @property
    def in_loss(self) -> bool:
        return self.beta > 0 and self.place == "loss"

    @property
    def in_reward(self) -> bool:
        return self.beta > 0 and self.place == "reward"

    def __call__(self, logp_live: Tensor, logp_ref: Tensor, token_log_ratio: Tensor) -> Tensor:
        return call("kl", self.estimator, logp_live, logp_ref, token_log_ratio)
