"""Log-probabilities and entropies of given tokens, in chunks: a [tokens, vocabulary] tensor is never held at once."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from groupwise.core.records import Support
from groupwise.models.forward.adjustment import UNADJUSTED, Adjustment
from groupwise.models.forward.head_logprobs import HeadLogprobs, Scoring
from groupwise.models.forward.layout import Layout, padded
from groupwise.models.forward.line_attention import hidden_states
from groupwise.models.precision import computes_in

#: Logits of one chunk, elements: 28 MiB in float32. A tensor of 32 MiB or more is fresh memory of the system each time,
#: which takes longer than what is computed in it.
CHUNK_ELEMENTS = 7 << 20
#: Log-probabilities of all ids that are kept from forward to backward, elements: 256 MiB in float32.
HELD_ELEMENTS = 1 << 26


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
    wanted = mask.clone()
    wanted[:, 0] = False
    layout = layout or padded(tokens, torch.full(tokens.shape[:1], tokens.shape[1], device=tokens.device))
    places, targets = layout.predecessors(wanted), tokens[wanted]
    support, each = None if supports is None else _join(supports, wanted), None
    barred = adjustment.barred(wanted)
    if layout.line is not None and support is None and barred is None:
        places, targets, each = _distinct(places, targets, head.weight.shape[0])
    states = hidden_states(backbone, layout).index_select(0, places)
    logp, entropy = token_logprobs(
        head,
        states,
        targets,
        temperature,
        support,
        entropy_gradient,
        chunk_elements,
        held_elements,
        added=adjustment.bias,
        barred=barred,
    )
    return _scatter(logp, wanted, each), _scatter(entropy, wanted, each)


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
) -> tuple[Tensor, Tensor]:
    """states [M,H], targets [M] -> log-probability [M] and entropy [M], nats, float32 or better.

    At most `chunk_elements` logits are computed at once. Where all of them are more than `held_elements`, those of each
    chunk are computed again in the backward pass. `added` [V] is added to every token's logits; `barred` is as Scoring
    has it.
    """
    vocabulary = head.weight.shape[0]
    how = Scoring(
        temperature=temperature,
        support=support,
        entropy_gradient=entropy_gradient,
        rows=max(1, chunk_elements // vocabulary),
        hold=torch.is_grad_enabled() and len(targets) * vocabulary <= held_elements,
        compute=computes_in(head.weight),
        barred=barred,
    )
    bias = head.bias
    if added is not None:
        added = added.to(states.device)
        bias = added if bias is None else bias + added
    return HeadLogprobs.apply(states, head.weight, bias, targets, how)  # type: ignore[return-value]


def _join(supports: Sequence[Support | None], wanted: Tensor) -> Support:
    """The supports of the rows that have a wanted token, as one. Raises ValueError where a token has none."""
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


def _distinct(places: Tensor, targets: Tensor, vocabulary: int) -> tuple[Tensor, Tensor, Tensor]:
    """places, targets [M] -> those of the m different predictions, and for each of the M which of these it is."""
    pairs, each = (places * vocabulary + targets).unique(return_inverse=True)
    return pairs // vocabulary, pairs % vocabulary, each


def _scatter(values: Tensor, where: Tensor, each: Tensor | None) -> Tensor:
    """values [m] -> [N,T], at the M places that are True the values `each` [M] of them, or one after the other."""
    values = values if each is None else values.index_select(0, each)
    out = torch.zeros(where.shape, dtype=values.dtype, device=values.device)
    return out.masked_scatter(where, values)
