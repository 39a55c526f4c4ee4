"""Keys and values of rows that are sampled in fixed slots, and of their prompts, each held once.

A row stays in its slot, and its own keys and values begin at column 0, so that a step writes and reads at addresses
that a recorded graph can hold. A prompt has a place, which the rows of its group share:

    prompts  place 0   P P P P -      slot 0 (place 0)   a a a .      P prompt, a sampled, . written next
             place 1   P P - - -      slot 1 (place 0)   a a a .
                                      slot 2 (place 1)   a . - -      - not looked at

Memory grows as it is needed and stays for the next call: each growth makes the graphs of before useless.

Shapes: R slots, P places, H key-value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from groupwise.engines.local.cache import PrefilledPrompts

# Columns of own tokens and of prompts that the smallest bucket has.
LEAST_COLUMNS, LEAST_PROMPT = 64, 16


def bucket_of(count: int) -> int:
    """Round up to a power of two.

    >>> [bucket_of(count) for count in (1, 3, 4, 65)]
    [1, 4, 4, 128]
    """
    return 1 << (count - 1).bit_length()


class SlotMemory:
    """Keys, then values, of each layer: `own` [R,H,columns,D] of what is sampled and `prompts` [P,H,columns,D]."""

    def __init__(self) -> None:
        self.own: list[Tensor] = []
        self.prompts: list[Tensor] = []

    @property
    def size(self) -> int:
        """Bytes of keys and values in memory."""
        return sum(tensor.nbytes for tensor in (*self.own, *self.prompts))

    def reserve_prompts(self, like: PrefilledPrompts, places: int, columns: int) -> bool:
        """Make room for prompts -> whether memory moved."""
        layers = [m for pair in zip(like.keys, like.values, strict=True) for m in pair]
        if not self.own:
            self.own = [m.new_zeros(0, m.shape[1], 0, m.shape[3]) for m in layers]
            self.prompts = list(self.own)
        return _grow(self.prompts, places, columns)

    def reserve_own(self, slots: int, columns: int) -> bool:
        """Make room for what is sampled -> whether memory moved."""
        return _grow(self.own, slots, columns)

    def put(self, prompts: PrefilledPrompts, which: Sequence[int], places: Tensor) -> None:
        """Put some of the prompts, which are padded on the left, into places, from column 0 on."""
        device = prompts.length.device
        chosen = torch.tensor(which, device=device)
        columns = torch.arange(prompts.width, device=device)
        source = (columns + (prompts.width - prompts.length[chosen])[:, None]).clamp_(max=prompts.width - 1)
        layers = [m for pair in zip(prompts.keys, prompts.values, strict=True) for m in pair]
        for mine, theirs in zip(self.prompts, layers, strict=True):
            index = source[:, None, :, None].expand(-1, theirs.shape[1], -1, theirs.shape[3])
            mine[places, :, : prompts.width] = theirs[chosen].gather(2, index)

    def move(self, to: Tensor, origin: Tensor, columns: int) -> None:
        """Copy the first columns of slots `origin` over slots `to`."""
        for memory in self.own:
            memory[to, :, :columns] = memory[origin, :, :columns]

    def sequence(self, place: int, prompt: int, slot: int, own: int) -> tuple[Tensor, ...]:
        """Copy the keys and values, in turn, [H,prompt + own,D], of a prompt and what a slot has behind it."""
        return tuple(
            torch.cat([before[place, :, :prompt], behind[slot, :, :own]], 1)
            for before, behind in zip(self.prompts, self.own, strict=True)
        )


def _grow(tensors: list[Tensor], rows: int, columns: int) -> bool:
    """Give each tensor [rows,H,columns,D] at least, one after another; asked for buckets, it is copied a few times."""
    have_rows, _, have, _ = tensors[0].shape
    if rows <= have_rows and columns <= have:
        return False
    rows, columns = max(rows, have_rows), max(columns, have)
    for i, tensor in enumerate(tensors):
        # Zeros, not empty memory: a hidden column has weight 0, and 0 * NaN is NaN.
        tensors[i] = tensor.new_zeros(rows, tensor.shape[1], columns, tensor.shape[3])
        tensors[i][:have_rows, :, :have] = tensor
    return True
