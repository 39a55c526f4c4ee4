"""Keys and values of the rows being sampled: one window that all rows share, written in place.

Every row ends at the same column, so a step writes one column for all rows and reads one slice, whatever the lengths of
their prompts. A row that came later, or has a shorter prompt, starts later; a mask hides what lies before its start.
A finished row is replaced by moving the last live row into its place: only that row is copied.

The memory has few more columns than the window, and is laid out anew in a spare buffer when these are used up: what a
step reads then lies nearly in one piece, which a processor fetches far ahead. With room for 64 columns from the start
the products of a step take 1.3 to 2.5 times as long, and the copies a tenth of that (docs/dev/log.md).

    column   t-6 t-5 t-4 t-3 t-2 t-1  t
    row 0     P   P   P   P   a   a   .      P prompt, a sampled, . to be written next
    row 1     -   -   P   P   a   a   .      - hidden by the mask
    row 2     -   -   -   P   P   P   .      admitted just now

Layers with a sliding window have columns of their own, fewer (columns.py). What other layers keep of a row has no
columns (states.py).

Shapes: R live rows, H key-value heads, D head size, W columns in the window. Columns are counted from the first one
ever used.

Held are the keys and values of completions that have ended, for requests that go on from them: the earlier turns of an
episode. A completion's last token has been drawn but not run, so what is held ends before it. A request that goes on
runs that token and what came behind it:

    turn t       p p p p a a a         p prompt, a sampled
    held         p p p p a a
    turn t + 1   p p p p a a|a o o     o the environment's; what is behind the bar is run

Keys are held after their rotation: they are right at their positions, in whatever columns they are put. What is held
takes, beside the cache of the call that goes on from it,

    tokens of the sequences x layers x 2 x key-value heads x head size x bytes of a number
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from groupwise.engines.local.columns import ONE_KIND, LayerColumns, LayerWindows
from groupwise.engines.local.states import RowStates


@dataclass(frozen=True)
class PrefilledPrompts:
    """Prompts that have been through the model once, padded on the left.

    tokens        P prompts
    keys, values  per layer that has them [P,H,width,D]
    length        [P] int64, tokens
    logits        [P,V], for the first sampled token
    routes        per prompt [length,L,K] on the CPU, the experts chosen; empty where routes are not asked for
    states        per state of the layers [P,...]
    """

    tokens: tuple[tuple[int, ...], ...]
    keys: list[Tensor]
    values: list[Tensor]
    length: Tensor
    logits: Tensor
    routes: tuple[Tensor, ...] = ()
    states: Sequence[Tensor] = ()

    @property
    def width(self) -> int:
        return self.keys[0].shape[2] if self.keys else 0

    def only(self, index: int) -> PrefilledPrompts:
        """Copy one of them to memory of its own."""
        one = slice(index, index + 1)
        return PrefilledPrompts(
            self.tokens[one],
            [keys[one].clone() for keys in self.keys],
            [values[one].clone() for values in self.values],
            self.length[one].clone(),
            self.logits[one].clone(),
            self.routes[one],
            [state[one].clone() for state in self.states],
        )


def joined(parts: Sequence[PrefilledPrompts], order: Sequence[int]) -> PrefilledPrompts:
    """Join prompts that were run in parts; `order` lists the places of all of them, part after part, in the result."""
    width, back = max(part.width for part in parts), sorted(range(len(order)), key=order.__getitem__)
    at = torch.tensor(back, device=parts[0].logits.device)

    def whole(tensors: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(tensors)).index_select(0, at)

    def padded(layers: Sequence[Tensor]) -> Tensor:
        return whole([pad(layer, (0, 0, width - layer.shape[2], 0)) for layer in layers])

    tokens, routes = ([one for part in parts for one in of(part)] for of in (lambda p: p.tokens, lambda p: p.routes))
    return PrefilledPrompts(
        tuple(tokens[i] for i in back),
        [padded(layers) for layers in zip(*(part.keys for part in parts), strict=True)],
        [padded(layers) for layers in zip(*(part.values for part in parts), strict=True)],
        whole([part.length for part in parts]),
        whole([part.logits for part in parts]),
        tuple(routes[i] for i in back if routes),
        [whole(states) for states in zip(*(part.states for part in parts), strict=True)],
    )


class RowCache:
    """Memory for one-token steps of many rows. A step is prepare, the model on `views`, advance.

    With no live rows it can be used again for other prompts: what it holds from before is never looked at.

    windows  of the model's layers
    rows     live rows; memory behind them is spare
    column   the column that the next step writes
    start    [spare and live rows] int64, the column of each row's first prompt token
    """

    def __init__(self, windows: LayerWindows = ONE_KIND) -> None:
        self.windows = windows
        self.rows = 0
        self.column = 0
        self.start = torch.zeros(0, dtype=torch.long)
        self._first = 0
        self._even = True
        self._kinds = [LayerColumns(kind) for kind in windows.kinds]
        self._states = RowStates()
        self._position = torch.zeros(1, 1, dtype=torch.long)

    @property
    def size(self) -> int:
        """Bytes of keys, values and states in memory."""
        return sum(columns.size for columns in self._kinds) + self._states.size

    def insert(self, prompts: PrefilledPrompts, source: Tensor, ahead: int, rows: int = 0) -> None:
        """Add new rows behind the live ones: row i begins with prompt source[i].

        ahead  columns that may follow
        rows   how many there will be once those that come next are here too: room for all of them is made at once
        """
        begin, end = self.rows, self.rows + len(source)
        if not self.rows:
            self._first = self.column
        if self.start.device != prompts.length.device:
            self.start, self._position = prompts.length[:0], self._position.to(prompts.length.device)
        given = list(zip(self._kinds, self.windows.by_kind(prompts.keys, prompts.values), strict=True))
        for columns, layers in given:
            columns.begin(layers)
        self._reserve(max(end, rows), prompts.width, ahead)
        for columns, layers in given:
            columns.insert(begin, layers, source, self.column)
        self._states.insert(begin, prompts.states, source, len(self.start))
        self.start[begin:end] = self.column - prompts.length[source]
        self.rows = end
        self._frame()

    def move(self, to: Tensor, origin: Tensor, rows: int) -> None:
        """Copy rows `origin` over rows `to`, and keep the first `rows`."""
        self.start[to] = self.start[origin]
        for memory in (*self._kinds, self._states):
            memory.move(to, origin)
        self.rows = rows
        if rows:
            self._frame()

    def has_whole(self, rows: Tensor) -> Tensor:
        """Tell which of the rows every layer has from their first token on, [n] bool; none if layers have states, or
        keep something else.
        """
        if self._states.size or self.windows.uncached:
            return torch.zeros_like(rows, dtype=torch.bool)
        return self.start[rows] >= max(columns.base for columns in self._kinds)

    def sequences(self, rows: Tensor, ends: Tensor) -> list[tuple[Tensor, ...]]:
        """Copy each row's keys and values, in turn, [H,n,D], from its start to before column ends[i].

        Each is a copy of its own size: a part of a common block would hold the block, which is as wide as the longest.
        """
        starts, stops = (columns.tolist() for columns in (self.start[rows], ends))
        return [
            tuple(self.windows.in_order([columns.copied(row, start, stop) for columns in self._kinds], each=2))
            for row, start, stop in zip(rows.tolist(), starts, stops, strict=True)
        ]

    def prepare(self, ahead: int, last: int) -> tuple[Tensor, Sequence[Tensor]]:
        """Make room for the next step -> its positions, [R,1] or [1,1], and its masks, or none if none is needed.

        last  the model's last position: a finished row may run past it until it is dropped; what it draws is not used
        """
        self._reserve(self.rows, 0, ahead)
        if self._even:
            return self._position.fill_(self.column - self._first), ()
        return (self.column - self.start[: self.rows]).clamp_(max=last)[:, None], self.masks()

    def masks(self) -> Sequence[Tensor]:
        """Return, of each kind of layers, [R,1,1,W], 0 where a row may look and -inf where it may not."""
        return [columns.mask(self.start, self.rows, self._first, self.column) for columns in self._kinds]

    def advance(self) -> None:
        """Go to the next column, once a step has written this one."""
        self.column += 1

    def views(self) -> list[Tensor]:
        """Return four views a layer: the column to write, of keys and of values, [R,H,1,D]; their windows [R,H,W,D].
        Behind them stand the states, [R,...].
        """
        columns = [columns.views(self.rows, self._first, self.column) for columns in self._kinds]
        return self.windows.in_order(columns, each=4) + self._states.views(self.rows)

    def _frame(self) -> None:
        low, high = torch.aminmax(self.start[: self.rows])
        self._first, self._even = int(low), bool(low == high)

    def _reserve(self, rows: int, before: int, ahead: int) -> None:
        """Make room for `rows` rows, `before` columns ahead of `column`, and `column` itself."""
        if rows > len(self.start):
            start = self.start.new_zeros(rows)
            start[: self.rows] = self.start[: self.rows]
            self.start = start
        seen = self.column - self._first
        for columns in self._kinds:
            columns.reserve(self.rows, len(self.start), before, seen, ahead, self.column)


@dataclass(frozen=True)
class Held:
    """Keys and values of a sequence of T tokens, under the weights that the engine has.

    tokens  T ids
    memory  of each layer the keys, then the values, [H,T,D]: H key-value heads, D head size
    routes  [T,L,K] on the CPU, the experts chosen; None if routes are not asked for
    """

    tokens: tuple[int, ...]
    memory: tuple[Tensor, ...]
    routes: Tensor | None = None


#: What is held, by its ids.
Store = dict[tuple[int, ...], Held]


def first_tokens(sequences: Sequence[Held], counts: Sequence[int]) -> list[Tensor]:
    """Join, of each layer, the keys, then the values, of the first counts[i] tokens of each sequence, [P,H,W,D].

    W is the largest count; fewer are padded with zeros on the left.
    """
    layers = zip(*(sequence.memory for sequence in sequences), strict=True)
    return [
        pad_sequence(
            [tensor[:, :count].transpose(0, 1) for tensor, count in zip(layer, counts, strict=True)],
            batch_first=True,
            padding_side="left",
        ).transpose(1, 2)
        for layer in layers
    ]
