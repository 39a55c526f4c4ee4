"""Trust regions for samples of an older policy: weights that taper, and completions that are stopped whole."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from groupwise.algorithms.parts import require_within
from groupwise.algorithms.parts.kl import TAIL
from groupwise.algorithms.parts.mismatch import require_band
from groupwise.algorithms.parts.ratio import bounded
from groupwise.algorithms.parts.trust import Clip, Surrogate, Trust
from groupwise.core.masked import keep, row_mean

#: Bounds of VESPO's log weight, nats: below, exp() of it is taken as 1e-8.
LOWEST, HIGHEST = math.log(1e-8), 20.0


@dataclass(frozen=True)
class Tapered(Trust):
    """value = sg[clip(r, low, high)] A log pi_live, with bounds for either sign of A.

    With both bounds 1 the weight is 1: the plain log-likelihood gradient A, as of TOPR's better completions, which no
    ratio makes smaller or larger. A zero advantage takes the bounds of a negative one.

    low_positive, high_positive  least and largest weight where A > 0; at least 0
    low_negative, high_negative  the same where A <= 0
    Source: TOPR (2503.14286) eq 8: 1 for better completions, the ratio from 0 to 1 for worse ones.

    >>> one = torch.ones(1, 2)
    >>> Tapered()(torch.tensor([[0.5, 2.0]]).log(), -one, one, one.bool())
    Surrogate(value=tensor([[-0.5000, -1.0000]]), share=tensor([[1.0000, 0.5000]]))
    """

    equation = "S = sg[clip(r, low, high)] A log pi_live,  low and high by the sign of A"

    low_positive: float = 1.0
    high_positive: float = 1.0
    low_negative: float = 0.0
    high_negative: float = 1.0

    def __post_init__(self) -> None:
        require_within(self, 0, 1e6, "low_positive", "high_positive", "low_negative", "high_negative")
        for sign in ("positive", "negative"):
            low, high = getattr(self, f"low_{sign}"), getattr(self, f"high_{sign}")
            if not low <= 1 <= high:
                raise ValueError(f"low_{sign} = {low}, high_{sign} = {high}: 1 must lie between them")

    def __call__(self, log_ratio: Tensor, advantage: Tensor, logp_live: Tensor, mask: Tensor) -> Surrogate:
        advantage = keep(advantage, mask)
        ratio = bounded(keep(log_ratio, mask)).exp().detach()
        better = ratio.clamp(self.low_positive, self.high_positive)
        weight = torch.where(advantage > 0, better, ratio.clamp(self.low_negative, self.high_negative))
        return _weighted(weight, ratio, advantage, logp_live, mask)


@dataclass(frozen=True)
class GammaWeight(Trust):
    """value = sg[phi(W)] A log pi_live, phi(W) = W^k exp(lambda (1 - W)): the weight of a completion's ratio W, 1 at 1.

    phi rises as W^k from 0, is largest at k / lambda and falls exponentially: neither a completion that the policy left
    nor one that it has much reinforced moves it far. log W is held from log 1e-8 to 20. With ratio.level =
    "sequence-sum" W is the completion's probability ratio, as in the source.

    k_positive, lambda_positive  shape where A >= 0; above 0
    k_negative, lambda_negative  shape where A < 0; above 0
    Source: VESPO, with TRL's constants.

    >>> one = torch.ones(1, 2)
    >>> GammaWeight()(torch.tensor([[1.0, 2.0]]).log(), one, one, one.bool()).value
    tensor([[1.0000, 0.1991]])
    """

    equation = "S = sg[r^k exp(lambda (1 - r))] A log pi_live,  k and lambda by the sign of A"

    k_positive: float = 2.0
    lambda_positive: float = 3.0
    k_negative: float = 3.0
    lambda_negative: float = 2.0

    def __post_init__(self) -> None:
        require_within(self, 1e-3, 1e3, "k_positive", "lambda_positive", "k_negative", "lambda_negative")

    def __call__(self, log_ratio: Tensor, advantage: Tensor, logp_live: Tensor, mask: Tensor) -> Surrogate:
        advantage = keep(advantage, mask)
        far = bounded(keep(log_ratio, mask)).detach()
        log_w = far.clamp(LOWEST, HIGHEST)
        k = torch.where(advantage >= 0, self.k_positive, torch.full_like(log_w, self.k_negative))
        rate = torch.where(advantage >= 0, self.lambda_positive, torch.full_like(log_w, self.lambda_negative))
        weight = (k * log_w - rate * torch.expm1(log_w)).exp()
        return _weighted(weight, far.exp(), advantage, logp_live, mask)


@dataclass(frozen=True)
class OffPolicyMask(Clip):
    """PPO's clip, times M = 0 for a worse token of a completion with mean_t (logp_old - logp_live) > delta, else 1.

    A completion that the policy has left since it was sampled pushes it no further away.

    delta  nats a token that the policy may have moved away, on average; at least 0
    Source: DeepSeek-V3.2 (2512.02556), which gives no delta; 0.5 is from TRL's documentation.

    >>> one = torch.ones(1, 2)
    >>> OffPolicyMask(delta=0.5)(torch.tensor([[-1.0, -0.1]]), -one, one, one.bool()).share
    tensor([[0., 0.]])
    """

    delta: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.delta < 0:
            raise ValueError(f"delta = {self.delta}: must not be negative")

    @property
    def equation(self) -> str:
        """The clip and the mask."""
        return f"S = M {super().equation.removeprefix('S = ')},  M = 0 where A < 0 and mean_t log r_t < -delta, else 1"

    def __call__(self, log_ratio: Tensor, advantage: Tensor, logp_live: Tensor, mask: Tensor) -> Surrogate:
        value, share = super().__call__(log_ratio, advantage, logp_live, mask)
        away = row_mean(keep(log_ratio, mask), mask).detach() < -self.delta
        stopped = away[:, None] & (keep(advantage, mask) < 0)
        return Surrogate(keep(value, ~stopped), keep(share, ~stopped))


@dataclass(frozen=True)
class FutureKL(Clip):
    """PPO's clip, times w_t = clip(exp(f_t), low, high), f_t = sum_(k>=t) gamma^(k-t) log r_k, gamma^half_life = 1/2.

    A token counts more where the policy has since made more likely what follows it. Of worse tokens with r > far the
    weight is held from low_far to 1 instead: they are not pushed harder.

    half_life       trained tokens after which a later token counts half; above 0
    low, high       least and largest weight; low at most 1, high at least 1
    far, low_far    ratio from which a worse token's bounds are low_far and 1
    Source: FIPO, with ms-swift's constants.

    >>> one = torch.ones(1, 2)
    >>> FutureKL(half_life=1.0)(torch.tensor([[0.0, 0.1]]), one, one, one.bool()).value
    tensor([[1.0513, 1.2214]])
    """

    epsilon_high: float = 0.28
    half_life: float = 32.0
    low: float = 1.0
    high: float = 1.2
    far: float = 4.0
    low_far: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        require_within(self, 1e-3, 1e9, "half_life")
        for name in ("low", "low_far"):
            require_within(self, 0, 1, name)
        for name in ("high", "far"):
            require_within(self, 1, 1e6, name)

    @property
    def equation(self) -> str:
        """The clip and the weight."""
        inner = super().equation.removeprefix("S = ")
        return f"S = w {inner},  w = clip(exp(sum_(k>=t) 2^(-(k-t)/half_life) log r_k), low, high)"

    def __call__(self, log_ratio: Tensor, advantage: Tensor, logp_live: Tensor, mask: Tensor) -> Surrogate:
        value, share = super().__call__(log_ratio, advantage, logp_live, mask)
        ahead = bounded(keep(log_ratio, mask)).detach()
        future = bounded(_to_go(ahead, mask, 2 ** (-1 / self.half_life))).exp()
        worse = (ahead.exp() > self.far) & (keep(advantage, mask) < 0)
        weight = torch.where(worse, future.clamp(self.low_far, 1.0), future.clamp(self.low, self.high))
        return Surrogate(keep(weight * value, mask), (weight * share).clamp(max=1.0))


@dataclass(frozen=True)
class Centered(Trust):
    """value = A (log pi_live - C), whose gradient has the mean 0 over the sampler where A is one number.

        C = sum_(v in H) sg[q_v f(p_v / q_v) - alpha p_v] log p_v,  alpha = rho f(1 / rho),  f = 1
        rho = (1 - sum_H q) / (1 - sum_H p),  each at least 1e-6

    p is the live policy, q what the token was drawn from, H the k most likely ids of q; beyond them q is taken to be
    rho p. Under that q the expected gradient of f(p_y / q_y) log p_y is that of C: without C each token pulls p
    towards q by E[A], a drift that says nothing of rewards and that the next sampler begins with.

    k  the sampler's most likely ids at each token; all, if it has fewer
    Source: score centering (2609.20807) eq 9 to 14, with the source's k.

    >>> p, q = torch.tensor([[0.6, 0.3]]).log(), torch.tensor([[0.5, 0.3]]).log()
    >>> Centered(k=2).centre(p, q)  # (0.5 - 2 0.6) log 0.6 + (0.3 - 2 0.3) log 0.3
    tensor([0.7188])
    """

    equation = "S = A (log pi_live - C),  C = sum_H sg[q - rho p] log p over the k likeliest ids of the sampler's q"

    k: int = 128
    reads_tokens = True

    def __post_init__(self) -> None:
        require_within(self, 1, 1e6, "k")

    @property
    def sampler_top(self) -> int:  # type: ignore[override]
        """The number of the sampler's most likely ids that are read."""
        return self.k

    def weight(self, log_ratio: Tensor) -> Tensor:
        """Weigh a token by its log-ratio to the sampler: f(p / q)."""
        return torch.ones_like(log_ratio)

    def centre(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        """Compute C [...] of log p and log q [...,K], nats."""
        with torch.no_grad():
            p, q = log_p.exp(), log_q.to(log_p.dtype).exp()
            rho = _tail(q) / _tail(p)
            far, alpha = bounded(log_p - log_q), rho * self.weight(-rho.log())
            coefficient = q * self.weight(far) - alpha * p
        return (coefficient * log_p).sum(-1)

    def __call__(self, log_ratio: Tensor, advantage: Tensor, logp_live: Tensor, mask: Tensor) -> Surrogate:
        far = bounded(keep(log_ratio, mask)).detach()
        return _weighted(self.weight(far), far.exp(), keep(advantage, mask), logp_live, mask)


@dataclass(frozen=True)
class CenteredTIS(Centered):
    """Score centering of truncated importance sampling: f(r) = min(r, cap), r = p / q.

    cap  the largest weight; above 0
    """

    equation = "S = A (sg[min(w, cap)] log pi_live - C),  w = pi_live / pi_engine, C its mean over the sampler"

    cap: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_band(0.0, self.cap)

    def weight(self, log_ratio: Tensor) -> Tensor:
        return log_ratio.exp().clamp(max=self.cap)


@dataclass(frozen=True)
class CenteredMIS(CenteredTIS):
    """Score centering of masked importance sampling: f(r) = r where floor <= r <= cap, else 0.

    floor  the smallest ratio that counts; from 0 to cap
    """

    equation = "S = A (sg[m w] log pi_live - C),  w = pi_live / pi_engine, m = 1 where floor <= w <= cap, else 0"

    floor: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        require_band(self.floor, self.cap)

    def weight(self, log_ratio: Tensor) -> Tensor:
        ratio = log_ratio.exp()
        return torch.where((ratio >= self.floor) & (ratio <= self.cap), ratio, 0.0)


def _tail(p: Tensor) -> Tensor:
    """Return the mass [...,1] beyond probabilities [...,K], at least TAIL."""
    return (1 - p.sum(-1, keepdim=True)).clamp(min=TAIL)


def _to_go(x: Tensor, mask: Tensor, gamma: float) -> Tensor:
    """Sum each row's trained tokens from every column to its end, a token later counting gamma less. [N,T] -> [N,T]."""
    out, ahead = torch.zeros_like(x), torch.zeros_like(x[:, 0]) if x.shape[1] else x.sum(1)
    for t in reversed(range(x.shape[1])):
        ahead = torch.where(mask[:, t], x[:, t] + gamma * ahead, ahead)
        out[:, t] = ahead
    return keep(out, mask)


def _weighted(weight: Tensor, ratio: Tensor, advantage: Tensor, logp_live: Tensor, mask: Tensor) -> Surrogate:
    """Weigh the log-likelihood; the share is the weight's part of the ratio, at most 1."""
    value = weight * advantage * keep(logp_live, mask)
    return Surrogate(keep(value, mask), keep((weight / ratio).clamp(max=1.0), mask))
