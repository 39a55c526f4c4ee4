"""Score centering by its definition, for a second reading of a loss. p is the live policy, q the sampler."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from groupwise.algorithms.parts.off_policy import Centered, CenteredMIS, CenteredTIS

#: By kind: what a token of log-ratio log(p / q) weighs.
CENTRES: Mapping[type, Callable[[Any, Tensor], Tensor]] = {
    Centered: lambda part, z: torch.ones_like(z),
    CenteredTIS: lambda part, z: torch.minimum(z.exp(), torch.full_like(z, part.cap)),
    CenteredMIS: lambda part, z: torch.where((z.exp() < part.floor) | (z.exp() > part.cap), 0.0, z.exp()),
}


def centered(part: Any, z: Tensor, a: Tensor, live: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Give sg[f(p / q)] A log p, and which part of p / q that is."""
    weight = CENTRES[type(part)](part, z.detach())
    return weight * a * live, torch.minimum(weight / z.detach().exp(), torch.ones_like(weight))


def centre_of(part: Any, log_p: Tensor, log_q: Tensor) -> Tensor:
    """Compute the mean over q of f(p / q) log p [...], with the gradient of log p alone; log p, log q [..., ids].

    Beyond these ids q is c p, where p and c p are what is left of 1; there the mean is c f(1 / c) times that of p,
    whose gradient is the opposite of these ids'.
    """
    weigh = CENTRES.get(type(part))
    if weigh is None:
        return part.centre(log_p, log_q)
    p, q = log_p.detach().exp(), log_q.exp()
    left_p, left_q = ((1 - x.sum(-1, keepdim=True)).clamp(min=1e-6) for x in (p, q))
    c, far = left_q / left_p, (log_p.detach() - log_q).clamp(-60, 60)
    inside = q * weigh(part, far) - c * weigh(part, -c.log()) * p
    return torch.where(inside == 0, 0.0, inside * log_p).sum(-1)
