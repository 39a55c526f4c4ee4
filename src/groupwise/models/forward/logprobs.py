"""Log-probabilities and entropies of given tokens, straight from a linear head with a backward of its own, in chunks: a
[tokens, vocabulary] tensor is never held at once.

    x_i = f(W h_i + b) / T       logp_i = x_i[y_i] - log sum_j exp x_ij        H_i = -sum_j p_ij log p_ij

    d logp_i / d x_ij = [j = y_i] - p_ij        d H_i / d x_ij = -p_ij (log p_ij + H_i)

f is the model's own change of its logits (heads.py: LogitChange), most often none: a scale or a cap, whose slope is
multiplied into the gradient; a bias of the sampling's is added behind it. Where sampling left ids out, the sums run
over the ids that it kept; where it barred ids from a token, their x is so low that p is exactly 0 and no gradient
passes. p, or log p where the entropy has a gradient, is held for the backward where all of it has room and logits have
no cap, and computed again there otherwise.

The same chunks give log p of K more ids of each token, and the divergence of p from a teacher's distribution q.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from groupwise.core.records import Support
from groupwise.models.forward.adjustment import UNADJUSTED, Adjustment
from groupwise.models.forward.chunks import Compared, Product, Room, Scoring, Top, wide
from groupwise.models.forward.heads import LogitChange
from groupwise.models.forward.layout import Layout, padded
from groupwise.models.forward.packed_attention import hidden_states
from groupwise.models.forward.predictions import Predictions
from groupwise.models.precision import computes_in, operand

#: Logits of one chunk, elements: 28 MiB in float32. A tensor of 32 MiB or more is fresh memory of the system each time,
#: which takes longer than what is computed in it.
CHUNK_ELEMENTS = 7 << 20
#: Log-probabilities of all ids that are kept from forward to backward, elements: 256 MiB in float32.
HELD_ELEMENTS = 1 << 26


class Scored(NamedTuple):
    """Scores of a head for M predictions, nats.

    logp, entropy  [M]
    ids, among     [M,K] the other ids that were asked for, and their log-probabilities; K = 0 if none were
    divergence     [M] from the teacher's distribution; None without one
    """

    logp: Tensor
    entropy: Tensor
    ids: Tensor
    among: Tensor
    divergence: Tensor | None


@dataclass(frozen=True)
class Teacher:
    """A frozen policy that makes the same predictions, with which a head's own are compared.

    states        [M,H'] its hidden states
    weight, bias  its head, [V',H'] and [V'] or None; of more ids than V the first V are read
    change        of its logits
    divergence    (log p, log q), [m,V] nats each -> [m] nats
    """

    states: Tensor
    weight: Tensor
    bias: Tensor | None
    change: LogitChange | None
    divergence: Callable[[Tensor, Tensor], Tensor]


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
    return layout_logprobs(backbone, head, layout, read, temperature, entropy_gradient, *sizes, added=bias)[:2]


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
    among: Tensor | Top | None = None,
    teacher: Teacher | None = None,
) -> Scored:
    """Compute log-probabilities and entropies [N,T] of what is read of a layout, as `sequence_logprobs` does; on a
    device that has all of it already, nothing waits for that device. So the divergence; `ids` and `among` stay [M,K].
    """
    states = hidden_states(backbone, layout).index_select(0, read.places)
    out = token_logprobs(
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
        among=among,
        teacher=teacher,
    )
    divergence = None if out.divergence is None else read.spread(out.divergence)
    return out._replace(logp=read.spread(out.logp), entropy=read.spread(out.entropy), divergence=divergence)


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
    among: Tensor | Top | None = None,
    teacher: Teacher | None = None,
) -> Scored:
    """states [M,H], targets [M] -> log-probability [M] and entropy [M], nats, float32 or better.

    At most `chunk_elements` logits are computed at once. Where all of them are more than `held_elements`, those of each
    chunk are computed again in the backward pass. `added` [V] is added to every token's logits; `barred` and `change`
    are as Scoring has them. `among` [M,K] or Top are ids whose log-probabilities are given too; `teacher` is what p is
    compared with. Raises ValueError for either of them with a support: sampling left ids out.
    """
    if support is not None and (among is not None or teacher is not None):
        raise ValueError("sampling left ids out, so that distributions over all of them cannot be compared")
    vocabulary = head.weight.shape[0]
    added = None if added is None else added.to(states.device)
    capped = change is not None and change.cap is not None
    fits = not capped and teacher is None and len(targets) * vocabulary <= held_elements
    how = Scoring(
        temperature=temperature,
        support=support,
        entropy_gradient=entropy_gradient,
        rows=max(1, chunk_elements // vocabulary),
        hold=torch.is_grad_enabled() and fits,
        compute=computes_in(head.weight),
        barred=barred,
        change=change,
        added=None if change is None else added,
        among=targets.new_empty(len(targets), 0) if among is None else among,
    )
    if teacher is not None:
        weight, bias = teacher.weight[:vocabulary], None if teacher.bias is None else teacher.bias[:vocabulary]
        own = replace(how, compute=computes_in(weight), change=teacher.change, added=added if teacher.change else None)
        product = Product(teacher.states, weight, _biased(bias, added, teacher.change), own)
        how = replace(how, compared=Compared(product, teacher.divergence))
    return Scored(*HeadLogprobs.apply(states, head.weight, _biased(head.bias, added, change), targets, how))


def _biased(bias: Tensor | None, added: Tensor | None, change: LogitChange | None) -> Tensor | None:
    """Return the bias with what is added to logits, if nothing changes them in between."""
    if added is None or change is not None:
        return bias
    return added if bias is None else bias + added


class HeadLogprobs(torch.autograd.Function):
    """states [M,H], weight [V,H], bias [V] or None, targets [M] -> the fields of Scored, nats, float32 or better."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, how: Scoring
    ) -> tuple[Tensor | None, ...]:
        logp, entropy, divergence = states.new_empty(3, len(states), dtype=wide(how.compute))
        room, held, top = None if how.hold else Room(states, weight, how), list[Tensor](), how.among
        product = Product(states, weight, bias, how, room)
        chosen = targets.new_empty(len(states), top.k) if isinstance(top, Top) else top.long()
        among = logp.new_empty(chosen.shape)
        for part, ids in how.chunks(len(states), states.device):
            every = product(part)
            logits = _over_support(every, ids)
            log_p = torch.log_softmax(logits, -1, out=room and room.place(logits))
            if ids is None:
                logp[part] = log_p.gather(-1, targets[part, None])[:, 0]
            else:
                logp[part] = every.gather(-1, targets[part, None])[:, 0] - logits.logsumexp(-1)
            if isinstance(top, Top):
                chosen[part] = log_p[:, : top.below].topk(top.k, dim=-1).indices
            among[part] = log_p.gather(-1, chosen[part])
            if how.compared is not None:
                divergence[part] = how.compared(part, log_p)
            p = torch.exp(log_p, out=logits)
            entropy[part] = -torch.linalg.vecdot(p, _finite(log_p, ids))
            if how.hold:
                held.append(log_p if how.entropy_gradient else p)
        ctx.save_for_backward(states, weight, bias, targets, entropy, chosen, *held)
        ctx.how = how
        ctx.mark_non_differentiable(chosen, *([] if how.entropy_gradient else [entropy]))
        return logp, entropy, chosen, among, None if how.compared is None else divergence

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: Any, up_logp: Tensor, up_entropy: Tensor, _: Any, up_among: Tensor, up_divergence: Tensor
    ) -> tuple[Tensor | None, ...]:
        states, weight, bias, targets, entropy, chosen, *held = ctx.saved_tensors
        how: Scoring = ctx.how
        room, across = None if held else Room(states, weight, how), operand(weight, how.compute)
        product = Product(states, weight, bias, how, room)
        to_states, to_weight, to_bias = (
            torch.zeros_like(x) if needed else None
            for x, needed in zip((states, weight, bias), ctx.needs_input_grad, strict=False)
        )
        for i, (part, ids) in enumerate(how.chunks(len(states), states.device)):
            logits = None if held else _over_support(product(part), ids)
            slope = -(up_logp[part, None] + up_among[part].sum(-1, keepdim=True))
            if how.entropy_gradient:
                log_p = held[i] if logits is None else logits.log_softmax(-1)
                slope = slope - (_finite(log_p, ids) + entropy[part, None]) * up_entropy[part, None]
                slope = slope.mul_(log_p.exp())
            else:
                p = held[i] if logits is None else torch.softmax(logits, -1, out=room and room.place(logits))
                slope = p.mul_(slope)
            slope = _over_vocabulary(slope, ids, len(weight))
            slope.scatter_add_(1, targets[part, None], up_logp[part, None])
            slope.scatter_add_(1, chosen[part], up_among[part])
            if how.compared is not None and logits is not None:
                slope += how.compared.slope(part, logits, up_divergence[part])
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
