"""Modules of a model that run by another function for a while: layers with activation checkpointing, layers compiled by
torch.compile, in which what lies between two matrix products becomes one kernel.

Attention along a line in blocks is run as it is, because these differ from batch to batch; as one attention it is a
part of the compiled layer, for lines of every length. The experts of a layer are run as they are too: their routes are
recorded and replayed by hooks.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from groupwise.core.errors import UsageError
from groupwise.models.moe.record import routers
from groupwise.models.precision import multiplies_bf16


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


def can_recompute(backbone: nn.Module) -> bool:
    """Tell whether a model has layers that can be run again."""
    return bool(_layers(backbone))


def _layers(backbone: nn.Module) -> list[nn.Module]:
    return [module for module in backbone.modules() if isinstance(module, GradientCheckpointingLayer)]


def recomputed(backbone: nn.Module) -> AbstractContextManager[None]:
    """Run a forward of `backbone`, and its backward, inside: a layer keeps its input alone, and is run again in the
    backward pass. transformers' own switch does so in training mode only, in which dropout would be on.

    Raises UsageError if the model has no layers that can be run again.
    """
    layers = _layers(backbone)
    if not layers:
        raise UsageError(
            f"learner.recompute: {type(backbone).__name__} has no layers that can be run again; set it to false"
        )
    return replaced((layer, partial(checkpoint, layer.forward, use_reentrant=False)) for layer in layers)


class CompiledLayers:
    """The layers of models, each compiled once for any number of tokens."""

    def __init__(self, *models: nn.Module, bf16: bool = False) -> None:
        """bf16  whether they compute in it

        Raises UsageError if a model has no layers to compile, or the machine nothing to compile them with.
        """
        device = next(models[0].parameters()).device
        if bf16 and not multiplies_bf16(device.type):
            raise UsageError(
                'learner.compile with learner.precision = "bf16": this processor has no instructions for bfloat16, and '
                'compiled layers would take many times as long without them; set one of them to false or "fp32"'
            )
        self.parts = [part for model in models for part in _compiled_parts(model)]
        _try(device)

    def running(self) -> AbstractContextManager[None]:
        """Make a forward of the models run their layers compiled inside, and its backward anywhere."""
        return replaced(self.parts)


def _compiled_parts(model: nn.Module) -> Iterator[tuple[nn.Module, Callable[..., Any]]]:
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise UsageError(f"learner.compile: {type(model).__name__} has no layers that can be compiled; set it to false")
    for layer in layers:
        for block in layer.children():
            if routers(block):
                yield block, torch.compiler.disable(block.forward)
        yield layer, torch.compile(layer.forward, dynamic=True)


def _try(device: torch.device) -> None:
    numbers = torch.ones(16, device=device)
    try:
        torch.compile(lambda x: x.exp() + x)(numbers)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise UsageError(
            f"learner.compile: torch cannot compile for {device.type} here ({reason}); install a C++ compiler (g++), "
            "or set it to false"
        ) from None
