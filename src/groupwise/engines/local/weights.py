"""Weights by name into a model, whole or not at all."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from groupwise.core.errors import RunError, listed


def copy_weights(model: nn.Module, given: Mapping[str, Tensor], keeps: int) -> None:
    """Replaces every parameter, and buffers where named.

    keeps  the version that the model has where a name or a shape does not match
    Raises RunError then, and nothing is changed.
    """
    parameters = dict(model.named_parameters())
    own = parameters | dict(model.named_buffers())
    problems = {
        "missing": [name for name in parameters if name not in given],
        "unexpected": [name for name in given if name not in own],
        "of another shape": [
            f"{name} {tuple(tensor.shape)} for {tuple(own[name].shape)}"
            for name, tensor in given.items()
            if name in own and tensor.shape != own[name].shape
        ],
    }
    if any(problems.values()):
        words = "; ".join(f"{kind}: {listed(names, most=3)}" for kind, names in problems.items() if names)
        raise RunError(f"these weights are not of the engine's model, which keeps version {keeps}: {words}")
    with torch.no_grad():
        for name, tensor in given.items():
            own[name].copy_(tensor)
