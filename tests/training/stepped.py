"""The gradients that an optimizer steps with: they are freed when it has."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def stepped_with(adamw: torch.optim.Optimizer, model: nn.Module) -> list[dict[str, Tensor]]:
    """A list that each step will add its gradients to, by the parameters' names."""
    seen: list[dict[str, Tensor]] = []

    def keep(*_: object) -> None:
        seen.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})

    adamw.register_step_pre_hook(keep)
    return seen


def norm_of(gradients: dict[str, Tensor]) -> float:
    """Of all of them together."""
    return float(torch.cat([gradient.flatten() for gradient in gradients.values()]).norm())
