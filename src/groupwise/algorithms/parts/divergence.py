"""Trust regions that look at how far a token's probability has moved, not at its ratio.

A ratio of a rare token doubles while its probability hardly changes, and one of a certain token stays near 1 while the
rest of the distribution changes: p and p_old below are the probabilities of the sampled token, p_old = p / r.
"""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from groupwise.algorithms.parts import require_within
from groupwise.algorithms.parts.ratio import bounded
from groupwise.algorithms.parts.trust import Surrogate, Trust
from groupwise.core.masked import keep

#: Added to the probability of all other tokens, so that its logarithm is finite where a token is certain.
OTHERS = 1e-8


class DivergenceMask(Trust):
    """value = M sg[min(r, cap)] A log pi_live: a token that has moved too far in the direction of A has no gradient.

    delta_low   how far a worse token may move before its gradient stops; at least 0
    delta_high  how far a better token may; at least 0
    cap         the largest ratio that weighs a token; at least 1, or 0 for none
    """

    reads_tokens = True
    delta_low: float
    delta_high: float
    cap: float

    def __post_init__(self) -> None:
        for name in ("delta_low", "delta_high"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} = {getattr(self, name)}: must not be negative")
        if self.cap and self.cap < 1:
            raise ValueError(f"cap = {self.cap}: must be at least 1, or 0 for none")

    @abstractmethod
    def moved(self, p: Tensor, old: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities now and before [N,T] -> how far they have moved down, and up [N,T]."""

    def __call__(self, log_ratio: Tensor, advantage: Tensor, logp_live: Tensor, mask: Tensor) -> Surrogate:
        advantage, live = keep(advantage, mask), keep(logp_live, mask)
        p, old = probabilities(log_ratio, logp_live, mask)
        down, up = self.moved(p, old)
        stopped = ((advantage > 0) & (up > self.delta_high)) | ((advantage < 0) & (down > self.delta_low))
        ratio = bounded(keep(log_ratio, mask)).exp().detach()
        weight = ratio.clamp(max=self.cap) if self.cap else ratio
        passes = keep((weight / ratio).clamp(max=1.0), mask & ~stopped)
        return Surrogate(keep(weight * advantage * live, ~stopped), passes)


@dataclass(frozen=True)
class TotalVariation(DivergenceMask):
    """value = M sg[min(r, cap)] A log pi_live, M = 0 where A > 0 and p - p_old > delta_high, or A < 0 and p - p_old <
    -delta_low; |p - p_old| is the total variation of the two policies over {this token, any other}.

    Source: DPPO (2602.04879), the total-variation form.

    >>> live = torch.tensor([[0.5, 0.5, 0.5]]).log()
    >>> one = torch.ones(1, 3)
    >>> TotalVariation(0.15, 0.15, 0.0)(live - torch.tensor([[0.5, 0.4, 0.3]]).log(), one, live, one.bool()).share
    tensor([[1., 1., 0.]])
    """

    equation = "S = M sg[min(r, cap)] A log pi_live,  M = 0 where (p - p_old) sgn(A) > delta_high (A > 0) or delta_low"

    delta_low: float = 0.15
    delta_high: float = 0.15
    cap: float = 20.0

    def moved(self, p: Tensor, old: Tensor) -> tuple[Tensor, Tensor]:
        return old - p, p - old


@dataclass(frozen=True)
class BinaryKL(DivergenceMask):
    """value = M sg[min(r, cap)] A log pi_live, M = 0 where A > 0, p > p_old and D > delta_high, or A < 0, p < p_old and
    D > delta_low; D = KL(old || live) over {this token, any other} = p_old log(p_old / p) + (1 - p_old) log((1 - p_old)
    / (1 - p)).

    Source: DPPO (2602.04879), the KL form.

    >>> live = torch.tensor([[0.5, 0.5, 0.5]]).log()
    >>> one = torch.ones(1, 3)
    >>> BinaryKL(0.05, 0.05, 0.0)(live - torch.tensor([[0.5, 0.4, 0.3]]).log(), one, live, one.bool()).share
    tensor([[1., 1., 0.]])
    """

    equation = "S = M sg[min(r, cap)] A log pi_live,  M = 0 where p moved with A and KL(p_old || p) > delta"

    delta_low: float = 0.05
    delta_high: float = 0.05
    cap: float = 20.0

    def moved(self, p: Tensor, old: Tensor) -> tuple[Tensor, Tensor]:
        tiny = torch.finfo(p.dtype).tiny
        of_token = old * (old.clamp(min=tiny).log() - p.clamp(min=tiny).log())
        of_others = (1 - old) * ((1 - old + OTHERS).log() - (1 - p + OTHERS).log())
        far = of_token + of_others
        return keep(far, p < old), keep(far, p > old)


@dataclass(frozen=True)
class Quadratic(Trust):
    """value = r A - |A| p_old (r - 1)^2 / (2 epsilon): a smooth bound that pulls back beyond epsilon.

    The gradient is r A (1 - sgn(A) (p - p_old) / epsilon): whole where the token has not moved, 0 where its probability
    has moved by epsilon in the direction of A, the opposite beyond.

    epsilon  the move of a probability at which the gradient is 0; above 0
    Source: DRPO (2606.09821).

    >>> live, one = torch.tensor([[0.5, 0.5]]).log(), torch.ones(1, 2)
    >>> Quadratic(epsilon=0.2)(live - torch.tensor([[0.5, 0.4]]).log(), one, live, one.bool()).share
    tensor([[1.0000, 0.5000]])
    """

    equation = "S = r A - |A| p_old (r - 1)^2 / (2 epsilon)"

    epsilon: float = 12.5
    reads_tokens = True

    def __post_init__(self) -> None:
        require_within(self, 1e-6, 1e6, "epsilon")

    def __call__(self, log_ratio: Tensor, advantage: Tensor, logp_live: Tensor, mask: Tensor) -> Surrogate:
        _, old = probabilities(log_ratio, logp_live, mask)
        ratio, advantage = bounded(keep(log_ratio, mask)).exp(), keep(advantage, mask)
        moved = old * (ratio - 1)  # first, since r^2 alone is not finite in float32
        value = ratio * advantage - advantage.abs() * (moved * (ratio - 1)) / (2 * self.epsilon)
        passes = 1 - advantage.sign() * moved.detach() / self.epsilon
        return Surrogate(keep(value, mask), keep(passes.clamp(0.0, 1.0), mask))


def probabilities(log_ratio: Tensor, logp_live: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Compute p and p_old = p / r of each sampled token [N,T], from 0 to 1, without gradient; 1 where masked."""
    live, far = keep(logp_live, mask).detach().clamp(max=0.0), bounded(keep(log_ratio, mask)).detach()
    return live.exp(), (live - far).clamp(max=0.0).exp()
