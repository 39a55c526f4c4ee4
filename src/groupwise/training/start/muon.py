"""Muon: gradient descent along the orthogonalised momentum of each weight matrix."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

#: x -> a x + b x^3 + c x^5 on singular values, steep at 0: after five times all of them are between 0.5 and 1.5.
COEFFICIENTS, TIMES = (3.4445, -4.7750, 2.0315), 5


class Muon(Optimizer):
    """M <- mu M + (1 - mu) G;  W <- W - rate * 0.2 sqrt(max(out, in)) * orthogonalised((1 - mu) G + mu M).

    The factor gives an update the size that AdamW's have (https://arxiv.org/abs/2502.16982). torch's own Muon computes
    in bfloat16, which takes forty times as long on a processor without bfloat16 units; this one in the weights' type.
    """

    def __init__(self, matrices: Iterable[nn.Parameter], lr: float, momentum: float = 0.95) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            for matrix in (p for p in group["params"] if p.grad is not None):
                average = self.state[matrix].setdefault("momentum", torch.zeros_like(matrix))
                average.lerp_(matrix.grad, 1 - group["momentum"])
                direction = orthogonalised(matrix.grad.lerp(average, group["momentum"]))
                matrix.add_(direction, alpha=-group["lr"] * 0.2 * math.sqrt(max(matrix.shape)))


def orthogonalised(matrix: Tensor) -> Tensor:
    """U diag(s) V^T [out, in] -> U diag(s') V^T with every s' near 1, by a Newton-Schulz iteration of matrix products.

    A singular value below a thousandth of the matrix's norm stays smaller; a matrix of zeros stays one.
    Source: https://kellerjordan.github.io/posts/muon/
    """
    a, b, c = COEFFICIENTS
    x = matrix / matrix.norm().clamp(min=1e-7)
    x = x.mT if matrix.shape[0] > matrix.shape[1] else x
    for _ in range(TIMES):
        gram = x @ x.mT
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if matrix.shape[0] > matrix.shape[1] else x
