"""Attention of slots by two Triton kernels a layer and one that joins their parts.

    partial  one program a key-value head, a place or slot, and a share of its columns: the mean o and the logarithm l
             of attention.py for all queries that read these keys. A prompt's keys are read once for all seats of a
             place; a slot's own only as far as it has any
    join     one program a slot and query head: the parts, and a sink if the model has them, as one attention

Products are in the type of the keys with float32 sums ("ieee": float32 is not rounded to TF32), all else in float32.
Sizes of heads are powers of two from 16 on; others, and values of another size than keys, attend plainly.
"""

# triton is not where there is no GPU, and calls of kernels are not typed.
# pyright: reportMissingImports=false, reportArgumentType=false, reportOperatorIssue=false, reportIndexIssue=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from groupwise.engines.local.slots.attention import Seating

#: Programs that fill a GPU: columns are shared out among so many, but for BLOCK columns each at least.
PROGRAMS, BLOCK = 512, 64
#: The smallest side of a product of blocks, and the most queries and columns of a program's; half as many where a key
#: has more than 256 bytes, so that two stages of them fit the 99 KB that the smallest cards have for a program.
LEAST, MOST = 16, 64
#: Bytes of the largest key.
LARGEST = 512


@triton.jit
def _over_columns(
    q,
    keys,
    values,
    first,
    stop,
    scale,
    keys_column,
    QUERIES: tl.constexpr,
    SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Attend from q [QUERIES,SIZE] to columns first..stop of a head -> the largest score and the sum of exponentials
    less it, [QUERIES] each, and the sum of values by these, [QUERIES,SIZE], float32.
    """
    place = tl.arange(0, SIZE)
    top = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    sums = tl.zeros([QUERIES, SIZE], tl.float32)
    for start in range(first, stop, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        seen = column < stop
        where = column[:, None] * keys_column + place[None, :]
        k = tl.load(keys + where, mask=seen[:, None], other=0.0)
        v = tl.load(values + where, mask=seen[:, None], other=0.0)
        score = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        score = tl.where(seen[None, :], score, float("-inf"))
        new = tl.maximum(top, tl.max(score, 1))
        shrink = tl.exp(top - new)
        weight = tl.exp(score - new[:, None])
        total = total * shrink + tl.sum(weight, 1)
        sums = sums * shrink[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
        top = new
    return top, total, sums


@triton.jit
def _partial(
    query,
    keys,
    values,
    seated,
    length,
    mean,
    log,
    scale,
    columns,
    extra,
    tiles,
    query_slot,
    query_head,
    keys_row,
    keys_head,
    keys_column,
    seated_row,
    mean_share,
    mean_slot,
    log_share,
    log_slot,
    SEATED: tl.constexpr,
    SEATS: tl.constexpr,
    SHARED: tl.constexpr,
    QUERIES: tl.constexpr,
    SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write of a row (a place, else a slot) one share of its columns, for the queries of some of its seats.

    columns  of a share;  extra  is added to `length`, so that a column's number serves
    tiles    programs that share a row's seats out among them
    """
    row, head, share = tl.program_id(0) // tiles, tl.program_id(1), tl.program_id(2)
    at = tl.arange(0, QUERIES)
    seat, own = tl.program_id(0) % tiles * (QUERIES // SHARED) + at // SHARED, at % SHARED
    if SEATED:
        whole = at < QUERIES // SHARED * SHARED
        slot = tl.load(seated + row * seated_row + seat, mask=whole & (seat < SEATS), other=-1)
    else:
        slot = tl.where(seat < 1, row, -1).to(tl.int64)
    there = slot >= 0
    slot = tl.where(there, slot, 0)
    heads = head * SHARED + own
    place = tl.arange(0, SIZE)
    asked = query + slot[:, None] * query_slot + heads[:, None] * query_head + place[None, :]
    q = tl.load(asked, mask=there[:, None], other=0.0)
    first = share * columns
    stop = tl.minimum(first + columns, tl.load(length + row) + extra)
    base = row.to(tl.int64) * keys_row + head * keys_head
    top, total, sums = _over_columns(
        q, keys + base, values + base, first, stop, scale, keys_column, QUERIES, SIZE, COLUMNS
    )
    some = total > 0
    sums = sums / tl.where(some, total, 1.0)[:, None]
    end = tl.where(some, top + tl.log(tl.where(some, total, 1.0)), float("-inf"))
    to = share * mean_share + slot[:, None] * mean_slot + heads[:, None] * SIZE + place[None, :]
    tl.store(mean + to, sums, mask=there[:, None])
    tl.store(log + share * log_share + slot * log_slot + heads, end, mask=there)


@triton.jit
def _join(
    mean,
    log,
    sinks,
    out,
    shares,
    mean_share,
    log_share,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    SHARES: tl.constexpr,
    SINKS: tl.constexpr,
):
    """Join the shares of a slot's query head, `mean` [shares,R,HEADS,SIZE] and `log` [shares,R,HEADS]."""
    slot, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    share, place = tl.arange(0, SHARES), tl.arange(0, SIZE)
    at = slot * HEADS + head
    logs = tl.load(log + share * log_share + at, mask=share < shares, other=float("-inf"))
    top = tl.max(logs, 0)
    if SINKS:
        sink = tl.load(sinks + head).to(tl.float32)
        top = tl.maximum(top, sink)
    weight = tl.exp(logs - top)
    total = tl.sum(weight, 0)
    if SINKS:
        total += tl.exp(sink - top)
    where = share[:, None] * mean_share + at * SIZE + place[None, :]
    means = tl.load(mean + where, mask=(share < shares)[:, None], other=0.0)
    joined = tl.sum(means * weight[:, None], 0) / total
    tl.store(out + at * SIZE + place, joined.to(out.dtype.element_ty))


def attend_by_kernels(query: Tensor, layer: int, seating: Seating, scale: float, sinks: Tensor | None) -> Tensor:
    """Attend from query [R,H*S,D] to prompts and own tokens -> [R,H*S,D].

    Raises NotImplementedError for sizes that the kernels do not have.
    """
    own, prompts = (tensors[2 * layer : 2 * layer + 2] for tensors in (seating.own, seating.prompts))
    slots, heads, size = query.shape
    fits = size >= LEAST and size * query.element_size() <= LARGEST
    if not fits or size & (size - 1) or own[0].shape[3] != own[1].shape[3]:
        raise NotImplementedError(f"heads of {size} numbers")
    query = query.contiguous()
    apart = [_shares(keys.shape[0] * keys.shape[1], keys.shape[2]) for keys in (prompts[0], own[0])]
    total = sum(apart)
    mean = query.new_empty(total, slots, heads, size, dtype=torch.float32)
    log = query.new_empty(total, slots, heads, dtype=torch.float32)
    if total:
        # A slot without a seat is empty; what is joined for it is not looked at.
        log[: apart[0]].fill_(-torch.inf)
    _launch(query, prompts, seating.length, 0, scale, mean[: apart[0]], log[: apart[0]], seating.seated)
    _launch(query, own, seating.column, 1, scale, mean[apart[0] :], log[apart[0] :], None)
    out = torch.empty_like(query)
    _join[(slots, heads)](
        mean,
        log,
        out if sinks is None else sinks,
        out,
        total,
        mean.stride(0),
        log.stride(0),
        HEADS=heads,
        SIZE=size,
        SHARES=triton.next_power_of_2(total),
        SINKS=sinks is not None,
    )
    return out


def _shares(programs: int, columns: int) -> int:
    """Say among how many programs the columns of each are shared out."""
    return max(1, min(PROGRAMS // programs, columns // BLOCK))


def _launch(
    query: Tensor,
    memory: Sequence[Tensor],
    length: Tensor,
    extra: int,
    scale: float,
    mean: Tensor,
    log: Tensor,
    seated: Tensor | None,
) -> None:
    """Compute the shares of a part, as many as `mean` has room for."""
    keys, values = memory
    if keys.stride() != values.stride() or keys.stride(3) != 1:
        raise NotImplementedError("keys and values that lie otherwise")
    rows, groups, width, size = keys.shape
    shared = query.shape[1] // groups
    seats = 1 if seated is None else seated.shape[1]
    share = -(-width // len(mean))
    most = MOST if 2 * size * keys.element_size() <= LARGEST else MOST // 2
    queries = min(max(most, triton.next_power_of_2(shared)), max(LEAST, triton.next_power_of_2(seats * shared)))
    tiles = -(-seats // (queries // shared))
    _partial[(rows * tiles, groups, len(mean))](
        query,
        keys,
        values,
        length if seated is None else seated,
        length,
        mean,
        log,
        scale,
        share,
        extra,
        tiles,
        query.stride(0),
        query.stride(1),
        keys.stride(0),
        keys.stride(1),
        keys.stride(2),
        0 if seated is None else seated.stride(0),
        mean.stride(0),
        mean.stride(1),
        log.stride(0),
        log.stride(1),
        SEATED=seated is not None,
        SEATS=seats,
        SHARED=shared,
        QUERIES=queries,
        SIZE=size,
        COLUMNS=most,
        num_stages=2,
    )
