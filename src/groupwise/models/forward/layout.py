"""Layout of the tokens of rows in a forward: padded rows, or one packed line without padding and repetition.

In a line what rows have in common at their start stands once: a prompt, or the opening of two completions.

    rows           p p p a a .      line       p p p a a b c c
                   p p p a b .      positions  0 1 2 3 4 4 3 4
                   p p p c c .

The last token of a row is not run: nothing is predicted from it.

An episode whose earlier turns are written anew is a row of several parts, which the model reads each by itself, its
positions from 0; `read_from` (Batch) says where they begin.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from groupwise.core.prefixes import prefix_order
from groupwise.models.forward.flex import Tree, Windows, filled_up

#: A row joins a block of longer rows while it has at least this share of their length.
TIGHT = 0.75


@dataclass(frozen=True)
class Block:
    """Sequences of a line that attend together, padded to the longest of them.

    own     [n,q] places in the line of each sequence's tokens; where `inside` is False, any place
    inside  [n,q] bool
    path    [n,p] places of the tokens that precede each sequence in its row, or None if it begins its row
    before  [n] how many they are; behind them `path` holds any place
    """

    own: Tensor
    inside: Tensor
    path: Tensor | None = None
    before: Tensor | None = None

    @property
    def keys(self) -> Tensor:
        """[n,p+q] places of what each sequence's tokens may attend to: those that precede it, then its own."""
        return self.own if self.path is None else torch.cat([self.path, self.own], dim=1)

    def mask(self, window: int | None = None) -> Tensor:
        """Return [n or 1,1,q,p+q] bool: which of the tokens before it and of its own each token attends to.

        A window is that of a model's sliding attention: the tokens less than `window` positions back.
        """
        columns = torch.arange(self.own.shape[1], device=self.own.device)
        back = columns[:, None] - columns
        visible = (back >= 0) & (back < (window or len(columns)))
        if self.path is None or self.before is None:
            return visible[None, None]
        start, keys = self.before[:, None, None], torch.arange(self.path.shape[1], device=self.own.device)
        seen = (keys < start).expand(-1, len(columns), -1)
        if window is not None:
            seen = seen & (start + columns[:, None] - keys < window)
        return torch.cat([seen, visible.expand(len(start), -1, -1)], dim=-1)[:, None]


@dataclass(frozen=True)
class PackedSequence:
    """Packed sequence: how its tokens attend, in blocks of sequences that begin a row, and of those that go on from
    another row.

    queries  [Q] places of the blocks' own tokens, block after block, padding included
    keys     [K] places of what they attend to, block after block
    order    [S] for each token of the line its place among `queries`
    """

    blocks: tuple[Block, ...]
    queries: Tensor
    keys: Tensor
    order: Tensor

    @classmethod
    def of(cls, blocks: Sequence[Block], total: int) -> "PackedSequence":
        """Return the line of `total` tokens that these blocks are."""
        queries = torch.cat([block.own.flatten() for block in blocks])
        keys = torch.cat([block.keys.flatten() for block in blocks])
        inside = torch.cat([block.inside.flatten() for block in blocks])
        order = torch.empty(total, dtype=torch.long)
        order[queries[inside]] = inside.nonzero()[:, 0]
        return cls(tuple(blocks), queries=queries, keys=keys, order=order)


@dataclass(frozen=True)
class Layout:
    """The tokens of n rows as one forward runs them.

    ids        [R,S]
    place      [n,T-1] index into the R*S tokens that are run, of row i's token at column t; -1 where it is not run
    positions  [R,S] of each token in its own row
    tokens     tokens that are run, padding not counted
    line       how they attend where R is 1 and rows share it, in blocks or as one; None: each row of `ids` is a row
    """

    ids: Tensor
    place: Tensor
    positions: Tensor
    tokens: int
    line: PackedSequence | Tree | None = None

    @property
    def run(self) -> Tensor:
        """[n,T-1] bool: the tokens of the rows that are run, all but the last of each."""
        return self.place >= 0

    def predecessors(self, wanted: Tensor) -> Tensor:
        """wanted [n,T] bool, not in column 0 -> the places from which those tokens are predicted, row after row."""
        return self.place[wanted[:, 1:]] if wanted.shape[1] > 1 else self.place[:0, 0]


@dataclass(frozen=True)
class Parts:
    """The m parts of rows that a model reads each by itself: columns start..stop of a row, [m] each."""

    row: Tensor
    start: Tensor
    stop: Tensor

    @classmethod
    def of(cls, length: Tensor, read_from: Tensor) -> "Parts":
        """length [n], read_from [n,T] -> the parts in order.

        >>> Parts.of(torch.tensor([5]), torch.tensor([[0, 0, 0, 3, 3]])).stop
        tensor([3, 5])
        """
        columns = torch.arange(read_from.shape[1], device=read_from.device)
        row, start = ((read_from == columns) & (columns < length[:, None])).nonzero(as_tuple=True)
        stop = length[row]
        stop[:-1] = torch.where(row[1:] == row[:-1], start[1:], stop[:-1])
        return cls(row, start, stop)

    @property
    def length(self) -> Tensor:
        return self.stop - self.start

    def taken(self, table: Tensor) -> Tensor:
        """Map [n,T] of the rows -> [m,W] of the parts, 0 behind their ends."""
        columns = torch.arange(int(self.length.max()), device=table.device)
        at = (self.start[:, None] + columns).clamp(max=table.shape[1] - 1)
        return table[self.row[:, None], at] * (columns < self.length[:, None])

    def given_back(self, table: Tensor, shape: torch.Size) -> Tensor:
        """Map [m,W] of the parts -> [n,T] of the rows, 0 where no part is.

        >>> parts = Parts.of(torch.tensor([5]), torch.tensor([[0, 0, 0, 3, 3]]))
        >>> rows = torch.tensor([[5, 6, 7, 8, 9]])
        >>> parts.given_back(parts.taken(rows), rows.shape).tolist()
        [[5, 6, 7, 8, 9]]
        """
        part, column = (torch.arange(table.shape[1], device=table.device) < self.length[:, None]).nonzero(as_tuple=True)
        where = self.row[part], self.start[part] + column
        return table.new_zeros(shape).index_put(where, table[part, column])

    def placed(self, layout: Layout, rows: int, width: int) -> Layout:
        """Return a layout of the parts as one of the `rows`, of `width` columns each."""
        where = layout.place >= 0
        part, column = where.nonzero(as_tuple=True)
        place = torch.full((rows, max(1, width - 1)), -1, device=layout.place.device)
        place[self.row[part], self.start[part] + column] = layout.place[where]
        return Layout(layout.ids, place, layout.positions, layout.tokens, layout.line)


def padded(tokens: Tensor, length: Tensor, read_from: Tensor | None = None) -> Layout:
    """tokens [n,T], length [n] -> the rows as they are, less their last column; or their parts."""
    if read_from is not None:
        parts = Parts.of(length, read_from)
        return parts.placed(padded(parts.taken(tokens), parts.length), *tokens.shape)
    rows, width = tokens.shape[0], max(1, tokens.shape[1] - 1)
    places = torch.arange(rows * width, device=tokens.device).view(rows, width)
    columns = torch.arange(width, device=tokens.device)
    place = places.where(columns < (length - 1)[:, None], -1)
    ran = int(length.clamp(max=width).sum())
    return Layout(tokens[:, :width], place, columns.expand(rows, -1), ran)


def packed(
    tokens: Tensor,
    length: Tensor,
    keys: Tensor | None = None,
    read_from: Tensor | None = None,
    windows: Windows | None = None,
) -> Layout:
    """tokens [n,T], length [n] -> one line, in which rows share what their keys have in common at their start.

    keys     [n,T] numbers >= 0 that tell apart what a token's computation depends on; None: the tokens
    windows  of the model's layers: the line attends as one, filled up to whole blocks of a mask; None: it attends in
             blocks of sequences

    >>> tokens = torch.tensor([[7, 7, 7, 1, 2, 0, 0], [7, 7, 7, 3, 4, 5, 6]])
    >>> line = packed(tokens, torch.tensor([5, 7]))
    >>> line.ids.tolist(), line.positions.tolist()
    ([[7, 7, 7, 1, 3, 4, 5]], [[0, 1, 2, 3, 3, 4, 5]])
    """
    if read_from is not None:
        parts = Parts.of(length, read_from)
        own_keys = None if keys is None else parts.taken(keys.to(tokens.device))
        return parts.placed(packed(parts.taken(tokens), parts.length, own_keys, windows=windows), *tokens.shape)
    device, width = tokens.device, max(1, tokens.shape[1] - 1)
    run = (length - 1).clamp(min=0).cpu()
    order, shared = prefix_order((tokens if keys is None else keys).cpu(), run)
    columns, run = torch.arange(width), run[order]
    own = run - shared
    starts, total = own.cumsum(0) - own, int(own.sum())
    new = (columns >= shared[:, None]) & (columns < run[:, None])
    place = torch.where(new, (starts - shared)[:, None] + columns, -1)
    place = place.cummax(0).values  # what a row shares stands where the last row that ran it has it
    ids, positions = torch.zeros(2, total if windows is None else filled_up(total), dtype=torch.long)
    ids[place[new]] = tokens[:, :width].cpu()[order][new]
    positions[place[new]] = columns.expand(len(run), -1)[new]
    line: PackedSequence | Tree
    if windows is None:
        line = PackedSequence.of(_blocks(starts, own, place, shared), total)
    else:
        line = Tree.of(positions, total, windows)
    in_rows = torch.empty_like(place)
    in_rows[order] = place.masked_fill(columns >= run[:, None], -1)
    return Layout(ids[None].to(device), in_rows.to(device), positions[None].to(device), total, moved(line, device))


R = TypeVar("R", bound=Layout | PackedSequence | Block | Tree)


def moved(record: R, device: torch.device | str, move: Callable[[Tensor, Any], Tensor] = Tensor.to) -> R:
    """Return a record with its tensors, and those of the records in it, on a device, brought there by `move`."""

    def on(value: Any) -> Any:
        if isinstance(value, Tensor):
            return move(value, device)
        if isinstance(value, tuple):
            return tuple(map(on, value))
        return moved(value, device, move) if isinstance(value, Layout | PackedSequence | Block | Tree) else value

    return replace(record, **{name: on(value) for name, value in vars(record).items()})


def _blocks(starts: Tensor, own: Tensor, place: Tensor, shared: Tensor) -> list[Block]:
    """Return the sequences that rows do not share with the row before: `own` tokens from `starts`."""
    begins = [Block(*_places(starts[rows], own[rows])) for rows in _of_like_length(own * (shared == 0))]
    goes_on = []
    for rows in _of_like_length(own * (shared > 0)):
        before, places = shared[rows], _places(starts[rows], own[rows])
        path = place[rows, : int(before.max())].clamp(min=0)
        goes_on.append(Block(*places, path=path, before=before))
    return begins + goes_on


def _of_like_length(lengths: Tensor) -> list[Tensor]:
    """Return the row indices in parts of nearly one length, the longest first; rows of length 0 are in none.

    >>> [part.tolist() for part in _of_like_length(torch.tensor([4, 0, 10, 3, 9]))]
    [[2, 4], [0, 3]]
    """
    order = lengths.argsort(descending=True, stable=True)
    parts: list[list[int]] = []
    for row in order[lengths[order] > 0].tolist():
        if parts and lengths[row] >= TIGHT * lengths[parts[-1][0]]:
            parts[-1].append(row)
        else:
            parts.append([row])
    return [torch.tensor(part) for part in parts]


def _places(starts: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Map first places and lengths [n] of sequences -> the places of their tokens [n,q], and which are inside."""
    columns = torch.arange(int(lengths.max()))
    inside = columns < lengths[:, None]
    return starts[:, None] + columns * inside, inside
