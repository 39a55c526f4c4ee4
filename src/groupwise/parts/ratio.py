"""Log-ratio between the policy being trained and the policy that is held fixed while training on a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from groupwise.masked import keep

#: Beyond this a log-ratio is clamped and has no gradient: exp(60) is still finite in float32.
LOG_RATIO_LIMIT = 60.0


class Ratio(Protocol):
    """(logp_live [N,T], logp_old [N,T], mask [N,T]) -> log_ratio [N,T]; sequence ratios are broadcast."""

    def __call__(self, logp_live: Tensor, logp_old: Tensor, mask: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class TokenRatio:
    """log r_it = logp_live - logp_old, token by token. Source: PPO (1707.06347), DeepSeekMath (2402.03300) eq 3.

    >>> import torch
    >>> TokenRatio()(torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.5, -2.0]]), torch.tensor([[True, True]]))
    tensor([[0.5000, 0.0000]])
    """

    def __call__(self, logp_live: Tensor, logp_old: Tensor, mask: Tensor) -> Tensor:
        return bounded(keep(logp_live, mask) - keep(logp_old, mask))


def bounded(log_ratio: Tensor) -> Tensor:
    """A log-ratio as it is within the limit, clamped with zero gradient beyond it. Same shape, nats."""
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
