"""Modules of a model that run by another function for a while, such as layers with activation checkpointing."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from groupwise.core.errors import UsageError


@contextmanager
def replaced(forwards: Iterable[tuple[nn.Module, Callable[..., Any]]]) -> Iterator[None]:
    """Run each module by its function; afterwards it runs as before, by its class's forward or one of its own."""
    pairs = list(forwards)
    own = [vars(module).get("forward") for module, _ in pairs]
    try:
        for module, forward in pairs:
            vars(module)["forward"] = forward
        yield
    finally:
        for (module, _), before in zip(pairs, own, strict=True):
            vars(module).pop("forward")
            if before is not None:
                vars(module)["forward"] = before


def recomputed(backbone: nn.Module) -> AbstractContextManager[None]:
    """Run a forward of `backbone`, and its backward, inside: a layer keeps its input alone, and is run again in the
    backward pass. transformers' own switch does so in training mode only, in which dropout would be on.

    Raises UsageError if the model has no layers that can be run again.
    """
    layers = [module for module in backbone.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise UsageError(
            f"learner.recompute: {type(backbone).__name__} has no layers that can be run again; set it to false"
        )
    return replaced((layer, partial(checkpoint, layer.forward, use_reentrant=False)) for layer in layers)
