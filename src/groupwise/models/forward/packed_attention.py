"""Attention over a packed sequence (models/forward/layout.py), run by transformers' own models as a function of ours.

A token attends to what precedes it in its row, wherever in the packed sequence that is. So the hidden states are those
of each row by itself, and so are the gradients, which add up in what rows share.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from groupwise.models.forward.heads import hidden
from groupwise.models.forward.layout import Block, Layout, PackedSequence, packed, padded
from groupwise.models.precision import computes_in, operand

#: The names under which transformers' models know this attention, and their own without a mask of any kind.
NAME, UNMASKED = "groupwise_line", "groupwise_unmasked"


def hidden_states(backbone: nn.Module, layout: Layout) -> Tensor:
    """Return the hidden state of every token that a layout runs, [R*S,H]; a packed sequence, inside `attend_packed`."""
    if layout.line is None:
        return hidden(backbone, layout.ids).flatten(0, 1)
    out = backbone(input_ids=layout.ids, position_ids=layout.positions, use_cache=False, line=layout.line)
    return out.last_hidden_state[0]


@contextmanager
def attend_packed(backbone: nn.Module) -> Iterator[None]:
    """Make a forward of `backbone` attend by packed sequence inside, and its backward if activations are recomputed."""
    with attending(backbone, NAME):
        yield


@contextmanager
def attending(backbone: nn.Module, name: str) -> Iterator[None]:
    """Make `backbone` attend inside by the attention function of that name."""
    configs: dict[int, Any] = {id(m.config): m.config for m in backbone.modules() if hasattr(m, "config")}
    before = {key: config._attn_implementation for key, config in configs.items()}
    try:
        for config in configs.values():
            config._attn_implementation = name
        yield
    finally:
        for key, config in configs.items():
            config._attn_implementation = before[key]


def runs_packed(backbone: nn.Module) -> bool:
    """Tell whether a model gives in a packed sequence what it gives in rows: tried on a few tokens.

    Not so where tokens mix other than by attention (state-space layers), or attention is more than a softmax over keys
    (softcapping, sinks, chunks).
    """
    config: Any = backbone.config
    if "chunked_attention" in (getattr(config, "layer_types", None) or ()):
        return False
    weight = next(backbone.parameters())
    tokens = (torch.arange(4 * 9, device=weight.device).view(4, 9) * 7 + 3) % config.get_text_config().vocab_size
    tokens[1, :3], tokens[3, :4] = tokens[0, :3], tokens[2, :4]
    length = torch.tensor([9, 6, 8, 9])
    rows, line = padded(tokens, length.to(weight.device)), packed(tokens, length)
    try:
        with torch.no_grad(), attend_packed(backbone):
            ours = hidden_states(backbone, line)[line.place[line.run]]
    except (TypeError, ValueError, RuntimeError, NotImplementedError):
        return False
    with torch.no_grad():
        own = hidden_states(backbone, rows)[rows.place[rows.run]]
    bound = 1e-3 if weight.dtype.itemsize >= 4 else 3e-2
    return bool((ours.float() - own.float()).norm() <= bound * own.float().norm())


@torch.compiler.disable  # compiled layers call it as it is: its blocks differ from batch to batch
def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    line: PackedSequence | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """query [1,h,S,D], key, value [1,h or fewer,S,D] -> [1,S,h,D], as a model of transformers asks for it.

    Raises NotImplementedError if the model asks for what this attention does not do.
    """
    more = [name for name in ("softcap", "s_aux", "position_bias") if others.get(name) is not None]
    if line is None or more:
        raise NotImplementedError(f"attention in a line {f'with {more[0]}' if more else 'without a line'}")
    compute, kind = computes_in(query), query.device.type
    query, key, value = (operand(x, compute) for x in (query, key, value))
    queries = _take(query, line.queries).split([block.own.numel() for block in line.blocks])
    keys, values = (_take(x, line.keys).split([block.keys.numel() for block in line.blocks]) for x in (key, value))
    parts = []
    for block, *of_block in zip(line.blocks, queries, keys, values, strict=True):
        q, k, v = (x.unflatten(0, (len(block.own), -1)).transpose(1, 2) for x in of_block)
        with torch.autocast(kind, enabled=False):
            out = _attend(block, q, k, v, sliding_window, dropout, scaling)
        parts.append(out.to(compute).transpose(1, 2).flatten(0, 1))
    return torch.cat(parts).index_select(0, line.order)[None], None


def _attend(
    block: Block, query: Tensor, key: Tensor, value: Tensor, window: int | None, dropout: float, scale: float | None
) -> Tensor:
    """query [n,h,q,D], key, value [n,h or fewer,p+q,D] -> [n,h,q,D]."""
    heads, shared = query.shape[1], query.shape[1] // key.shape[1]
    if block.path is None and window is None:
        keys, values = (x.repeat_interleave(shared, 1) if shared > 1 else x for x in (key, value))
        return scaled_dot_product_attention(query, keys, values, dropout_p=dropout, is_causal=True, scale=scale)
    # Query heads that share a key stand below one another, so that no key is copied for each of them.
    mask, query = block.mask(window), query.unflatten(1, (-1, shared)).flatten(2, 3)
    mask = mask.repeat(1, 1, shared, 1)
    out = scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout, scale=scale)
    return out.unflatten(2, (shared, -1)).reshape(len(out), heads, -1, out.shape[-1])


def _take(x: Tensor, places: Tensor) -> Tensor:
    """Map [1,h,S,D] and places [n] -> [n,h,D]."""
    return x[0].transpose(0, 1).index_select(0, places)


def _no_mask(*args: Any, **kwargs: Any) -> None:
    """Make no mask where a model asks for one: the line has its own."""


AttentionInterface.register(NAME, packed_attention)  # type: ignore[arg-type]
AttentionMaskInterface.register(NAME, _no_mask)  # type: ignore[arg-type]
AttentionInterface.register(UNMASKED, AttentionInterface()["sdpa"])
AttentionMaskInterface.register(UNMASKED, _no_mask)  # type: ignore[arg-type]
