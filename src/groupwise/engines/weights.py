"""Weights by name into a model, whole or not at all.

An engine has its own copy of the policy, in the run's process too: updates reach the sampler only through
`load_weights`, with a version, so the probe after each load compares two things.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from groupwise.core.errors import RunError, listed

Shapes = Mapping[str, tuple[int, ...]]


def shapes_of(tensors: Mapping[str, Tensor]) -> Shapes:
    """Return the shape of each."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def require_whole(given: Shapes, parameters: Shapes, buffers: Shapes, keeps: int) -> None:
    """Raise RunError, with the version that the model keeps, unless every parameter is given, and nothing else but
    buffers, each in its shape.
    """
    own = {**parameters, **buffers}
    problems = {
        "missing": [name for name in parameters if name not in given],
        "unexpected": [name for name in given if name not in own],
        "of another shape": [
            f"{name} {shape} for {own[name]}" for name, shape in given.items() if name in own and shape != own[name]
        ],
    }
    if any(problems.values()):
        words = "; ".join(f"{kind}: {listed(names, most=3)}" for kind, names in problems.items() if names)
        raise RunError(f"these weights are not of the engine's model, which keeps version {keeps}: {words}")


def broken(version: int) -> RunError:
    """Make the error of logits that are not finite under the weights of a version."""
    return RunError(
        f"the model's logits are NaN or infinite (weights version {version}): the weights are broken; go back to an "
        "earlier checkpoint, and lower the learning rate if it happens again"
    )


def copy_weights(model: nn.Module, given: Mapping[str, Tensor], keeps: int) -> None:
    """Replaces every parameter, and buffers where named.

    keeps  the version that the model has where a name or a shape does not match
    Raises RunError then, and nothing is changed.
    """
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    require_whole(shapes_of(given), shapes_of(parameters), shapes_of(buffers), keeps)
    own = parameters | buffers
    with torch.no_grad():
        for name, tensor in given.items():
            own[name].copy_(tensor)
