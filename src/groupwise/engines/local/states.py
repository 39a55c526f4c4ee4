"""States of the layers that are not attention alone: a convolution's last inputs, and what a linear attention, a state
space or another recurrence has summed up. Of a row they are a few tensors, as large after one token as after many.

A state is started once a prompt, copied to the rows of its group, moved with them, and changed in place by each step.
transformers has one interface to all of them, its cache's layers (LinearAttentionLayer), and puts them there itself.
So a model is asked what it keeps by a forward over two tokens.

Nothing is held of a sequence that has ended (cache.py): a state is that of its last token and of no token before, and
the next turn of an episode does not go on from that one. It is run from its first token.

transformers' Mamba 2 layers clamp a token's time step where they run many tokens, and do not where they run one
(Nemotron-H and Zamba 2: to 0.001 at least). A hook on what they clamp makes both one function (limit_time_steps).

Shapes: R live rows, P prompts.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache, DynamicLayer, LinearAttentionLayer

from groupwise.models.context import ATTENTION, STATE, has_states, layer_kinds


@dataclass(frozen=True)
class LayerMemory:
    """Memory that each layer of a model has of a row: keys and values, states, both, or neither.

    layers    how many there are
    keyed     number of each layer with keys and values -> how many of these are before it
    states    of each state its layer, the dictionary of that layer in transformers' cache, and its number there
    argument  by which the model takes a cache
    """

    layers: int
    keyed: Mapping[int, int]
    states: tuple[tuple[int, str, int], ...] = ()
    argument: str = "past_key_values"

    @classmethod
    def of(cls, model: Any) -> LayerMemory:
        """Find it; a model with states is run. Raises ValueError if a layer that should have a state shows none."""
        kinds = layer_kinds(model.config)
        if not has_states(model.config):
            return cls(len(kinds), {number: number for number in range(len(kinds))})
        argument = cache_argument(model)
        cache, ids = DynamicCache(config=model.config), torch.zeros(1, 2, dtype=torch.long, device=model.device)
        with torch.no_grad():
            model(input_ids=ids, use_cache=True, **{argument: cache})
        found = [(number, *place) for number, layer in enumerate(cache.layers) for place in states_of(layer)]
        silent = {n for n, kind in enumerate(kinds) if kind in STATE} - {number for number, *_ in found}
        if silent:
            raise ValueError(f"its {kinds[min(silent)]} layers keep their states elsewhere than in transformers' cache")
        keyed = [number for number, kind in enumerate(kinds) if kind in ATTENTION]
        return cls(len(kinds), {layer: n for n, layer in enumerate(keyed)}, tuple(found), argument)

    def empty(self) -> list[Any]:
        """Make the layers of a transformers cache for a model with states, without any yet; no layers for another."""
        if not self.states:
            return []
        numbers = [[number for layer, _, number in self.states if layer == each] for each in range(self.layers)]
        return [LinearAttentionLayer(max(of_layer) + 1) if of_layer else DynamicLayer() for of_layer in numbers]

    def filled(self, states: Sequence[Tensor]) -> list[Any]:
        """Make the layers of a transformers cache that has seen tokens, with these states, [R,...] each."""
        layers = self.empty()
        for (number, kind, place), state in zip(self.states, states, strict=True):
            layer = layers[number]
            getattr(layer, kind)[place] = state
            getattr(layer, f"is_{kind}_initialized")[place] = layer.has_previous_state[place] = True
            if kind == "conv_states":
                layer.conv_kernel_size[place] = state.shape[-1]
        return layers

    def states_in(self, layers: Sequence[Any]) -> list[Tensor]:
        """Return the states that layers of a transformers cache have."""
        return [getattr(layers[number], kind)[place] for number, kind, place in self.states]


def cache_argument(model: nn.Module) -> str:
    """Name the argument by which a model takes a cache."""
    return "cache_params" if "cache_params" in inspect.signature(model.forward).parameters else "past_key_values"


def states_of(layer: Any) -> dict[tuple[str, int], Tensor]:
    """Return the states that a layer of a transformers cache has: by the name of a dictionary, and the number there."""
    kinds = ("conv_states", "recurrent_states")
    every = {(kind, number): state for kind in kinds for number, state in getattr(layer, kind, {}).items()}
    return {place: state for place, state in every.items() if state is not None}


def limit_time_steps(model: nn.Module) -> None:
    """Make state-space layers with limits to their time steps keep to them where they run one token, too.

    A time step is softplus(x + dt_bias), which grows with x: x is clamped in the place of it, behind the projection of
    which it is the last columns, one for each head.
    """
    mixers: list[Any] = list(model.modules())
    for mixer in mixers:
        low, high = getattr(mixer, "time_step_limit", (0.0, math.inf))
        if isinstance(getattr(mixer, "dt_bias", None), Tensor) and (low > 0 or high < math.inf):
            mixer.in_proj.register_forward_hook(
                partial(_clamp_last, mixer, _before_softplus(low), _before_softplus(high))
            )


def _clamp_last(mixer: Any, low: float, high: float, _: nn.Module, __: Any, projected: Tensor) -> Tensor:
    rest, steps = projected.split([projected.shape[-1] - mixer.num_heads, mixer.num_heads], -1)
    bias = mixer.dt_bias.to(steps.dtype)
    return torch.cat([rest, steps.clamp(low - bias, high - bias)], -1)


def _before_softplus(y: float) -> float:
    """Return the x of which softplus(x) is y."""
    return y if y == math.inf else y + math.log(-math.expm1(-y)) if y > 0 else -math.inf


class RowStates:
    """Memory of the states of rows, [spare and live rows, ...] each."""

    def __init__(self) -> None:
        self._memory: list[Tensor] = []

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return sum(memory.nbytes for memory in self._memory)

    def insert(self, begin: int, states: Sequence[Tensor], source: Tensor, rows: int) -> None:
        """Write rows from `begin` on: row i begins with the states [P,...] of prompt source[i].

        rows  how many there is to be room for
        """
        end = begin + len(source)
        if len(self._memory) != len(states) or (states and len(self._memory[0]) < max(end, rows)):
            grown = [state.new_zeros(max(end, rows), *state.shape[1:]) for state in states]
            for new, old in zip(grown, self._memory, strict=False):
                new[:begin] = old[:begin]
            self._memory = grown
        for memory, state in zip(self._memory, states, strict=True):
            memory[begin:end] = state.index_select(0, source)

    def move(self, to: Tensor, origin: Tensor) -> None:
        """Copy rows `origin` over rows `to`."""
        for memory in self._memory:
            memory[to] = memory[origin]

    def views(self, rows: int) -> list[Tensor]:
        """Return the states of the first rows, [R,...] each: a step reads them and writes the next ones in place."""
        return [memory.narrow(0, 0, rows) for memory in self._memory]
