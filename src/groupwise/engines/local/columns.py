"""Columns of keys and values of layers that see as far back, and the kinds of layers that a model has.

A layer with a sliding window of w sees a token and the w - 1 before it, and holds no more than those and the columns of
steps to come. As every row ends at the same column, its window is one slice, too, whatever the rows' lengths.

Shapes: R live rows, P prompts, H key-value heads, D head size, C columns in memory, W columns that are seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from groupwise.models.context import ATTENTION, EVERY, STATE

T = TypeVar("T")
#: Columns that a layout has beyond what is seen: this many, or this share of it.
GAP, GAP_SHARE = 8, 1 / 8
#: Columns that a new buffer has room for beyond what is seen: this many, or as many as are seen.
ROOM = 64

#: Kinds of layers that see a window of a text.
WINDOWED = frozenset(kind for kind in ATTENTION if "sliding" in kind)


@dataclass(frozen=True)
class LayerWindows:
    """Windows of a model's layers, and what belongs to each kind of them: layers of one window are a kind.

    layers    tokens that each layer with keys and values sees, its own among them, EVERY if it sees all; None: each
              does
    by_token  whether the model makes its masks itself, of which columns hold a token
    uncached  why the engine cannot hold what the layers keep of a text, so that each step runs whole texts (texts.py);
              "" if it can

    >>> LayerWindows((EVERY, 4, 4)).kinds == (EVERY, 4)
    True
    """

    layers: tuple[int, ...] | None = None
    by_token: bool = False
    uncached: str = ""

    @property
    def kinds(self) -> tuple[int, ...]:
        """The windows, in the order of the first layer of each."""
        return (EVERY,) if self.layers is None else tuple(dict.fromkeys(self.layers))

    @property
    def shortest(self) -> int:
        """The shortest window, EVERY without one."""
        return min(self.kinds, default=EVERY)

    def by_kind(self, keys: Sequence[Tensor], values: Sequence[Tensor]) -> list[list[Tensor]]:
        """Sort the keys, then the values, of each layer by kind."""
        layers = (EVERY,) * len(keys) if self.layers is None else self.layers
        return [
            [
                tensor
                for own, pair in zip(layers, zip(keys, values, strict=True), strict=True)
                if own == kind
                for tensor in pair
            ]
            for kind in self.kinds
        ]

    def in_order(self, kinds: Sequence[list[T]], each: int) -> list[T]:
        """Join lists that have `each` things for every layer of a kind into one, in the order of the layers."""
        if len(kinds) == 1:
            return kinds[0]
        found = {kind: iter(things) for kind, things in zip(self.kinds, kinds, strict=True)}
        return [next(found[kind]) for kind in self.layers or () for _ in range(each)]

    def as_argument(self, masks: Sequence[Tensor]) -> Tensor | dict[str, Tensor | None] | None:
        """Turn a mask for each kind into what transformers' models take: one, or one by the kind's name; for a model
        that makes them, [P,W] of what the last token sees, 0 or 1.
        """
        if self.by_token and masks:
            return (masks[0][:, 0, -1] == 0).long()
        if len(masks) <= 1:
            return masks[0] if masks else None
        seen = zip(self.kinds, masks, strict=True)
        by_name = {name: mask for kind, mask in seen for name in (ATTENTION - WINDOWED if kind == EVERY else WINDOWED)}
        return {**dict.fromkeys(STATE - ATTENTION), **by_name}


#: A model without windows.
ONE_KIND = LayerWindows()


class LayerColumns:
    """Memory of the keys and values of one kind of layers; columns are counted from the first one ever used.

    window  tokens that a layer sees, its own among them
    base    the column at the front of the memory
    """

    def __init__(self, window: int) -> None:
        self.window = window
        self.base = 0
        self._columns = 0
        # Per layer keys, then values, [spare and live rows,H,C,D]; each is the front of its buffer, which is flat.
        self._memory: list[Tensor] = []
        self._buffers: list[Tensor] = []
        self._spare = torch.zeros(0)
        self._mask: Tensor | None = None

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return sum(buffer.nbytes for buffer in (*self._buffers, self._spare))

    def begin(self, layers: Sequence[Tensor]) -> None:
        """Take over the shapes of a batch's layers, [P,H,W,D] each, if there has been none."""
        if not self._memory:
            self._memory = [m[:0] for m in layers]
            self._buffers = [m.new_zeros(0) for m in layers]
            self._spare = layers[0].new_zeros(0)

    def insert(self, begin: int, layers: Sequence[Tensor], source: Tensor, column: int) -> None:
        """Write rows from `begin` on, before `column`: row i has what prompt source[i] has, as far as it is seen."""
        at, end = column - self.base, begin + len(source)
        width = min(layers[0].shape[2], self.window - 1)
        for mine, theirs in zip(self._memory, layers, strict=True):
            mine[begin:end, :, at - width : at] = theirs[:, :, theirs.shape[2] - width :].index_select(0, source)
        self._mask = None

    def move(self, to: Tensor, origin: Tensor) -> None:
        """Copy rows `origin` over rows `to`."""
        for memory in (*self._memory, *([] if self._mask is None else [self._mask])):
            memory[to] = memory[origin]

    def copied(self, row: int, start: int, stop: int) -> list[Tensor]:
        """Copy a row's columns from `start` to before `stop`, [H,n,D] each."""
        return [memory[row, :, start - self.base : stop - self.base].clone() for memory in self._memory]

    def mask(self, start: Tensor, rows: int, first: int, column: int) -> Tensor:
        """Return [R,1,1,W], 0 where a row may look and -inf where it may not: before its start."""
        if self._mask is None:
            columns = torch.arange(self.base, self.base + self._columns, device=start.device)
            visible = self._memory[0].new_zeros(len(start), self._columns)
            self._mask = visible.masked_fill_(columns < start[:, None], float("-inf"))
        return self._mask[:rows, None, None, self._seen_from(first, column) - self.base : column + 1 - self.base]

    def views(self, rows: int, first: int, column: int) -> list[Tensor]:
        """Return four views a layer: the column to write, of keys and of values, [R,H,1,D]; what is seen, [R,H,W,D]."""
        first, at = self._seen_from(first, column) - self.base, column - self.base
        views = []
        for memory in self._memory:
            live = memory if memory.shape[0] == rows else memory.narrow(0, 0, rows)
            views += [live.narrow(2, at, 1), live.narrow(2, first, at + 1 - first)]
        return views

    def reserve(self, live: int, rows: int, before: int, seen: int, ahead: int, column: int) -> None:
        """Make room for `column`, and for `rows` rows with `before` columns ahead of it.

        live   rows whose `seen` columns ahead of it are kept
        ahead  columns that may follow
        """
        at, before, seen = column - self.base, min(before, self.window - 1), min(seen, self.window - 1)
        count = max(rows, self._memory[0].shape[0])
        if live and rows <= self._memory[0].shape[0] and before <= at < self._columns:
            return
        before = max(before, seen)
        columns = before + max(1, min(ahead, max(GAP, int(GAP_SHARE * before))))
        most = before + max(1, min(ahead, max(ROOM, before)))
        room = count * most * max(m.shape[1] * m.shape[3] for m in self._memory)
        for i, memory in enumerate(self._memory):
            shape = (count, memory.shape[1], columns, memory.shape[3])
            laid = self._swap(i, math.prod(shape), room).view(shape)
            laid[:live, :, before - seen : before] = memory[:live, :, at - seen : at]
            self._memory[i] = laid
        self.base, self._columns, self._mask = column - before, columns, None

    def _seen_from(self, first: int, column: int) -> int:
        return max(first, column + 1 - self.window)

    def _swap(self, layer: int, needed: int, room: int) -> Tensor:
        """Give `needed` numbers of the spare buffer to a layer, whose own buffer becomes the spare.

        room  numbers in a new buffer
        """
        buffer = self._spare
        if buffer.numel() < needed:
            # Zeros, not empty memory: a hidden column has weight 0, and 0 * NaN is NaN.
            buffer = buffer.new_zeros(room)
        self._spare, self._buffers[layer] = self._buffers[layer], buffer
        return buffer[:needed]
