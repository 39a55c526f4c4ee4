"""A packed sequence as one attention: torch's flex attention under a mask made from where rows part.

The tokens of a line stand in depth-first order: those whose rows pass through token k are the ones from k up to
`end[k]`. So token q attends to token k exactly if

    k <= q < end[k]        and, in a layer with a window of w,        position[q] < position[k] + w

One kernel for the whole line, which leaves out blocks of 128 x 128 tokens in which nothing is seen: two numbers for a
token are sent to the device, and no S x S table is made there.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from groupwise.models.precision import computes_in

#: The side of a mask's blocks, tokens: that of torch's kernels. A line has two at least, because torch compiles a
#: dimension of size 1 apart from all other sizes.
SIDE, LEAST = 128, 2
#: Windows of a model's layers, tokens back that one attends to; None for a layer that attends to its whole row.
Windows = tuple[int | None, ...]
#: A mask for each window.
Masks = Mapping[int | None, BlockMask]
#: batch, head, q, k -> whether token q attends to token k.
Sees = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def filled_up(tokens: int) -> int:
    """Return the tokens of a line of whole blocks that holds so many."""
    return max(LEAST, -(-tokens // SIDE)) * SIDE


@dataclass(frozen=True)
class Tree:
    """Packed sequence: where the rows through each of its tokens end.

    end       [S] int32, place behind the last token whose row passes through it; S is whole blocks, and what fills the
              line up sees itself alone
    position  [S] int32, of each token in its own row
    windows   those that masks are made for: of the model's layers, as far as they are shorter than a row
    others    windows that no row is longer than
    """

    end: Tensor
    position: Tensor
    windows: Windows
    others: Windows = ()

    @classmethod
    def of(cls, positions: Tensor, tokens: int, windows: Windows) -> "Tree":
        """positions [S] of a line of `tokens` tokens, filled up -> its tree."""
        end = torch.arange(1, len(positions) + 1)
        end[:tokens] = ends(positions[:tokens])
        longest = int(positions.max()) + 1 if tokens else 0
        short = tuple(window for window in windows if window is not None and window < longest)
        others = tuple(window for window in windows if window is not None and window not in short)
        whole = (None,) if others or None in windows else ()
        return cls(end.int(), positions.int(), (*whole, *short), others)

    def masks(self) -> Masks:
        """Make the mask for each window, on the device where the tree is."""
        own = {window: self.mask(window) for window in self.windows}
        return {**own, **dict.fromkeys(self.others, own.get(None))}  # type: ignore[dict-item]

    def sees(self, window: int | None) -> Sees:
        """Return flex attention's function of two tokens for layers with such a window."""
        end, position = self.end, self.position
        if window is None:
            return lambda batch, head, q, k: (k <= q) & (q < end[k])
        reach = position + window
        return lambda batch, head, q, k: (k <= q) & (q < end[k]) & (position[q] < reach[k])

    def dense(self, window: int | None) -> Tensor:
        """Return the table [S,S] bool of that function."""
        return dense(self.sees(window), len(self.end), self.end.device)

    def mask(self, window: int | None) -> BlockMask:
        """Make the mask of layers with such a window, from the least and the most of each block's tokens alone."""
        end, position = self.end.view(-1, SIDE), self.position.view(-1, SIDE)
        number = torch.arange(len(end), device=end.device)
        q, k = number[:, None], number
        some = (q == k) | ((q > k) & (end.amax(1) > q * SIDE))
        every = (q > k) & (end.amin(1) >= (q + 1) * SIDE)
        if window is not None:
            least, most = position.amin(1), position.amax(1)
            some = some & (least[:, None] < most + window)
            every = every & (most[:, None] < least + window)
        blocks = [part for table in (some & ~every, every) for part in _in_order(table)]
        seen = BlockMask.from_kv_blocks(
            *blocks, BLOCK_SIZE=SIDE, mask_mod=self.sees(window), seq_lengths=(len(self.end), len(self.end))
        )
        for part in seen.as_tuple():
            if isinstance(part, Tensor):
                _of_any_length(part, *range(2, part.dim()))
        return seen


def ends(positions: Tensor) -> Tensor:
    """positions [S] of tokens in depth-first order -> for each the place behind the last token whose row passes it.

    >>> ends(torch.tensor([0, 1, 2, 3, 2, 0])).tolist()
    [5, 5, 4, 4, 5, 6]
    """
    end = torch.full_like(positions, len(positions))
    if not len(positions):
        return end
    begins = (positions.diff() != 1).nonzero()[:, 0] + 1
    starts = [0, *begins.tolist(), len(positions)]
    path, depth = torch.zeros(int(positions.max()) + 1, dtype=torch.long), 0  # the row's places so far, by position
    for start, stop in pairwise(starts):
        parts = int(positions[start])
        end[path[parts:depth]] = start
        depth = parts + stop - start
        path[parts:depth] = torch.arange(start, stop)
    return end


def dense(sees: Any, tokens: int, device: torch.device) -> Tensor:
    """Return the table [S,S] bool of a function of two tokens."""
    places, none = torch.arange(tokens, device=device), torch.zeros((), dtype=torch.long, device=device)
    return sees(none, none, places[:, None], places)


def attend_flex(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    line: Masks | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """query [1,h,S,D], key, value [1,h or fewer,S,D] -> [1,S,h,D], as a model of transformers asks for it.

    Raises NotImplementedError if the model asks for what this attention does not do.
    """
    require_plain(others)
    if line is None or sliding_window not in line:
        raise NotImplementedError(f"attention in a line without a mask for a window of {sliding_window}")
    compute, mask = computes_in(query), line[sliding_window]
    query, key, value = query.to(compute), key.to(compute), value.to(compute)
    grouped = query.shape[1] != key.shape[1]
    with torch.autocast(query.device.type, enabled=False):
        if dropout:  # no kernel drops out; a model that does so where it must not is to be found, as in rows
            seen = dense(mask.mask_mod, query.shape[2], query.device)
            out = scaled_dot_product_attention(query, key, value, seen, dropout, scale=scaling, enable_gqa=grouped)
        else:
            out = _kernel(query.device.type)(query, key, value, block_mask=mask, scale=scaling, enable_gqa=grouped)
    return out.transpose(1, 2), None


def require_plain(asked: Mapping[str, Any]) -> None:
    """Raise NotImplementedError if a model asks attention for more than a softmax over keys."""
    more = [name for name in ("softcap", "s_aux", "position_bias") if asked.get(name) is not None]
    if more:
        raise NotImplementedError(f"attention in a line with {more[0]}")


def _kernel(kind: str) -> Callable[..., Tensor]:
    """Return flex attention as it runs here: compiled by itself on a device that has a kernel of it; a part of what is
    compiled where that is a layer.
    """
    return flex_attention if kind == "cpu" or torch.compiler.is_compiling() else compiled()


@cache
def compiled(backend: Any = "inductor") -> Callable[..., Tensor]:
    """Return flex attention compiled once for lines of any length: uncompiled it would make S x S scores."""
    # Whole or not at all: torch would go on uncompiled, without a word, after a few kinds of calls.
    whole = torch.compile(flex_attention, dynamic=True, fullgraph=True, backend=backend)

    def attend(query: Tensor, key: Tensor, value: Tensor, **settings: Any) -> Tensor:
        for x in (query, key, value):
            _of_any_length(x, 2)
        return whole(query, key, value, **settings)

    return attend


def _of_any_length(x: Tensor, *dimensions: int) -> None:
    """Tell torch.compile that these vary, whatever other sizes they happen to equal when it first sees them."""
    torch._dynamo.maybe_mark_dynamic(x, dimensions)


def _in_order(table: Tensor) -> tuple[Tensor, Tensor]:
    """Map [q,k] bool -> how many blocks each q sees, and these in order in front of the others, [1,1,...] int32."""
    table = table[None, None].int()
    return table.sum(-1).int(), table.argsort(dim=-1, descending=True, stable=True).int()
