"""Keys and values of the rows being sampled: one window that all rows share, written in place.

Every row ends at the same column, so a step writes one column for all rows and reads one slice, whatever the lengths of
their prompts. A row that came later, or has a shorter prompt, starts later; a mask hides what lies before its start.
A finished row is replaced by moving the last live row into its place: only that row is copied.

    column   t-6 t-5 t-4 t-3 t-2 t-1  t
    row 0     P   P   P   P   a   a   .      P prompt, a sampled, . to be written next
    row 1     -   -   P   P   a   a   .      - hidden by the mask
    row 2     -   -   -   P   P   P   .      admitted just now

Shapes: R live rows, H key-value heads, D head size, C columns in memory, W columns in the window. Columns are counted
from the first one ever used; `_base` is the one at the front of the memory.

Importing this module registers `row_attention` with transformers under the name ATTENTION.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.cache_utils import Cache

ATTENTION = "groupwise_rows"
# Fewest columns the memory grows by.
GROWTH = 64


@dataclass(frozen=True)
class Prompts:
    """Prompts that have been through the model once, padded on the left.

    tokens        P prompts
    keys, values  per layer [P,H,width,D]
    length        [P] int64, tokens
    logits        [P,V], for the first sampled token
    routes        per prompt [length,L,K] on the CPU, the experts chosen; empty where nobody asked
    """

    tokens: tuple[tuple[int, ...], ...]
    keys: list[Tensor]
    values: list[Tensor]
    length: Tensor
    logits: Tensor
    routes: tuple[Tensor, ...] = ()

    @property
    def width(self) -> int:
        return self.keys[0].shape[2]

    def only(self, index: int) -> Prompts:
        """One of them, in memory of its own."""

        def one(whole: Tensor) -> Tensor:
            return whole[index : index + 1].clone()

        keys, values = [one(k) for k in self.keys], [one(v) for v in self.values]
        routes = self.routes[index : index + 1]
        return Prompts((self.tokens[index],), keys, values, one(self.length), one(self.logits), routes)


class RowCache:
    """Memory for one-token steps of many rows. A step is prepare, the model on `views`, advance.

    With no live rows it can be used again for other prompts: what it holds from before is never looked at.

    rows    live rows; memory behind them is spare
    column  the column that the next step writes
    start   [spare and live rows] int64, the column of each row's first prompt token
    """

    def __init__(self) -> None:
        self.rows = 0
        self.column = 0
        self.start = torch.zeros(0, dtype=torch.long)
        self._base = 0
        self._first = 0
        self._even = True
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._mask = torch.zeros(0, 0)

    @property
    def size(self) -> int:
        """Bytes of keys and values in memory."""
        return sum(memory.nbytes for memory in (*self._keys, *self._values))

    def insert(self, prompts: Prompts, source: Tensor, ahead: int) -> None:
        """New rows behind the live ones: row i begins with prompt source[i]; `ahead` columns may follow."""
        begin, end = self.rows, self.rows + len(source)
        if not self.rows:
            self._first, self._base = self.column, self.column - prompts.width
        self._reserve(end, prompts.width, ahead, prompts)
        at = self.column - self._base
        for mine, theirs in zip(self._keys + self._values, prompts.keys + prompts.values, strict=True):
            mine[begin:end, :, at - prompts.width : at] = theirs[source]
        self.start[begin:end] = self.column - prompts.length[source]
        self.rows = end
        self._frame()
        self._hide(begin, end)

    def move(self, to: Tensor, origin: Tensor, rows: int) -> None:
        """Copy rows `origin` over rows `to`, and keep the first `rows`."""
        for memory in (*self._keys, *self._values, self._mask, self.start):
            memory[to] = memory[origin]
        self.rows = rows
        if rows:
            self._frame()

    def prepare(self, ahead: int) -> tuple[Tensor, Tensor | None]:
        """Room for the next step. Its positions, [R,1] or [1,1], and its mask, [R,1,1,W] or None if not needed."""
        self._reserve(self.rows, 0, ahead)
        if self._even:
            return torch.full((1, 1), self.column - self._first, device=self.start.device), None
        return (self.column - self.start[: self.rows])[:, None], self.mask()

    def mask(self) -> Tensor:
        """[R,1,1,W], 0 where a row may look and -inf where it may not."""
        return self._mask[: self.rows, None, None, self._first - self._base : self.column + 1 - self._base]

    def advance(self) -> None:
        """The step has written its column."""
        self.column += 1

    def views(self) -> list[Tensor]:
        """Per layer four views: the column to write, of keys and of values, [R,H,1,D]; their windows [R,H,W,D]."""
        first, at = self._first - self._base, self.column - self._base
        views = []
        for keys, values in zip(self._keys, self._values, strict=True):
            for memory in (keys.narrow(0, 0, self.rows), values.narrow(0, 0, self.rows)):
                views += [memory.narrow(2, at, 1), memory.narrow(2, first, at + 1 - first)]
        return views

    def _frame(self) -> None:
        low, high = torch.aminmax(self.start[: self.rows])
        self._first, self._even = int(low), bool(low == high)

    def _hide(self, begin: int, end: int) -> None:
        columns = torch.arange(self._mask.shape[1], device=self.start.device) + self._base
        hidden = columns < self.start[begin:end, None]
        self._mask[begin:end] = torch.zeros_like(self._mask[begin:end]).masked_fill_(hidden, float("-inf"))

    def _reserve(self, rows: int, before: int, ahead: int, like: Prompts | None = None) -> None:
        """Make room for `rows` rows, `before` columns ahead of `column`, and `column` itself."""
        at = self.column - self._base
        if self._keys and rows <= len(self.start) and before <= at < self._mask.shape[1]:
            return
        window = self.column - self._first
        before = max(before, window)
        columns = before + max(1, min(ahead, max(GROWTH, before)))
        count = max(rows, len(self.start))
        old = slice(self._first - self._base, at)
        keys, values = (like.keys, like.values) if like else (self._keys, self._values)
        self._keys = self._grown(self._keys or [k[:0] for k in keys], count, columns, before, old)
        self._values = self._grown(self._values or [v[:0] for v in values], count, columns, before, old)
        start = keys[0].new_zeros(count, dtype=torch.long)
        start[: self.rows] = self.start[: self.rows]
        self.start, self._base = start, self.column - before
        self._mask = keys[0].new_zeros(count, columns)
        self._hide(0, self.rows)

    def _grown(self, memory: list[Tensor], count: int, columns: int, before: int, old: slice) -> list[Tensor]:
        # Zeros, not empty memory: a hidden column has weight 0, and 0 * NaN is NaN.
        grown = []
        for layer in memory:
            new = layer.new_zeros(count, layer.shape[1], columns, layer.shape[3])
            if self.rows:
                new[: self.rows, :, before - (old.stop - old.start) : before] = layer[: self.rows, :, old]
            grown.append(new)
        return grown


class ViewCache(Cache):
    """What the model sees of the memory in one step: writes go to the views of RowCache.views, reads come from them."""

    def __init__(self, views: Sequence[Tensor]) -> None:
        super().__init__(layers=[])
        self._views = views

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write one column of keys and values, [R,H,1,D] each, and return the windows, [R,H,W,D] each."""
        key_column, keys, value_column, values = self._views[4 * layer_idx : 4 * layer_idx + 4]
        key_column.copy_(key_states)
        value_column.copy_(value_states)
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._views[1].shape[2] - 1

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self._views[1].shape[2], 0


def row_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of one new token per row, two batched products; prompts go to transformers' own sdpa function.

    query [R,heads,1,D], key and value [R,H,W,D], mask [R,1,1,W] additive -> [R,1,heads,D]. Query heads that share a
    key-value head are one matrix, so grouped-query attention copies no key. On a CPU this is 2 to 6 times as fast as
    scaled_dot_product_attention, whose kernels are made for long queries.
    """
    # Only one-token steps are recorded (see step.py), and a recording may not branch on a size.
    one = torch.jit.is_tracing() or query.shape[2] == 1  # type: ignore[reportPrivateImportUsage]
    if not one or kwargs.get("softcap") is not None or kwargs.get("position_bias") is not None:
        attend = AttentionInterface()["sdpa"]
        return attend(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    rows, heads, _, size = query.shape
    shared = key.shape[1]
    scale = size**-0.5 if scaling is None else scaling
    packed = query.reshape(rows * shared, heads // shared, size) * scale
    scores = torch.bmm(packed, key.flatten(0, 1).transpose(1, 2))
    if attention_mask is not None:
        scores.view(rows, heads, -1).add_(attention_mask[:, 0])
    weight = torch.softmax(scores, -1, dtype=torch.float32).to(value.dtype)
    return torch.bmm(weight, value.flatten(0, 1)).view(rows, 1, heads, -1), None


AttentionInterface.register(ATTENTION, row_attention)
