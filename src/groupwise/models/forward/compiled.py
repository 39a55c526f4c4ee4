"""Layers compiled by torch.compile: what lies between two matrix products becomes one kernel.

Attention along a line is run as it is, because its blocks differ from batch to batch; so are the experts of a layer,
whose routes are recorded and replayed by hooks.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from groupwise.core.errors import UsageError
from groupwise.models.forward.forwards import replaced
from groupwise.models.moe.record import routers
from groupwise.models.precision import multiplies_bf16


class CompiledLayers:
    """The layers of models, each compiled once for any number of tokens."""

    def __init__(self, *models: nn.Module, bf16: bool = False) -> None:
        """bf16  whether they compute in it

        Raises UsageError where a model has no layers to compile, or the machine nothing to compile them with.
        """
        device = next(models[0].parameters()).device
        if bf16 and not multiplies_bf16(device.type):
            raise UsageError(
                'learner.compile with learner.precision = "bf16": this processor has no instructions for bfloat16, and '
                'compiled layers would take many times as long without them; set one of them to false or "fp32"'
            )
        self.parts = [part for model in models for part in _parts(model)]
        _try(device)

    def running(self) -> AbstractContextManager[None]:
        """Inside, a forward of the models runs their layers compiled, and so its backward anywhere."""
        return replaced(self.parts)


def _parts(model: nn.Module) -> Iterator[tuple[nn.Module, Callable[..., Any]]]:
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise UsageError(f"learner.compile: {type(model).__name__} has no layers that can be compiled; set it to false")
    for layer in layers:
        for block in layer.children():
            if routers(block):
                yield block, torch.compiler.disable(block.forward)
        yield layer, torch.compile(layer.forward, dynamic=True)


def _try(device: torch.device) -> None:
    """Raises UsageError where torch cannot compile for the device."""
    numbers = torch.ones(16, device=device)
    try:
        torch.compile(lambda x: x.exp() + x)(numbers)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise UsageError(
            f"learner.compile: torch cannot compile for {device.type} here ({reason}); install a C++ compiler (g++), "
            "or set it to false"
        ) from None
