"""Attention of one new token a slot: over its prompt, which the group's slots share, and over its own tokens, apart.

Each part gives a mean of values and the logarithm of the sum of its exponentials, of query q over keys k_j, values v_j:

    l = log sum_j exp(scale q.k_j),     o = sum_j exp(scale q.k_j - l) v_j

Two parts are one attention over all their keys:

    L = log(exp l_1 + exp l_2),         out = exp(l_1 - L) o_1 + exp(l_2 - L) o_2

A sink of an architecture that has them (a number s a head, which takes weight and gives nothing) is a part with l = s
and o = 0. A prompt's keys and values are read once for all its slots, as one product.

A model that makes keys anew from what it caches (multi-head latent attention), or attends in a way of its own, gets a
copy of prompt and own tokens, side by side, and a mask.

Importing this module registers `slot_attention` with transformers under the name SLOTS.

Shapes: R slots, P places of prompts, G seats of a place, H key-value heads, S query heads of each, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.cache_utils import Cache
from transformers.masking_utils import AttentionMaskInterface

SLOTS = "groupwise_slots"
#: query [B,H,M,D], keys, values [B,H,n,D], lengths [B], scale -> means [B,H,M,D], logarithms of sums [B,H,M], float32
Partial = Callable[[Tensor, Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Seating:
    """Slots of a step and the places of their prompts.

    column   [R] where the new token's keys and values are written, and the last that it sees
    length   [P] tokens of each place's prompt; 1 at least
    seated   [P,G] the slots of each place; -1 for an empty seat
    seat     [R] the number of each slot's seat among P*G
    own      of each layer keys, then values, [R,H,W,D]: the columns that are looked at
    prompts  of each layer keys, then values, [P,H,W,D]
    attend   computes both parts; None: the model attends to a copy in its own way
    """

    column: Tensor
    length: Tensor
    seated: Tensor
    seat: Tensor
    own: Sequence[Tensor]
    prompts: Sequence[Tensor]
    attend: Attend | None

    def mask(self, dtype: torch.dtype) -> Tensor:
        """Return [R,1,1,prompt columns + own columns], 0 where a slot may look and -inf where it may not."""
        prompt, own = (torch.arange(m[0].shape[2], device=self.seat.device) for m in (self.prompts, self.own))
        hidden = torch.cat([prompt >= self.length[self.places, None], own > self.column[:, None]], 1)
        return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, -torch.inf)[
            :, None, None
        ]

    @property
    def places(self) -> Tensor:
        """[R] the place of each slot's prompt."""
        return self.seat // self.seated.shape[1]


#: query [R,H*S,D], the layer's number, a seating, the scale, sinks [H*S] or None -> [R,H*S,D]
Attend = Callable[[Tensor, int, Seating, float, "Tensor | None"], Tensor]


class SlotCache(Cache):
    """The cache of a model that runs one step of the slots: it writes one column of each."""

    def __init__(self, seating: Seating) -> None:
        super().__init__(layers=[])
        self._seating = seating

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write keys and values [R,H,1,D], and return what the slots look at, [R,H,W,D] each."""
        keys, values = self._seating.own[2 * layer_idx : 2 * layer_idx + 2]
        at = self._seating.column[:, None, None, None].expand_as(key_states)
        keys.scatter_(2, at, key_states)
        values.scatter_(2, self._seating.column[:, None, None, None].expand_as(value_states), value_states)
        if self._seating.attend is not None:
            return keys, values
        before_keys, before_values = self._seating.prompts[2 * layer_idx : 2 * layer_idx + 2]
        places = self._seating.places
        return torch.cat([before_keys[places], keys], 2), torch.cat([before_values[places], values], 2)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._seating.own[0].shape[2]

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self._seating.own[0].shape[2], 0


@torch.compiler.disable  # compiled layers call it as it is: it has kernels of its own
def slot_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    scaling: float | None = None,
    slots: Seating | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """query [R,H*S,1,D] -> [R,1,H*S,D]; keys and values are the seating's.

    Raises NotImplementedError if the model asks for what this attention does not do.
    """
    more = [name for name in ("softcap", "position_bias") if others.get(name) is not None]
    if slots is None or slots.attend is None or more or query.shape[2] != 1:
        raise NotImplementedError(f"attention of slots {f'with {more[0]}' if more else 'without slots'}")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = slots.attend(query[:, :, 0], module.layer_idx, slots, scale, others.get("s_aux"))
    return out[:, None].to(query.dtype), None


def partial_attention(
    query: Tensor, keys: Tensor, values: Tensor, length: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """query [B,H,M,D], keys, values [B,H,n,D], length [B] -> o [B,H,M,D] and l [B,H,M] over the first `length` keys,
    float32.
    """
    if query.dtype == torch.float16:  # so that sums of products stay below 65,504, where its numbers end
        query, scale = query * scale, 1.0
    scores = (query @ keys.transpose(2, 3)).float() * scale
    hidden = torch.arange(keys.shape[2], device=query.device) >= length[:, None]
    scores.masked_fill_(hidden[:, None, None], -torch.inf)
    total = scores.logsumexp(-1)
    weight = (scores - total[..., None]).exp_()
    return (weight.to(values.dtype) @ values).float(), total


def merged(parts: Sequence[tuple[Tensor, Tensor]], sinks: Tensor | None = None) -> Tensor:
    """Join parts, o [...,D] and l [...] each, into one attention [...,D]; sinks as broad as l's last place."""
    logs = [log for _, log in parts]
    if sinks is not None:
        logs.append(sinks.float().expand_as(logs[0]))
    total = torch.stack(logs).logsumexp(0)
    return torch.stack([mean * (log - total).exp()[..., None] for mean, log in parts]).sum(0)


def attend_plainly(query: Tensor, layer: int, seating: Seating, scale: float, sinks: Tensor | None) -> Tensor:
    """Attend by torch's own products: two for the prompts, two for the slots' own tokens."""
    keys, values = seating.own[2 * layer : 2 * layer + 2]
    grouped = query.view(len(query), keys.shape[1], -1, query.shape[-1])
    own = partial_attention(grouped, keys, values, seating.column + 1, scale)
    places, seats = seating.seated.shape
    # An empty seat takes slot 0's query; what comes of it is not looked at.
    seated = grouped[seating.seated.clamp(min=0)].transpose(1, 2)
    prompt_keys, prompt_values = seating.prompts[2 * layer : 2 * layer + 2]
    mean, log = partial_attention(seated.flatten(2, 3), prompt_keys, prompt_values, seating.length, scale)
    mean = mean.view(places, -1, seats, grouped.shape[2], mean.shape[-1]).transpose(1, 2).flatten(0, 1)
    log = log.view(places, -1, seats, grouped.shape[2]).transpose(1, 2).flatten(0, 1)
    prompt = (mean[seating.seat], log[seating.seat])
    grouped_sinks = None if sinks is None else sinks.view(1, keys.shape[1], -1)
    return merged([prompt, own], grouped_sinks).flatten(1, 2)


def _no_mask(*args: Any, **kwargs: Any) -> None:
    """Make no mask where a model asks for one: the seating says what a slot sees."""


AttentionInterface.register(SLOTS, slot_attention)  # type: ignore[arg-type]
AttentionMaskInterface.register(SLOTS, _no_mask)  # type: ignore[arg-type]
