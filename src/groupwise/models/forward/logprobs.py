"""Log-probabilities and entropies of given tokens, straight from a linear head with a backward of its own, in chunks: a
[tokens, vocabulary] tensor is never held at once.

    x_i = f(W h_i + b) / T       logp_i = x_i[y_i] - log sum_j exp x_ij        H_i = -sum_j p_ij log p_ij

    d logp_i / d x_ij = [j = y_i] - p_ij        d H_i / d x_ij = -p_ij (log p_ij + H_i)

f is the model's own change of its logits (heads.py: LogitChange), most often none: a scale or a cap, whose slope is
multiplied into the gradient; a bias of the sampling's is added behind it. Where sampling left ids out, the sums run
over the ids that it kept; where it barred ids from a token, their x is so low that p is exactly 0 and no gradient
passes. p, or log p where the entropy has a gradient, is held for the backward where all of it has room and logits have
no cap, and computed again there otherwise.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from groupwise.core.numbers.transfer import columns_to_device, to_device
from groupwise.core.records import Support
from groupwise.models.forward.adjustment import UNADJUSTED, Adjustment
from groupwise.models.forward.heads import LogitChange
from groupwise.models.forward.layout import Layout, padded
from groupwise.models.forward.packed_attention import hidden_states
from groupwise.models.precision import computes_in, operand, wide_product

#: Logits of one chunk, elements: 28 MiB in float32. A tensor of 32 MiB or more is fresh memory of the system each time,
#: which takes longer than what is computed in it.
CHUNK_ELEMENTS = 7 << 20
#: Log-probabilities of all ids that are kept from forward to backward, elements: 256 MiB in float32.
HELD_ELEMENTS = 1 << 26
#: The logit of a barred id: exp of it is 0 in every precision, and its product with a gradient is finite.
BARRED = -1e30


@dataclass(frozen=True)
class Predictions:
    """The predictions of a forward that are read: M of them, for the W tokens [N,T] that are wanted.

    places   [M] where in what is run each is made
    targets  [M] the token that it is of
    row      [W] of each wanted token, in [N,T]
    column   [W]
    each     [W] which prediction is its own; None: one after the other
    shape    [N,T]
    support  the ids that sampling kept for each, on the CPU; None where it left none out
    barred   as Scoring has it
    """

    places: Tensor
    targets: Tensor
    row: Tensor
    column: Tensor
    each: Tensor | None
    shape: torch.Size
    support: Support | None = None
    barred: tuple[Tensor, Tensor] | None = None

    @classmethod
    def of(
        cls,
        tokens: Tensor,
        mask: Tensor,
        layout: Layout,
        supports: Sequence[Support | None] | None = None,
        adjustment: Adjustment = UNADJUSTED,
    ) -> "Predictions":
        """Find those of the tokens [N,T] in the mask [N,T]. How many there are is a number: a device is waited for."""
        wanted = mask.clone()
        wanted[:, 0] = False
        places, targets = layout.predecessors(wanted), tokens[wanted]
        support, each = None if supports is None else _join(supports, wanted), None
        barred = adjustment.barred(wanted)
        if layout.line is not None and support is None and barred is None and len(targets):
            # Of the predictions only those that differ, and for each wanted token which of these is its own.
            ids = int(targets.max()) + 1
            pairs, each = (places * ids + targets).unique(return_inverse=True)
            places, targets = pairs // ids, pairs % ids
        row, column = wanted.nonzero(as_tuple=True)
        return cls(places, targets, row, column, each, wanted.shape, support, barred)

    def on(self, device: torch.device) -> "Predictions":
        """Send them to a device, without waiting for it."""
        barred = None if self.barred is None else tuple(to_device(x, device) for x in self.barred)
        return replace(columns_to_device(self, device), barred=barred)

    def spread(self, values: Tensor) -> Tensor:
        """Map the predictions' values [M] -> [N,T], 0 where no token is wanted."""
        values = values if self.each is None else values.index_select(0, self.each)
        return values.new_zeros(self.shape).index_put((self.row, self.column), values)


def sequence_logprobs(
    backbone: nn.Module,
    head: nn.Linear,
    tokens: Tensor,
    mask: Tensor,
    temperature: float = 1.0,
    supports: Sequence[Support | None] | None = None,
    entropy_gradient: bool = False,
    layout: Layout | None = None,
    chunk_elements: int = CHUNK_ELEMENTS,
    held_elements: int = HELD_ELEMENTS,
    adjustment: Adjustment = UNADJUSTED,
) -> tuple[Tensor, Tensor]:
    """tokens, mask [N,T] -> log-probability [N,T] and entropy [N,T] in nats, 0 where the mask is False.

    Column t belongs to the token at t, predicted from the columns before it. The distribution is the sampled one:
    logits as `adjustment` changes them, over temperature, renormalised over the ids of the support where sampling left
    some out. `layout` is how the tokens are run; None: in their rows.
    """
    layout = layout or padded(tokens, torch.full(tokens.shape[:1], tokens.shape[1], device=tokens.device))
    read = Predictions.of(tokens, mask, layout, supports, adjustment)
    bias, sizes = adjustment.bias, (chunk_elements, held_elements)
    return layout_logprobs(backbone, head, layout, read, temperature, entropy_gradient, *sizes, added=bias)


def layout_logprobs(
    backbone: nn.Module,
    head: nn.Linear,
    layout: Layout,
    read: Predictions,
    temperature: float = 1.0,
    entropy_gradient: bool = False,
    chunk_elements: int = CHUNK_ELEMENTS,
    held_elements: int = HELD_ELEMENTS,
    added: Tensor | None = None,
    change: LogitChange | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute log-probabilities and entropies [N,T] of what is read of a layout, as `sequence_logprobs` does; on a
    device that has all of it already, nothing waits for that device.
    """
    states = hidden_states(backbone, layout).index_select(0, read.places)
    logp, entropy = token_logprobs(
        head,
        states,
        read.targets,
        temperature,
        read.support,
        entropy_gradient,
        chunk_elements,
        held_elements,
        added=added,
        barred=read.barred,
        change=change,
    )
    return read.spread(logp), read.spread(entropy)


def token_logprobs(
    head: nn.Linear,
    states: Tensor,
    targets: Tensor,
    temperature: float = 1.0,
    support: Support | None = None,
    entropy_gradient: bool = False,
    chunk_elements: int = CHUNK_ELEMENTS,
    held_elements: int = HELD_ELEMENTS,
    added: Tensor | None = None,
    barred: tuple[Tensor, Tensor] | None = None,
    change: LogitChange | None = None,
) -> tuple[Tensor, Tensor]:
    """states [M,H], targets [M] -> log-probability [M] and entropy [M], nats, float32 or better.

    At most `chunk_elements` logits are computed at once. Where all of them are more than `held_elements`, those of each
    chunk are computed again in the backward pass. `added` [V] is added to every token's logits; `barred` and `change`
    are as Scoring has them.
    """
    vocabulary = head.weight.shape[0]
    added = None if added is None else added.to(states.device)
    capped = change is not None and change.cap is not None
    how = Scoring(
        temperature=temperature,
        support=support,
        entropy_gradient=entropy_gradient,
        rows=max(1, chunk_elements // vocabulary),
        hold=torch.is_grad_enabled() and not capped and len(targets) * vocabulary <= held_elements,
        compute=computes_in(head.weight),
        barred=barred,
        change=change,
        added=None if change is None else added,
    )
    bias = head.bias
    if added is not None and change is None:
        bias = added if bias is None else bias + added
    return HeadLogprobs.apply(states, head.weight, bias, targets, how)  # type: ignore[return-value]


def _join(supports: Sequence[Support | None], wanted: Tensor) -> Support:
    """Return the supports of the rows that have a wanted token, as one. Raises ValueError if a token has none."""
    ids, starts, offset = [torch.empty(0, dtype=torch.int32)], [torch.zeros(1, dtype=torch.long)], 0
    for row, tokens in zip(supports, wanted.sum(-1).tolist(), strict=True):
        if not tokens:
            continue
        if row is None or len(row.start) != tokens + 1:
            raise ValueError(f"a completion of {tokens} tokens came without the ids its sampling kept for each")
        ids.append(row.ids)
        starts.append(row.start[1:] + offset)
        offset += int(row.start[-1])
    return Support(torch.cat(ids), torch.cat(starts))


@dataclass(frozen=True)
class Scoring:
    """Settings with which a head scores.

    temperature       T
    support           of the tokens, where sampling left ids out
    entropy_gradient  whether the entropy has a gradient
    rows              tokens of a chunk
    hold              whether p (or log p) of all chunks is kept for the backward, which is then possible once
    compute           what the matrix products are computed in
    barred            of each token whether ids were barred from it, [M] bool, and these ids [E]; None if none was
    change            f of the model's logits; None if it changes none
    added             [V] what is added behind f; without an f it is part of the head's bias
    """

    temperature: float
    support: Support | None
    entropy_gradient: bool
    rows: int
    hold: bool
    compute: torch.dtype
    barred: tuple[Tensor, Tensor] | None = None
    change: LogitChange | None = None
    added: Tensor | None = None

    def chunks(self, count: int, device: torch.device) -> Iterator[tuple[slice, Tensor | None]]:
        """Yield slices of `count` tokens, and the part of the support of each: [m,K] ids, padded with -1."""
        for start in range(0, count, self.rows):
            stop = min(start + self.rows, count)
            yield (
                slice(start, stop),
                None if self.support is None else to_device(self.support.padded(start, stop), device),
            )


class HeadLogprobs(torch.autograd.Function):
    """states [M,H], weight [V,H], bias [V] or None, targets [M] -> logp [M], entropy [M], nats, float32 or better."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, how: Scoring
    ) -> tuple[Tensor, Tensor]:
        logp, entropy = states.new_empty(2, len(states), dtype=_wide(how.compute))
        product = _Product(states, weight, bias, how)
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
        product, across = _Product(states, weight, bias, how), operand(weight, how.compute)
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
            if how.change is not None:
                slope = slope.mul_(how.change.slope(product.changed(part)) if how.change.cap else how.change.scale)
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


class _Product:
    """Products of states with a head, for a slice of the tokens at a time, fresh memory each."""

    def __init__(self, states: Tensor, weight: Tensor, bias: Tensor | None, how: Scoring) -> None:
        self._states, self._bias, self._how = states, bias, how
        self._weight = operand(weight, how.compute)
        # On a GPU a product of 16 bits need not be rounded to them: an engine in slots does not (engines/local/slots).
        self._rounds = not weight.is_cuda or how.compute.itemsize > 2

    def changed(self, part: slice) -> Tensor:
        """Return f(W h + b), [m,V]."""
        how, rows = self._how, operand(self._states[part], self._how.compute)
        out = (rows @ self._weight.T).to(how.compute) if self._rounds else wide_product(rows, self._weight)
        out = out.to(_wide(how.compute))
        out = out if self._bias is None else out.add_(self._bias)
        return out if how.change is None else how.change(out)

    def __call__(self, part: slice) -> Tensor:
        """Return the logits over the temperature, [m,V]."""
        how, out = self._how, self.changed(part)
        out = out if how.added is None else out.add_(how.added)
        out = out if how.temperature == 1 else out.div_(how.temperature)
        if how.barred is not None:
            rows, ids = how.barred
            out[:, ids] = out[:, ids].masked_fill_(rows[part, None], BARRED)
        return out


def _add_product(total: Tensor, left: Tensor, right: Tensor, compute: torch.dtype) -> None:
    """Add left right to `total`, rounded to `compute`; in one pass where nothing is rounded."""
    if total.dtype == left.dtype == compute:
        total.addmm_(left, right)
    else:
        total += (left @ right).to(compute)


def _over_support(logits: Tensor, ids: Tensor | None) -> Tensor:
    """Map [m,V] -> the logits of the ids that sampling kept [m,K], -inf where a row has fewer."""
    return logits if ids is None else logits.gather(-1, ids.clamp(min=0)).masked_fill_(ids < 0, -torch.inf)


def _finite(log_p: Tensor, ids: Tensor | None) -> Tensor:
    """Return log p with 0 where there is no id: there p log p is 0."""
    return log_p if ids is None else log_p.masked_fill(ids < 0, 0.0)


def _over_vocabulary(slope: Tensor, ids: Tensor | None, vocabulary: int) -> Tensor:
    """Map [m,K] at the ids that sampling kept -> [m,V]."""
    if ids is None:
        return slope
    return slope.new_zeros(len(slope), vocabulary).scatter_add_(1, ids.clamp(min=0), slope.masked_fill(ids < 0, 0.0))
