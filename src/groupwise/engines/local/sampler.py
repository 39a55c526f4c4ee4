"""Drawing one token per row from logits, and what the scheduler must know of each draw.

Shapes: R rows, V vocabulary. Randomness comes in as one uniform number per row; a draw is the inverse of the cumulative
distribution in id order, so two rows with the same logits and the same number take the same token. All are functions of
tensors without state.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from groupwise.core.engine import Sampling

# Top-p looks at this many of the most likely tokens before it sorts the whole vocabulary.
FIRST_LOOK = 256
# Tokens in a block of the cumulative distribution of a large vocabulary.
BLOCK = 64
# The largest float64 below 1. Any positive number times it is less than the number, rounding included.
BELOW_ONE = 1 - 2.0**-53
# What a row that ends adds to the sum of a draw's totals; far above what R totals of about 1 can be off by.
END = 2.0


class Draw(NamedTuple):
    """One token per row. Probabilities stay as they come; their logarithm is taken for many steps at once.

    tokens  [R] int64
    chance  [R] float32, the token's share of `total`; 1 where the draw is greedy
    total   [R] float64, about 1; NaN where the logits hold NaN or +inf, or nothing but -inf
    support [R,V] bool, the ids drawn from, or None if they are the whole vocabulary
    top     [R,K] int32 and float32, the most likely ids and their log-probabilities, or None if none are asked for
    """

    tokens: Tensor
    chance: Tensor
    total: Tensor
    support: Tensor | None
    top: tuple[Tensor, Tensor] | None = None

    @property
    def logp(self) -> Tensor:
        """[R] float64 nats, under the distribution drawn from; 0 where the draw is greedy."""
        return self.chance.double().log() - self.total.log()


def draw(logits: Tensor, uniform: Tensor, sampling: Sampling, looks: bool = True, top: int = 0) -> Draw:
    """Draw one token per row from logits [R,V] and numbers [R] float64 in [0, 1).

    looks  numbers may be looked at on the way; not while a graph is recorded
    top    how many of the most likely ids are kept
    """
    logits = logits.float()
    if sampling.temperature == 0:
        # argmax takes the first of equal values, that is the lowest id.
        peak, tokens = logits.amax(-1), logits.argmax(-1)
        one = torch.ones_like(peak)
        return Draw(tokens, one, torch.where(peak.isfinite(), one, torch.nan).double(), None)
    if sampling.temperature != 1:
        logits = logits / sampling.temperature
    limits = sampling.top_k, sampling.top_p, sampling.min_p
    support = support_mask(logits, *limits, looks=looks) if sampling.truncates else None
    if support is not None:
        logits = logits.masked_fill(~support, -torch.inf)
    chance = torch.softmax(logits, -1)
    tokens, total = (_invert if logits.shape[-1] <= 4 * BLOCK else _invert_blocks)(chance, uniform)
    likely = None
    if top:
        ids = most_likely(logits, min(top, logits.shape[1]))[1]
        likely = ids.int(), (chance.gather(1, ids).double().log() - total.log()[:, None]).float()
    return Draw(tokens, chance.gather(1, tokens[:, None])[:, 0], total, support, likely)


def end_sum(draw: Draw, stops: Tensor) -> Tensor:
    """Tell by one number whether a step has to be looked at: [] float64, the draw's totals, about R, and END for each
    row that draws one of the ids `stops` [V] bool; finite if every total is.
    """
    return (draw.total + stops.index_select(0, draw.tokens) * END).sum()


def _invert(chance: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """chance [R,V], uniform [R] -> the token [R] whose span of the cumulative sum holds u, and the sum's end [R]."""
    cumulative = chance.cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    # u * total can round up to total, which lies behind the last token: stay below it.
    target = uniform[:, None] * (total * BELOW_ONE)
    return _first_above(cumulative, target), total[:, 0]


def _invert_blocks(chance: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Invert in two looks, first for a block of tokens and then inside it: a tenth of the numbers are summed up."""
    vocabulary = chance.shape[1]
    full = vocabulary - vocabulary % BLOCK
    blocks = chance[:, :full].unflatten(1, (-1, BLOCK)).sum(-1)
    if full < vocabulary:
        blocks = torch.cat([blocks, chance[:, full:].sum(-1, keepdim=True)], 1)
    reached = blocks.cumsum(-1, dtype=torch.float64)
    total = reached[:, -1:]
    target = uniform[:, None] * (total * BELOW_ONE)
    block = _first_above(reached, target)[:, None]
    ids = block * BLOCK + torch.arange(BLOCK, device=chance.device)
    inside = chance.gather(1, ids.clamp(max=vocabulary - 1)).masked_fill_(ids >= vocabulary, 0)
    inner = inside.cumsum(-1, dtype=torch.float64)
    before = (reached - blocks.double()).gather(1, block)
    # The block's sum was rounded otherwise than its tokens': what is left of the target must still end inside it.
    rest = torch.minimum((target - before).clamp_(min=0), inner[:, -1:] * BELOW_ONE)
    return block[:, 0] * BLOCK + _first_above(inner, rest), total[:, 0]


def _first_above(cumulative: Tensor, target: Tensor) -> Tensor:
    """Map [R,places], [R,1] -> [R]: the first place whose sum is above the target; it has a weight above 0."""
    # Rows of NaN point past the end; they are reported by `total`.
    return torch.searchsorted(cumulative, target, right=True).clamp_(max=cumulative.shape[1] - 1)[:, 0]


def support_mask(logits: Tensor, top_k: int, top_p: float, min_p: float = 0.0, looks: bool = True) -> Tensor:
    """Return [R,V] bool, the tokens that top-k, top-p and min-p leave, in this order, of logits over the temperature.

    Min-p keeps tokens at least min_p times as likely as the most likely one, which the other two never leave out.
    """
    most = _most if looks or top_k or top_p == 1 else _most_by_threshold
    if not min_p:
        return most(logits, top_k, top_p)
    # Not "at least": every token where the logits are NaN, so that the draw's total says so.
    likely = ~(logits < logits.amax(-1, keepdim=True) + math.log(min_p))
    return likely & most(logits, top_k, top_p) if top_k or top_p < 1 else likely


def _most(logits: Tensor, top_k: int, top_p: float) -> Tensor:
    """Return [R,V] bool, the tokens that top-k and then top-p leave.

    Top-p keeps the smallest set of most likely tokens whose probability, renormalised over the top k, reaches top_p.
    Of equally likely tokens the lower id comes first.
    """
    vocabulary = logits.shape[-1]
    most = min(top_k, vocabulary) if top_k else vocabulary
    look = most if top_k or top_p == 1 else min(FIRST_LOOK, most)
    while True:
        values, ids = most_likely(logits, look)
        keep, reached = _nucleus(logits, values, top_p, over_all=not top_k)
        if look == most or bool(reached.all()):
            return torch.zeros_like(logits, dtype=torch.bool).scatter_(1, ids, keep)
        look = most


def most_likely(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return values and ids, [R,count] each, of the largest float32 logits, falling; the lower id first if equal."""
    if count == logits.shape[-1]:
        values, ids = logits.sort(dim=-1, descending=True, stable=True)
        return values, ids
    # torch.topk breaks ties as it likes, so rank by one integer that has no ties: the value's bits, then the id.
    rank = (_ordinal(logits) << 32) - torch.arange(logits.shape[-1], device=logits.device)
    ids = rank.topk(count, dim=-1).indices
    return logits.gather(1, ids), ids


def _ordinal(numbers: Tensor) -> Tensor:
    """Map float32 numbers to int64 ones in the same order."""
    bits = (numbers + 0.0).view(torch.int32).long()  # + 0.0 makes -0.0 equal to 0.0
    return torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def _most_by_threshold(logits: Tensor, top_k: int, top_p: float) -> Tensor:
    """Return what `_most` returns without top-k, without a sort and without a look at a number.

    The smallest logit that is kept is found by halving: a logit x is kept where what is above x has less than top_p.
    """
    ordinal, chance = _ordinal(logits), (logits - logits.amax(-1, keepdim=True)).exp().double()
    total = chance.sum(-1, keepdim=True)
    target = top_p * total
    # What is above `high` has less than the target, what is above `low` has not.
    high, low = ordinal.amax(-1, keepdim=True), ordinal.amin(-1, keepdim=True) - 1
    for _ in range(33):  # a float32 has 2^32 values
        middle = torch.div(low + high, 2, rounding_mode="floor")
        less = (chance * (ordinal > middle)).sum(-1, keepdim=True) < target
        low, high = torch.where(less, low, middle), torch.where(less, middle, high)
    above, equal = ordinal > high, ordinal == high
    before = (chance * above).sum(-1, keepdim=True) + (equal.cumsum(-1) - 1) * (chance * equal).amax(-1, keepdim=True)
    # Every token where the logits are NaN, so that the draw's total says so.
    return above | (equal & (before < target)) | ~(total < torch.inf)


def uniforms(streams: Iterable[tuple[int, int]], length: int) -> np.ndarray:
    """Draw [streams, length] float64 in [0, 1): a row for each (seed, number of the completion)."""
    generator = np.random.Philox(key=0)
    # A generator per completion would cost more than its numbers; setting the key of one costs a quarter of that.
    state = generator.state
    numbers = np.random.Generator(generator)
    streams = list(streams)
    out = np.empty((len(streams), length))
    for row, (seed, number) in zip(out, streams, strict=True):
        state["state"]["key"][:] = (seed % 2**64, number)
        state["state"]["counter"][:] = 0
        generator.state = state
        numbers.random(out=row)
    return out


def _nucleus(logits: Tensor, values: Tensor, top_p: float, over_all: bool) -> tuple[Tensor, Tensor]:
    """Tell which of the most likely `values` top-p keeps, and in which rows it was reached among them, [R,1] bool.

    over_all  probabilities are over the whole vocabulary (no top-k)
    """
    keep = torch.ones_like(values, dtype=torch.bool)
    if top_p == 1:
        return keep, keep[:, :1]
    peak = values[:, :1]
    reached = (values - peak).exp().cumsum(-1, dtype=torch.float64)
    total = reached[:, -1:]
    if over_all and values.shape != logits.shape:
        total = (logits - peak).exp().sum(-1, keepdim=True, dtype=torch.float64)
    keep[:, 1:] = reached[:, :-1] < top_p * total
    return keep, reached[:, -1:] >= top_p * total
