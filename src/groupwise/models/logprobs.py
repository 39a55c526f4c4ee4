"""Log-probabilities and entropies of given tokens, in chunks: a [tokens, vocabulary] tensor is never held at once."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from groupwise.core.records import Support
from groupwise.models.heads import hidden

#: Logits held at once, elements: 64 MiB in float32.
CHUNK_ELEMENTS = 1 << 24


def sequence_logprobs(
    backbone: nn.Module,
    head: nn.Module,
    tokens: Tensor,
    mask: Tensor,
    temperature: float = 1.0,
    supports: Sequence[Support | None] | None = None,
    entropy_gradient: bool = False,
) -> tuple[Tensor, Tensor]:
    """tokens, mask [N,T] -> log-probability [N,T] and entropy [N,T] in nats, 0 where the mask is False.

    Column t belongs to the token at t, predicted from the columns before it. The distribution is the sampled one:
    logits over temperature, renormalised over the ids of the support where sampling left some out.
    """
    wanted = mask.clone()
    wanted[:, 0] = False
    states = hidden(backbone, tokens[:, :-1] if tokens.shape[1] > 1 else tokens)
    states = states[wanted[:, 1:]] if tokens.shape[1] > 1 else states[:, 0][wanted[:, 0]]
    support = None if supports is None else _join(supports, wanted)
    logp, entropy = token_logprobs(head, states, tokens[wanted], temperature, support, entropy_gradient)
    return _scatter(logp, wanted), _scatter(entropy, wanted)


def token_logprobs(
    head: nn.Module,
    states: Tensor,
    targets: Tensor,
    temperature: float = 1.0,
    support: Support | None = None,
    entropy_gradient: bool = False,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> tuple[Tensor, Tensor]:
    """states [M,H], targets [M] -> log-probability [M] and entropy [M], nats, float32 or better.

    Peak memory is that of one chunk of at most `chunk_elements` logits; with gradients each chunk's logits are
    recomputed in the backward pass.
    """
    vocabulary = head.weight.shape[0]  # type: ignore[union-attr]
    rows = max(1, chunk_elements // int(vocabulary))
    score = partial(_chunk, head, temperature, entropy_gradient)
    if len(targets) <= rows:
        return score(states, targets, _pad_support(support, 0, len(targets), targets.device))
    recompute = torch.is_grad_enabled()
    chunks: list[tuple[Tensor, Tensor]] = []
    for start in range(0, len(targets), rows):
        stop = min(start + rows, len(targets))
        part = (states[start:stop], targets[start:stop], _pad_support(support, start, stop, targets.device))
        chunks.append(
            checkpoint(score, *part, use_reentrant=False, preserve_rng_state=False) if recompute else score(*part)
        )
    return torch.cat([logp for logp, _ in chunks]), torch.cat([entropy for _, entropy in chunks])


def _chunk(
    head: nn.Module, temperature: float, entropy_gradient: bool, states: Tensor, targets: Tensor, ids: Tensor | None
) -> tuple[Tensor, Tensor]:
    """One chunk: [m,H], [m], ids of the support [m,K] padded with -1 or None -> [m], [m]."""
    logits = head(states)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    chosen = logits.gather(-1, targets[:, None])[:, 0]
    if ids is not None:
        logits = logits.gather(-1, ids.clamp(min=0)).masked_fill(ids < 0, -torch.inf)
    log_total = logits.logsumexp(-1)
    with torch.set_grad_enabled(torch.is_grad_enabled() and entropy_gradient):
        finite = logits if ids is None else logits.masked_fill(ids < 0, 0.0)
        entropy = log_total - ((logits - log_total[:, None]).exp() * finite).sum(-1)
    return chosen - log_total, entropy


def _join(supports: Sequence[Support | None], wanted: Tensor) -> Support:
    """The supports of the rows that have a wanted token, as one. Raises ValueError where a token has none."""
    ids, starts, offset = [], [torch.zeros(1, dtype=torch.long)], 0
    for row, tokens in zip(supports, wanted.sum(-1).tolist(), strict=True):
        if not tokens:
            continue
        if row is None or len(row.start) != tokens + 1:
            raise ValueError(f"a completion of {tokens} tokens came without the ids its sampling kept for each")
        ids.append(row.ids)
        starts.append(row.start[1:] + offset)
        offset += int(row.start[-1])
    return Support(torch.cat(ids), torch.cat(starts))


def _pad_support(support: Support | None, start: int, stop: int, device: torch.device) -> Tensor | None:
    """Tokens start..stop of a support -> [m,K] int64, padded with -1."""
    if support is None or start == stop:
        return None
    edges = support.start[start : stop + 1]
    counts = edges.diff()
    columns = torch.arange(int(counts.max()))
    inside = columns < counts[:, None]
    padded = torch.full(inside.shape, -1, dtype=torch.long)
    padded[inside] = support.ids[int(edges[0]) : int(edges[-1])].long()
    return padded.to(device)


def _scatter(values: Tensor, where: Tensor) -> Tensor:
    out = torch.zeros(where.shape, dtype=values.dtype, device=values.device)
    return out.masked_scatter(where, values)
