"""Random batches in float64 for the laws: lengths, masks with holes, group sizes, log-ratios drawn anew per seed."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Draw:
    """Columns of a random optimizer batch, float64: [N,T] unless said otherwise.

    advantage  [N]
    group      [N]
    """

    live: Tensor
    old: Tensor
    ref: Tensor
    mask: Tensor
    advantage: Tensor
    group: Tensor


def draw(seed: int, spread: float = 0.5) -> Draw:
    """Draw a batch with unequal lengths, holes in the masks (tool tokens), one row without any trained token."""
    g = torch.Generator().manual_seed(seed)
    groups, size, width = 4, int(torch.randint(2, 6, (1,), generator=g)), 12
    n = groups * size
    lengths = torch.randint(1, width + 1, (n, 1), generator=g)
    mask = (torch.arange(width) < lengths) & (torch.rand(n, width, generator=g) < 0.8)
    mask[0] = False
    old = -torch.rand(n, width, generator=g, dtype=torch.float64) * 3
    live = old + spread * torch.randn(n, width, generator=g, dtype=torch.float64)
    ref = old + 0.3 * torch.randn(n, width, generator=g, dtype=torch.float64)
    advantage = torch.randn(n, generator=g, dtype=torch.float64)
    order = torch.randperm(n, generator=g)
    return Draw(live, old, ref, mask, advantage, torch.arange(n)[order] % groups)


def like(draw: Draw, seed: int, scale: float = 1.0) -> Tensor:
    """Random numbers [N,T] beside a batch."""
    g = torch.Generator().manual_seed(seed)
    return scale * torch.randn(draw.mask.shape, generator=g, dtype=torch.float64)
