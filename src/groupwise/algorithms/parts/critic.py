"""The critic's side: the loss its values are trained with, and how much of the returns they explain."""

import torch
from torch import Tensor

from groupwise.core.masked import keep


def value_loss(value: Tensor, value_old: Tensor, returns: Tensor, mask: Tensor, clip: float) -> Tensor:
    """0.5 max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2) per token, 0 where masked. [N,T] -> [N,T].

    value, value_old, returns  reward units; value_old is from before the first update on the batch
    clip                       c, reward units: a value that has moved further than c towards its return gets no more
                               gradient; 0 turns it off
    The gradient in `value` is V - R, or 0 where the clipped term is the larger one. Raises ValueError for clip < 0.
    Source: 2005.12729, section 3; PPO's paper (1707.06347) does not have it, its code does.

    >>> value, old, returns = torch.tensor([[0.5, 0.5]]), torch.zeros(1, 2), torch.tensor([[1.0, 0.0]])
    >>> value_loss(value, old, returns, torch.ones(1, 2, dtype=torch.bool), clip=0.2)
    tensor([[0.3200, 0.1250]])
    """
    if clip < 0:
        raise ValueError(f"clip = {clip}: must be at least 0; 0 turns the value clip off")
    value, old, returns = keep(value, mask), keep(value_old, mask), keep(returns, mask)
    plain = (value - returns).square()
    if clip:
        bound = (value.clamp(old - clip, old + clip) - returns).square()
        plain = torch.where(plain >= bound, plain, bound)  # inside the band both are equal: one gradient, not a mixture
    return keep(0.5 * plain, mask)


def explained_variance(value: Tensor, returns: Tensor, mask: Tensor) -> float:
    """1 - Var(R - V) / Var(R) over the trained tokens: 1 is a perfect critic, 0 no better than a constant. [N,T].

    Negative if the critic is worse than a constant; 0 if the returns do not vary, so that nothing is explained.

    >>> returns = torch.tensor([[0.0, 1.0]])
    >>> explained_variance(0.5 * returns, returns, torch.ones(1, 2, dtype=torch.bool))
    0.75
    """
    v, r = value[mask].double(), returns[mask].double()
    if not len(r) or bool(r.max() == r.min()):
        return 0.0
    return float(1 - (r - v).var(correction=0) / r.var(correction=0))
