"""Drawing one token per row from logits: pure functions of tensors, no state, no generator.

Shapes: R rows, V vocabulary. Randomness comes in as one uniform number per row; a draw is the inverse of the cumulative
distribution in id order, so two rows with the same logits and the same number take the same token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from groupwise.engines.base import Sampling
from groupwise.errors import UsageError

# Top-p looks at this many of the most likely tokens before it sorts the whole vocabulary.
FIRST_LOOK = 256
# The largest float64 below 1. Any positive number times it is less than the number, rounding included.
BELOW_ONE = 1 - 2.0**-53


@dataclass(frozen=True)
class Draw:
    """One token per row.

    tokens  [R] int64
    logp    [R] float64 nats, under the distribution drawn from; 0 where the draw is greedy
    finite  [R] bool, False where the logits hold NaN or +inf, or nothing but -inf
    kept    [R,V] bool, the sampling support, or None where it is the whole vocabulary
    """

    tokens: Tensor
    logp: Tensor
    finite: Tensor
    kept: Tensor | None


def draw(logits: Tensor, uniform: Tensor, sampling: Sampling) -> Draw:
    """One token per row from logits [R,V] and numbers [R] float64 in [0, 1)."""
    logits = logits.float()
    if sampling.temperature == 0:
        return _greedy(logits)
    if sampling.temperature != 1:
        logits = logits / sampling.temperature
    kept = kept_mask(logits, sampling.top_k, sampling.top_p) if sampling.truncates else None
    peak = logits.amax(-1, keepdim=True)
    weight = (logits - peak).exp_()
    if kept is not None:
        weight.masked_fill_(~kept, 0)
    cumulative = weight.cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    # u * total can round up to total, which lies behind the last token: stay below it.
    target = uniform[:, None] * (total * BELOW_ONE)
    # right=True passes over tokens of weight 0. Rows of NaN point past the end; they are reported by `finite`.
    tokens = torch.searchsorted(cumulative, target, right=True).clamp_(max=logits.shape[-1] - 1)
    logp = (logits.gather(1, tokens) - peak).double() - total.log()
    return Draw(tokens[:, 0], logp[:, 0], total[:, 0].isfinite(), kept)


def kept_mask(logits: Tensor, top_k: int, top_p: float) -> Tensor:
    """[R,V] bool, the tokens that top-k and then top-p leave; logits are already divided by the temperature.

    Top-p keeps the smallest set of most likely tokens whose probability, renormalised over the top k, reaches top_p.
    Of equally likely tokens the lower id comes first.
    """
    vocabulary = logits.shape[-1]
    most = min(top_k, vocabulary) if top_k else vocabulary
    look = most if top_k or top_p == 1 else min(FIRST_LOOK, most)
    while True:
        values, ids = most_likely(logits, look)
        keep, enough = _nucleus(logits, values, top_p, whole=not top_k)
        if look == most or enough:
            return torch.zeros_like(logits, dtype=torch.bool).scatter_(1, ids, keep)
        look = most


def most_likely(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Values and ids, [R,count] each, of the largest float32 logits: falling, and of equal ones the lower id first."""
    if count == logits.shape[-1]:
        values, ids = logits.sort(dim=-1, descending=True, stable=True)
        return values, ids
    # torch.topk breaks ties as it likes, so rank by one integer that has no ties: the value's bits, then the id.
    bits = (logits + 0.0).view(torch.int32).long()  # + 0.0 makes -0.0 equal to 0.0
    rank = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits) << 32
    rank -= torch.arange(logits.shape[-1], device=logits.device)
    ids = rank.topk(count, dim=-1).indices
    return logits.gather(1, ids), ids


def uniforms(seed: int, first: int, count: int, length: int) -> np.ndarray:
    """[count, length] float64 in [0, 1): row i is the stream of completion first + i under `seed`."""
    generator = np.random.Philox(key=0)
    # A generator per completion would cost more than its numbers; setting the key of one costs a quarter of that.
    state = generator.state
    numbers = np.random.Generator(generator)
    out = np.empty((count, length))
    for i in range(count):
        state["state"]["key"][:] = (seed % 2**64, first + i)
        state["state"]["counter"][:] = 0
        generator.state = state
        numbers.random(out=out[i])
    return out


def check_sampling(sampling: Sampling) -> None:
    """Raises UsageError where a value has no meaning."""
    rules = (
        (sampling.temperature >= 0, f"sampling.temperature is {sampling.temperature}; it must be 0 (greedy) or more"),
        (0 < sampling.top_p <= 1, f"sampling.top_p is {sampling.top_p}; it must be above 0 and at most 1"),
        (sampling.top_k >= 0, f"sampling.top_k is {sampling.top_k}; it must be 0 (keep all) or more"),
        (sampling.max_new_tokens >= 1, f"sampling.max_new_tokens is {sampling.max_new_tokens}; it must be 1 or more"),
    )
    for holds, message in rules:
        if not holds:
            raise UsageError(message)


def _greedy(logits: Tensor) -> Draw:
    # argmax takes the first of equal values, that is the lowest id.
    peak, tokens = logits.amax(-1), logits.argmax(-1)
    return Draw(tokens, torch.zeros_like(peak, dtype=torch.float64), peak.isfinite(), None)


def _nucleus(logits: Tensor, values: Tensor, top_p: float, whole: bool) -> tuple[Tensor, bool]:
    """Which of the most likely `values` top-p keeps, and whether it was reached in every row among them.

    whole  probabilities are over the whole vocabulary (no top-k)
    """
    keep = torch.ones_like(values, dtype=torch.bool)
    if top_p == 1:
        return keep, True
    peak = values[:, :1]
    reached = (values - peak).exp().cumsum(-1, dtype=torch.float64)
    total = reached[:, -1:]
    if whole and values.shape != logits.shape:
        total = (logits - peak).exp().sum(-1, keepdim=True, dtype=torch.float64)
    keep[:, 1:] = reached[:, :-1] < top_p * total
    return keep, bool((reached[:, -1:] >= top_p * total).all())
