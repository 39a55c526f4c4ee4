"""Activation checkpointing: a layer keeps its input alone, and is run again in the backward pass.

transformers' own switch works in training mode only, where dropout would be on; this one works in either mode.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from groupwise.core.errors import UsageError


@contextmanager
def recomputed(backbone: nn.Module) -> Iterator[None]:
    """Run a forward of `backbone`, and its backward, inside: what its layers compute is not kept between the two.

    Raises UsageError where the model has no layers that can be run again.
    """
    layers = [module for module in backbone.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise UsageError(
            f"learner.recompute: {type(backbone).__name__} has no layers that can be run again; set it to false"
        )
    with ExitStack() as stack:
        for layer in layers:
            stack.callback(_restore, layer, vars(layer).get("forward"))
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
        yield


def _restore(layer: Any, own_forward: object) -> None:
    """Take the replaced forward away again; one that the layer had of its own comes back."""
    if own_forward is None:
        del layer.forward
    else:
        layer.forward = own_forward
