"""Trust regions without a hard edge: a gate that closes smoothly, and a coefficient that is capped."""

from dataclasses import dataclass

import torch
from torch import Tensor

from groupwise.algorithms.parts.ratio import bounded
from groupwise.algorithms.parts.trust import Surrogate
from groupwise.core.masked import keep


@dataclass(frozen=True)
class SoftGate:
    """value = 4/tau p A, p = sigmoid(tau (r - 1)), tau by the sign of A; the gradient is A r 4p(1-p).

    share = 4p(1-p), which is 1 at ratio 1 for every tau. There the value is 2/tau A, so losses do not compare with
    those of other trust regions. A zero advantage takes tau_negative. Source: SAPO (2511.20347) eq 5 to 8.

    >>> one = torch.ones(1, 2)
    >>> SoftGate()(torch.tensor([[1.0, 3.0]]).log(), one, one, one.bool())
    Surrogate(value=tensor([[2.0000, 3.5232]]), share=tensor([[1.0000, 0.4200]]))
    """

    equation = "S = (4 / tau) sigmoid(tau (r - 1)) A,  tau = tau_positive where A > 0, else tau_negative"

    tau_positive: float = 1.0
    tau_negative: float = 1.05
    per_completion = False

    def __post_init__(self) -> None:
        for name in ("tau_positive", "tau_negative"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} = {getattr(self, name)}: must be above 0")

    def __call__(self, log_ratio: Tensor, advantage: Tensor, logp_live: Tensor, mask: Tensor) -> Surrogate:
        log_ratio, advantage = bounded(keep(log_ratio, mask)), keep(advantage, mask)
        tau = torch.where(advantage > 0, self.tau_positive, torch.full_like(log_ratio, self.tau_negative))
        gate = torch.sigmoid(tau * torch.expm1(log_ratio))
        return Surrogate(4 / tau * gate * advantage, keep(4 * gate * (1 - gate), mask))


@dataclass(frozen=True)
class Cispo:
    """value = sg[min(r, c)] A logp_live: every token keeps a gradient, its coefficient is capped above at c.

    c = cap, an absolute ratio, or 1 + epsilon_high where cap is 0: implementations mean either by the same word, so
    exactly one of the two is set. share = min(1, c/r). There is no lower bound.
    Source: MiniMax-M1 (2506.13585) eq 4, which does not give c; the cap of 5.0 is ScaleRL's.

    >>> one = torch.ones(1, 2)
    >>> Cispo(cap=5.0)(torch.tensor([[1.0, 10.0]]).log(), one, -one, one.bool())
    Surrogate(value=tensor([[-1., -5.]]), share=tensor([[1.0000, 0.5000]]))
    """

    equation = "S = sg[min(r, cap)] A log pi_live,  cap an absolute ratio, or 1 + epsilon_high"

    cap: float = 5.0
    epsilon_high: float = 0.0
    per_completion = False

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
