"""Activation checkpointing: a layer keeps its input alone, and is run again in the backward pass.

transformers' own switch works in training mode only, where dropout would be on; this one works in either mode.
"""

from contextlib import AbstractContextManager
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from groupwise.core.errors import UsageError
from groupwise.models.forward.forwards import replaced


def recomputed(backbone: nn.Module) -> AbstractContextManager[None]:
    """Run a forward of `backbone`, and its backward, inside: what its layers compute is not kept between the two.

    Raises UsageError where the model has no layers that can be run again.
    """
    layers = [module for module in backbone.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise UsageError(
            f"learner.recompute: {type(backbone).__name__} has no layers that can be run again; set it to false"
        )
    return replaced((layer, partial(checkpoint, layer.forward, use_reentrant=False)) for layer in layers)
