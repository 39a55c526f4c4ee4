"""Where the tokens of rows lie in a forward: in padded rows, or in one line without padding.

In a line the prompt of a group stands once, and each of its completions attends to it:

    rows           p p p a a .      line       p p p a b b b
                   p p p b b b b    positions  0 1 2 3 3 4 5

The last token of a row is not run: nothing is predicted from it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

#: A row joins a block of longer rows while it has at least this share of their length.
TIGHT = 0.75


@dataclass(frozen=True)
class Block:
    """Sequences of a line that attend together, padded to the longest of them.

    own     [n,q] places in the line of each sequence's tokens; where `inside` is False, any place
    inside  [n,q] bool
    prompt  [u,p] places of the prompts that the sequences go on from, or None where they have none
    owner   [n] which of the u prompts is a sequence's
    before  [n] tokens of it
    """

    own: Tensor
    inside: Tensor
    prompt: Tensor | None = None
    owner: Tensor | None = None
    before: Tensor | None = None

    @property
    def keys(self) -> Tensor:
        """[n,p+q] places of what each sequence's tokens may attend to: its prompt's tokens, then its own."""
        if self.prompt is None or self.owner is None:
            return self.own
        return torch.cat([self.prompt[self.owner], self.own], dim=1)

    def on(self, device: torch.device | str) -> "Block":
        """The same with its tensors on a device."""
        prompt, owner, before = (x if x is None else x.to(device) for x in (self.prompt, self.owner, self.before))
        return Block(self.own.to(device), self.inside.to(device), prompt=prompt, owner=owner, before=before)

    def mask(self, window: int | None = None) -> Tensor:
        """[n or 1,1,q,p+q] bool: which of the prompt's and of its own tokens each token attends to.

        A window is that of a model's sliding attention: the tokens less than `window` positions back.
        """
        columns = torch.arange(self.own.shape[1], device=self.own.device)
        back = columns[:, None] - columns
        visible = (back >= 0) & (back < (window or len(columns)))
        if self.prompt is None or self.before is None:
            return visible[None, None]
        start, keys = self.before[:, None, None], torch.arange(self.prompt.shape[1], device=self.own.device)
        seen = (keys < start).expand(-1, len(columns), -1)
        if window is not None:
            seen = seen & (start + columns[:, None] - keys < window)
        return torch.cat([seen, visible.expand(len(start), -1, -1)], dim=-1)[:, None]


@dataclass(frozen=True)
class Line:
    """How the tokens of a line attend: blocks of sequences that begin it, and of those that go on from a prompt.

    queries  [Q] places of the blocks' own tokens, block after block, padding included
    keys     [K] places of what they attend to, block after block
    order    [S] for each token of the line its place among `queries`
    """

    blocks: tuple[Block, ...]
    queries: Tensor
    keys: Tensor
    order: Tensor

    @classmethod
    def of(cls, blocks: Sequence[Block], total: int) -> "Line":
        """The line of `total` tokens that these blocks are."""
        queries = torch.cat([block.own.flatten() for block in blocks])
        keys = torch.cat([block.keys.flatten() for block in blocks])
        return cls(tuple(blocks), queries=queries, keys=keys, order=_order(blocks, total))

    def on(self, device: torch.device | str) -> "Line":
        """The same with its tensors on a device."""
        blocks = tuple(block.on(device) for block in self.blocks)
        return Line(blocks, self.queries.to(device), self.keys.to(device), self.order.to(device))


@dataclass(frozen=True)
class Layout:
    """The tokens of n rows as one forward runs them.

    ids        [R,S]
    place      [n,T-1] index into the R*S tokens that are run, of row i's token at column t; -1 where it is not run
    positions  [R,S] of each token in its own row
    tokens     tokens that are run, padding not counted
    line       how they attend where R is 1 and rows share it; None: each row of `ids` is a row
    """

    ids: Tensor
    place: Tensor
    positions: Tensor
    tokens: int
    line: Line | None = None

    @property
    def run(self) -> Tensor:
        """[n,T-1] bool: the tokens of the rows that are run, all but the last of each."""
        return self.place >= 0

    def predecessors(self, wanted: Tensor) -> Tensor:
        """wanted [n,T] bool, not in column 0 -> the places from which those tokens are predicted, row after row."""
        return self.place[wanted[:, 1:]] if wanted.shape[1] > 1 else self.place[:0, 0]


def padded(tokens: Tensor, length: Tensor) -> Layout:
    """tokens [n,T], length [n] -> the rows as they are, less their last column."""
    rows, width = tokens.shape[0], max(1, tokens.shape[1] - 1)
    places = torch.arange(rows * width, device=tokens.device).view(rows, width)
    columns = torch.arange(width, device=tokens.device)
    place = places.where(columns < (length - 1)[:, None], -1)
    ran = int(length.clamp(max=width).sum())
    return Layout(tokens[:, :width], place, columns.expand(rows, -1), ran)


def packed(tokens: Tensor, length: Tensor, prompt: Tensor, family: Tensor) -> Layout:
    """tokens [n,T], length, prompt (tokens of it), family [n] -> one line; rows of one family begin with one prompt.

    >>> tokens = torch.tensor([[7, 7, 7, 1, 2, 0, 0], [7, 7, 7, 3, 4, 5, 6]])
    >>> line = packed(tokens, torch.tensor([5, 7]), torch.tensor([3, 3]), torch.tensor([0, 0]))
    >>> line.ids.tolist(), line.positions.tolist()
    ([[7, 7, 7, 1, 3, 4, 5]], [[0, 1, 2, 3, 3, 4, 5]])
    """
    device, width = tokens.device, max(1, tokens.shape[1] - 1)
    run = (length - 1).clamp(min=0).cpu()
    _, owner = family.cpu().unique(return_inverse=True)
    first = prompt.cpu().minimum(run)
    before = torch.zeros(int(owner.max()) + 1, dtype=torch.long).scatter_reduce(0, owner, first, "amax")
    own = run - first
    begins, goes_on = _starts(before), int(before.sum()) + _starts(own)
    columns = torch.arange(width)
    inside = columns < run[:, None]
    place = torch.where(columns < first[:, None], begins[owner, None] + columns, (goes_on - first)[:, None] + columns)
    total = int(before.sum() + own.sum())
    ids, positions = torch.zeros(2, total, dtype=torch.long)
    ids[place[inside]] = tokens[:, :width].cpu()[inside]
    positions[place[inside]] = columns.expand(len(run), -1)[inside]
    blocks = [*_beginning(begins, before), *_going_on(goes_on, own, owner, begins, before)]
    line = Line.of(blocks, total).on(device)
    place = place.masked_fill(~inside, -1)
    return Layout(ids[None].to(device), place.to(device), positions[None].to(device), total, line)


def moved(layout: Layout, device: torch.device | str) -> Layout:
    """The layout on a device."""
    line = layout.line and layout.line.on(device)
    ids, place, positions = (x.to(device) for x in (layout.ids, layout.place, layout.positions))
    return Layout(ids, place, positions, layout.tokens, line)


def _starts(lengths: Tensor) -> Tensor:
    return lengths.cumsum(0) - lengths


def _beginning(begins: Tensor, lengths: Tensor) -> list[Block]:
    """Blocks of the sequences that begin a line: prompts."""
    return [Block(*_places(begins[rows], lengths[rows])) for rows in _of_like_length(lengths)]


def _going_on(starts: Tensor, lengths: Tensor, owner: Tensor, begins: Tensor, before: Tensor) -> list[Block]:
    """Blocks of the sequences that go on from a prompt: completions."""
    blocks = []
    for rows in _of_like_length(lengths):
        prompts, which = owner[rows].unique(return_inverse=True)
        prompt, _ = _places(begins[prompts], before[prompts])
        own, inside = _places(starts[rows], lengths[rows])
        blocks.append(Block(own=own, inside=inside, prompt=prompt, owner=which, before=before[owner[rows]]))
    return blocks


def _of_like_length(lengths: Tensor) -> list[Tensor]:
    """Row indices in parts of nearly one length, the longest first; rows of length 0 are in none.

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
    """Sequences' first places and lengths [n] -> the places of their tokens [n,q], and which of these are inside."""
    columns = torch.arange(int(lengths.max()))
    inside = columns < lengths[:, None]
    return starts[:, None] + columns * inside, inside


def _order(blocks: Sequence[Block], total: int) -> Tensor:
    inside = torch.cat([block.inside.flatten() for block in blocks])
    order = torch.empty(total, dtype=torch.long)
    order[torch.cat([block.own.flatten() for block in blocks])[inside]] = inside.nonzero()[:, 0]
    return order
