"""Two losses on the routers of a mixture-of-experts model: one evens the experts' load, one keeps router logits small.

Both are sums over tokens, divided by a count of the whole optimizer batch, and the load is a constant of that batch: so
microbatches simply add, and the gradient does not depend on how a batch is cut. A load counted in each microbatch by
itself would make it depend on that: the mean of products is not the product of means.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Balance:
    """The routers' own loss, for one layer; 0 turns a term off.

    L = load * E sum_e f_e P_e + z * mean_t (log sum_e exp x_te)^2

    f_e is the share of the batch's choices that fell on expert e (no gradient), P_e the mean over its tokens of
    softmax(x)_e. An even load gives the first term 1, its least where f follows P (Switch Transformer, 2101.03961, with
    shares of choices in place of shares of tokens); the second is the router z-loss (ST-MoE, 2202.08906).
    P is the softmax of the logits for every router, also for one that weighs its experts by a sigmoid (DeepSeek-V3) and
    adds a bias before it chooses: the loss then pulls on the logits, and knows nothing of the bias or of the groups.
    """

    load: float = 0.0
    z: float = 0.0

    def __call__(self, logits: Tensor, share: Tensor, tokens: int) -> Tensor:
        """logits [M,E] of some of the batch's tokens, share [E] and tokens of the whole batch -> their part of L.

        >>> logits, share = torch.zeros(4, 2), torch.tensor([0.75, 0.25])
        >>> float(Balance(load=1.0)(logits, share, tokens=4))
        1.0
        >>> part = Balance(load=1.0)
        >>> float(part(logits[:1], share, tokens=4) + part(logits[1:], share, tokens=4))
        1.0
        """
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        even = logits.shape[-1] * (wide.softmax(-1) @ share.to(wide.dtype)).sum()
        return (self.load * even + self.z * wide.logsumexp(-1).square().sum()) / tokens

    def mean_over_layers(self, logits: Sequence[Tensor], shares: Sequence[Tensor], tokens: int) -> Tensor:
        """Logits [M,E] and share [E] of each layer -> scalar: the mean over layers of their parts of L."""
        layers = zip(logits, shares, strict=True)
        return torch.stack([self(layer, share.to(layer.device), tokens) for layer, share in layers]).mean()


def load_shares(routes: Tensor, experts: Sequence[int]) -> list[Tensor]:
    """Choices [M,L,K], and the experts of each layer -> per layer [E] float64, the share that fell on each expert.

    >>> load_shares(torch.tensor([[[0, 1]], [[0, 2]]]), [4])
    [tensor([0.5000, 0.2500, 0.2500, 0.0000], dtype=torch.float64)]
    """
    layers = [layer.flatten().long() for layer in routes.unbind(1)]
    counts = [torch.bincount(layer, minlength=count) for layer, count in zip(layers, experts, strict=True)]
    return [count.double() / max(1, len(layer)) for count, layer in zip(counts, layers, strict=True)]
