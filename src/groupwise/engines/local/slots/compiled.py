"""Layers of a step compiled by torch.compile: what lies between two matrix products becomes one kernel.

One compilation serves all layers of a kind, for any bucket of more than one slot: each layer is given its own part of
the memory as if it were the only one, because torch compiles anew for each number of a layer that it sees. Attention
runs as it is; so do experts, whose routes hooks record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from groupwise.core.errors import UsageError
from groupwise.engines.local.slots.attention import Seating, SlotCache
from groupwise.models.forward.forwards import replaced
from groupwise.models.moe.record import routers


class CompiledStepLayers:
    """The layers of one model, compiled when they first run."""

    def __init__(self, model: nn.Module) -> None:
        """Compile nothing yet. Raises UsageError for a model that has no layers to compile."""
        layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
        if not layers:
            raise UsageError(
                f"engine.compile: {type(model).__name__} has no layers that can be compiled; set it to false"
            )
        kinds = {type(layer): torch.compile(type(layer).forward, dynamic=True) for layer in layers}
        self._numbered: list[Any] = [module for module in model.modules() if hasattr(module, "layer_idx")]
        self._forwards: list[tuple[nn.Module, Callable[..., Any]]] = [
            (layer, partial(_run, kinds[type(layer)], layer, number)) for number, layer in enumerate(layers)
        ]
        blocks = [block for layer in layers for block in layer.children() if routers(block)]
        self._forwards += [(block, torch.compiler.disable(block.forward)) for block in blocks]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Make the model run its layers compiled inside."""
        numbers = [module.layer_idx for module in self._numbered]
        try:
            for module in self._numbered:
                module.layer_idx = 0
            with replaced(self._forwards):
                yield
        finally:
            for module, number in zip(self._numbered, numbers, strict=True):
                module.layer_idx = number


def _run(compiled: Callable[..., Any], layer: nn.Module, number: int, *args: Any, slots: Seating, **kwargs: Any) -> Any:
    """Run a layer on its own part of a seating."""
    part = slice(2 * number, 2 * number + 2)
    own = replace(slots, own=slots.own[part], prompts=slots.prompts[part])
    return compiled(layer, *args, **{**kwargs, "past_key_values": SlotCache(own), "slots": own})
