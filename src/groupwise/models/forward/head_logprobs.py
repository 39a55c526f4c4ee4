"""Log-probability and entropy straight from a linear head, with a backward of its own.

    x_i = (W h_i + b) / T        logp_i = x_i[y_i] - log sum_j exp x_ij        H_i = -sum_j p_ij log p_ij

    d logp_i / d x_ij = [j = y_i] - p_ij        d H_i / d x_ij = -p_ij (log p_ij + H_i)

Where sampling left ids out, the sums run over the ids that it kept; where it barred ids from a token, their x is so low
that p is exactly 0 and no gradient passes. One chunk of logits is computed at a time. p, or log p where the entropy has
a gradient, is held for the backward where all of it has room, and computed again there otherwise.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from groupwise.core.records import Support
from groupwise.models.precision import operand

#: The logit of a barred id: exp of it is 0 in every precision, and its product with a gradient is finite.
BARRED = -1e30


@dataclass(frozen=True)
class Scoring:
    """How a head scores.

    temperature       T
    support           of the tokens, where sampling left ids out
    entropy_gradient  whether the entropy has a gradient
    rows              tokens of a chunk
    hold              whether p (or log p) of all chunks is kept for the backward, which is then possible once
    compute           what the matrix products are computed in
    barred            of each token whether ids were barred from it, [M] bool, and these ids [E]; None where none was
    """

    temperature: float
    support: Support | None
    entropy_gradient: bool
    rows: int
    hold: bool
    compute: torch.dtype
    barred: tuple[Tensor, Tensor] | None = None

    def chunks(self, count: int, device: torch.device) -> Iterator[tuple[slice, Tensor | None]]:
        """Slices of `count` tokens, and the part of the support of each: [m,K] ids, padded with -1."""
        for start in range(0, count, self.rows):
            stop = min(start + self.rows, count)
            yield slice(start, stop), None if self.support is None else self.support.padded(start, stop).to(device)


class HeadLogprobs(torch.autograd.Function):
    """states [M,H], weight [V,H], bias [V] or None, targets [M] -> logp [M], entropy [M], nats, float32 or better."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, how: Scoring
    ) -> tuple[Tensor, Tensor]:
        logp, entropy = states.new_empty(2, len(states), dtype=_wide(how.compute))
        product = _product(states, weight, bias, how)
        held: list[Tensor] = []
        for part, ids in how.chunks(len(states), states.device):
            every = product(part)
            logits = _over_support(every, ids)
            log_p = logits.log_softmax(-1)
            if ids is None:
                logp[part] = log_p.gather(-1, targets[part, None])[:, 0]
            else:
                logp[part] = every.gather(-1, targets[part, None])[:, 0] - logits.logsumexp(-1)
            p = torch.exp(log_p, out=logits)
            entropy[part] = -torch.linalg.vecdot(p, _finite(log_p, ids))
            if how.hold:
                held.append(log_p if how.entropy_gradient else p)
        ctx.save_for_backward(states, weight, bias, targets, entropy, *held)
        ctx.how = how
        if not how.entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        return logp, entropy

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, up_logp: Tensor, up_entropy: Tensor) -> tuple[Tensor | None, ...]:
        states, weight, bias, targets, entropy, *held = ctx.saved_tensors
        how: Scoring = ctx.how
        product, across = _product(states, weight, bias, how), operand(weight, how.compute)
        to_states, to_weight, to_bias = (
            torch.zeros_like(x) if needed else None
            for x, needed in zip((states, weight, bias), ctx.needs_input_grad, strict=False)
        )
        for i, (part, ids) in enumerate(how.chunks(len(states), states.device)):
            logits = None if held else _over_support(product(part), ids)
            slope = -up_logp[part, None]
            if how.entropy_gradient:
                log_p = held[i] if logits is None else logits.log_softmax(-1)
                slope = slope - (_finite(log_p, ids) + entropy[part, None]) * up_entropy[part, None]
                slope = slope.mul_(log_p.exp())
            else:
                slope = (held[i] if logits is None else logits.softmax(-1)).mul_(slope)
            slope = _over_vocabulary(slope, ids, len(weight))
            slope.scatter_add_(1, targets[part, None], up_logp[part, None])
            if how.temperature != 1:
                slope = slope.div_(how.temperature)
            if to_bias is not None:
                to_bias += slope.sum(0).to(to_bias.dtype)
            slope = operand(slope, how.compute)
            if to_states is not None:
                to_states[part] = (slope @ across).to(how.compute).to(states.dtype)
            if to_weight is not None:
                _add_product(to_weight, slope.T, operand(states[part], how.compute), how.compute)
        return to_states, to_weight, to_bias, None, None


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _product(states: Tensor, weight: Tensor, bias: Tensor | None, how: Scoring) -> Any:
    """A slice of the tokens -> fresh logits [m,V] over the temperature."""
    across = operand(weight, how.compute).T

    def logits(part: slice) -> Tensor:
        out = (operand(states[part], how.compute) @ across).to(how.compute).to(_wide(how.compute))
        out = out if bias is None else out.add_(bias)
        out = out if how.temperature == 1 else out.div_(how.temperature)
        if how.barred is not None:
            rows, ids = how.barred
            out[rows[part].nonzero(), ids] = BARRED
        return out

    return logits


def _add_product(total: Tensor, left: Tensor, right: Tensor, compute: torch.dtype) -> None:
    """total += left right, rounded to `compute`; in one pass where nothing is rounded."""
    if total.dtype == left.dtype == compute:
        total.addmm_(left, right)
    else:
        total += (left @ right).to(compute)


def _over_support(logits: Tensor, ids: Tensor | None) -> Tensor:
    """[m,V] -> the logits of the ids that sampling kept [m,K], -inf where a row has fewer."""
    return logits if ids is None else logits.gather(-1, ids.clamp(min=0)).masked_fill_(ids < 0, -torch.inf)


def _finite(log_p: Tensor, ids: Tensor | None) -> Tensor:
    """log p with 0 where there is no id: there p log p is 0."""
    return log_p if ids is None else log_p.masked_fill(ids < 0, 0.0)


def _over_vocabulary(slope: Tensor, ids: Tensor | None, vocabulary: int) -> Tensor:
    """[m,K] at the ids that sampling kept -> [m,V]."""
    if ids is None:
        return slope
    return slope.new_zeros(len(slope), vocabulary).scatter_add_(1, ids.clamp(min=0), slope.masked_fill(ids < 0, 0.0))
