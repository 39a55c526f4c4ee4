"""Trust regions: how far a ratio may carry the policy. Each gives its surrogate and the share of gradient it passes."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from groupwise.algorithms.parts import Part, require_within
from groupwise.algorithms.parts.ratio import Ratio, bounded
from groupwise.core.masked import keep, row_mean


class Surrogate(NamedTuple):
    """value [N,T] is maximised; share [N,T] is the part of the gradient r A that passes, 0 to 1: 0 where the region
    stops it or turns it round, 1 where it leaves it alone or makes it larger."""

    value: Tensor
    share: Tensor


class Trust(Part, Protocol):
    """(log_ratio [N,T], advantage [N,T], logp_live [N,T], mask [N,T]) -> Surrogate.

    per_completion  whether a token's surrogate is one number of its completion, gradient included
    reads_tokens    whether it reads the probability of the token itself, which a ratio of several tokens would hide
    sampler_top     how many of the sampler's most likely ids it reads at each token; with any, its log-ratio is to the
                    sampler, and `centre` is subtracted from the log-likelihood (parts/off_policy.py: Centered)
    """

    per_completion: bool = False
    reads_tokens: bool = False
    sampler_top: int = 0

    def __call__(self, log_ratio: Tensor, advantage: Tensor, logp_live: Tensor, mask: Tensor) -> Surrogate: ...

    def centre(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        """Compute what is subtracted from a token's log-likelihood; 0 of all but a part that reads distributions."""
        return torch.zeros_like(log_p[..., 0])


@dataclass(frozen=True)
class NoTrust(Trust):
    """value = r A: no trust region; every token passes whole."""

    equation = "S = r A"

    def __call__(self, log_ratio: Tensor, advantage: Tensor, logp_live: Tensor, mask: Tensor) -> Surrogate:
        value = _ratio(log_ratio, mask) * keep(advantage, mask)
        return Surrogate(value, mask.to(value.dtype))


@dataclass(frozen=True)
class Clip(Trust):
    """value = min(r A, clip(r, 1 - epsilon_low, 1 + epsilon_high) A), and at least dual_clip A where A < 0.

    The gradient is A r where the token is not clipped and 0 where it is: A > 0 and r > 1 + epsilon_high, A < 0 and
    r < 1 - epsilon_low, or, with a dual clip, A < 0 and r > dual_clip (0 turns the dual clip off).
    epsilon_low   how far the ratio may fall below 1 before a worse token's gradient stops; at least 0, below 1
    epsilon_high  how far it may rise above 1 before a better token's gradient stops; at least 0
    dual_clip     the ratio from which a worse token's gradient stops; above 1, or 0 for none
    Source: PPO (1707.06347); two epsilons from DAPO (2503.14476) eq 8; dual clip from 1912.09729.

    >>> log_ratio = torch.tensor([[1.24, 1.30]]).log()
    >>> one = torch.ones(1, 2)
    >>> Clip(0.2, 0.28)(log_ratio, one, one, one.bool())
    Surrogate(value=tensor([[1.2400, 1.2800]]), share=tensor([[1., 0.]]))
    """

    epsilon_low: float = 0.2
    epsilon_high: float = 0.2
    dual_clip: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon_low < 1:
            raise ValueError(f"epsilon_low = {self.epsilon_low}: must be at least 0 and below 1")
        if self.epsilon_high < 0:
            raise ValueError(f"epsilon_high = {self.epsilon_high}: must not be negative")
        if self.dual_clip != 0 and self.dual_clip <= 1:
            raise ValueError(f"dual_clip = {self.dual_clip}: must be above 1, or 0 to turn it off")

    @property
    def equation(self) -> str:
        """The clip, and the second one where it is on."""
        lower = ", at least dual_clip A where A < 0" if self.dual_clip else ""
        return f"S = min(r A, clip(r, 1 - epsilon_low, 1 + epsilon_high) A){lower}"

    def __call__(self, log_ratio: Tensor, advantage: Tensor, logp_live: Tensor, mask: Tensor) -> Surrogate:
        ratio, advantage = _ratio(log_ratio, mask), keep(advantage, mask)
        value = torch.minimum(ratio * advantage, ratio.clamp(1 - self.epsilon_low, 1 + self.epsilon_high) * advantage)
        stopped = _beyond(ratio, advantage, 1 - self.epsilon_low, 1 + self.epsilon_high)
        if self.dual_clip:
            too_far = (advantage < 0) & (ratio > self.dual_clip)
            value, stopped = torch.where(too_far, self.dual_clip * advantage, value), stopped | too_far
        return Surrogate(value, (mask & ~stopped).to(value.dtype))


@dataclass(frozen=True)
class Geometric(Trust):
    """value_t = exp(mean_t z_t) A_t, z = log r clipped at -epsilon_low or epsilon_high on the side PPO clips.

    z_t = sgn(A_t) min(sgn(A_t) log r_t, sgn(A_t) clip(log r_t, -epsilon_low, epsilon_high)), token by token, then one
    geometric mean a completion. Without clipping this is the sequence ratio's surrogate: the two differ only in where
    they clip. share is the token's own indicator; a clipped token still weighs in the mean, without gradient.
    epsilon_low, epsilon_high  how far the log-ratio may fall and rise; at least 0, nats
    Source: GMPO (2507.20673).

    >>> log_ratio = torch.tensor([[0.2, 0.6]])
    >>> one = torch.ones(1, 2)
    >>> Geometric(0.4, 0.4)(log_ratio, one, one, one.bool())
    Surrogate(value=tensor([[1.3499, 1.3499]]), share=tensor([[1., 0.]]))
    """

    equation = (
        "S = exp(mean_t m_t) A,  m_t = sgn(A) min(sgn(A) log r_t, sgn(A) clip(log r_t, -epsilon_low, epsilon_high))"
    )

    epsilon_low: float = 0.4
    epsilon_high: float = 0.4
    per_completion = True

    def __post_init__(self) -> None:
        for name in ("epsilon_low", "epsilon_high"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} = {getattr(self, name)}: must not be negative")

    def __call__(self, log_ratio: Tensor, advantage: Tensor, logp_live: Tensor, mask: Tensor) -> Surrogate:
        log_ratio, advantage = bounded(keep(log_ratio, mask)), keep(advantage, mask)
        sign = advantage.sign()
        band = log_ratio.clamp(-self.epsilon_low, self.epsilon_high)
        mean = row_mean(sign * torch.minimum(sign * log_ratio, sign * band), mask)
        stopped = _beyond(log_ratio, advantage, -self.epsilon_low, self.epsilon_high)
        value = keep(mean.exp()[:, None] * advantage, mask)
        return Surrogate(value, (mask & ~stopped).to(value.dtype))


@dataclass(frozen=True)
class SoftGate(Trust):
    """value = 4/tau p A, p = sigmoid(tau (r - 1)), tau by the sign of A; the gradient is A r 4p(1-p).

    share = 4p(1-p), which is 1 at ratio 1 for every tau. There the value is 2/tau A, so losses do not compare with
    those of other trust regions. A zero advantage takes tau_negative.

    tau_positive, tau_negative  how fast the gate closes, by the sign of the advantage; above 0
    Source: SAPO (2511.20347) eq 5 to 8.

    >>> one = torch.ones(1, 2)
    >>> SoftGate()(torch.tensor([[1.0, 3.0]]).log(), one, one, one.bool())
    Surrogate(value=tensor([[2.0000, 3.5232]]), share=tensor([[1.0000, 0.4200]]))
    """

    equation = "S = (4 / tau) sigmoid(tau (r - 1)) A,  tau = tau_positive where A > 0, else tau_negative"

    tau_positive: float = 1.0
    tau_negative: float = 1.05

    def __post_init__(self) -> None:
        for name in ("tau_positive", "tau_negative"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} = {getattr(self, name)}: must be above 0")
        require_within(self, 1e-3, 1e3, "tau_positive", "tau_negative")

    def __call__(self, log_ratio: Tensor, advantage: Tensor, logp_live: Tensor, mask: Tensor) -> Surrogate:
        log_ratio, advantage = bounded(keep(log_ratio, mask)), keep(advantage, mask)
        tau = torch.where(advantage > 0, self.tau_positive, torch.full_like(log_ratio, self.tau_negative))
        gate = torch.sigmoid(tau * torch.expm1(log_ratio))
        return Surrogate(4 / tau * gate * advantage, keep(4 * gate * (1 - gate), mask))


@dataclass(frozen=True)
class Cispo(Trust):
    """value = sg[min(r, c)] A logp_live: every token keeps a gradient, its coefficient is capped above at c.

    c = cap, an absolute ratio, or 1 + epsilon_high if cap is 0: implementations mean either by the same word, so
    exactly one of the two is set. share = min(1, c/r). There is no lower bound.

    cap           the largest ratio; at least 1, or 0 if epsilon_high is set
    epsilon_high  the same counted from 1; at least 0
    Source: MiniMax-M1 (2506.13585) eq 4, which does not give c; the cap of 5.0 is ScaleRL's.

    >>> one = torch.ones(1, 2)
    >>> Cispo(cap=5.0)(torch.tensor([[1.0, 10.0]]).log(), one, -one, one.bool())
    Surrogate(value=tensor([[-1., -5.]]), share=tensor([[1.0000, 0.5000]]))
    """

    equation = "S = sg[min(r, cap)] A log pi_live,  cap an absolute ratio, or 1 + epsilon_high"

    cap: float = 5.0
    epsilon_high: float = 0.0

    def __post_init__(self) -> None:
        if bool(self.cap) == bool(self.epsilon_high):
            raise ValueError(
                f"cap = {self.cap} and epsilon_high = {self.epsilon_high}: set one of them, the other to 0 "
                "(cap is an absolute ratio, epsilon_high is counted from 1)"
            )
        if self.cap and self.cap < 1:
            raise ValueError(f"cap = {self.cap}: must be at least 1, or 0 to use epsilon_high")
        if self.epsilon_high < 0:
            raise ValueError(f"epsilon_high = {self.epsilon_high}: must not be negative")

    def __call__(self, log_ratio: Tensor, advantage: Tensor, logp_live: Tensor, mask: Tensor) -> Surrogate:
        ceiling = self.cap or 1 + self.epsilon_high
        ratio = bounded(keep(log_ratio, mask)).exp().detach()
        value = ratio.clamp(max=ceiling) * keep(advantage, mask) * keep(logp_live, mask)
        return Surrogate(value, keep((ceiling / ratio).clamp(max=1.0), mask))


def require_turns_apart(advantage: Part, ratio: Ratio, trust: Trust) -> None:
    """Raise ValueError if all tokens share a gradient: it would give each turn the mean of the turns' advantages."""
    if ratio.per_completion or trust.per_completion:
        shared = f"ratio.level ({ratio})" if ratio.per_completion else f"trust.kind ({trust})"
        raise ValueError(
            f"advantage.kind ({advantage}) gives each turn an advantage of its own, but {shared} is one "
            'number per completion, gradient included, and would mix them; take ratio.level = "turn" or '
            '"token", with a trust region per token'
        )


def _ratio(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """r [N,T], finite whatever the log-ratio; 1 where masked."""
    return bounded(keep(log_ratio, mask)).exp()


def _beyond(x: Tensor, advantage: Tensor, low: float, high: float) -> Tensor:
    """[N,T] bool: x has left the band on the side to which its advantage pushes it."""
    return ((advantage > 0) & (x > high)) | ((advantage < 0) & (x < low))
