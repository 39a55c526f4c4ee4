"""Attention over a packed sequence (models/forward/layout.py), run by transformers' own models as a function of ours.

A token attends to what precedes it in its row, wherever in the packed sequence that is. So the hidden states are those
of each row by itself, and so are the gradients, which add up in what rows share. It is computed in blocks of sequences
here, or as one (models/forward/flex.py): whichever the layout says.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from groupwise.core.errors import UsageError
from groupwise.models.context import has_states, unknown_layers
from groupwise.models.forward.flex import Tree, Windows, attend_flex, require_plain
from groupwise.models.forward.heads import hidden
from groupwise.models.forward.layout import Block, Layout, PackedSequence, packed, padded
from groupwise.models.precision import computes_in, operand
from groupwise.models.unread import device_of, running

#: The names under which transformers' models know this attention, in blocks and as one, and their own without a mask.
#: Under a name for which it has no masks, transformers makes none: a line has its own.
NAME, AS_ONE, UNMASKED = "groupwise_line", "groupwise_line_as_one", "groupwise_unmasked"
#: Weights from which on flex attention's kernels are compiled, which takes some seconds: a smaller policy waits for the
#: interpreter, not for attention. A guess, until a card has measured it.
LARGE = 1 << 28


def hidden_states(backbone: nn.Module, layout: Layout) -> Tensor:
    """Return the hidden state of every token that a layout runs, [R*S,H]; a packed sequence, inside `attend_packed`."""
    if layout.line is None:
        return hidden(backbone, layout.ids).flatten(0, 1)
    line = layout.line.masks() if isinstance(layout.line, Tree) else layout.line
    out = backbone(input_ids=layout.ids, position_ids=layout.positions, use_cache=False, line=line)
    return out.last_hidden_state[0]


@contextmanager
def attend_packed(backbone: nn.Module, line: PackedSequence | Tree | None = None) -> Iterator[None]:
    """Make a forward of `backbone` attend by packed sequence inside, and its backward if activations are recomputed.

    line  the layout's, which says how; None: in blocks
    """
    with attending(backbone, AS_ONE if isinstance(line, Tree) else NAME):
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

    Not so where tokens mix other than by attention (a state reads every row before; its share may be too small to be
    seen in a trial), or attention is more than a softmax over keys (softcapping, sinks, chunks). Layers that choose
    the tokens that they attend to would choose among those of every row, of which a trial has too few.
    """
    config: Any = backbone.config
    if has_states(config) or unknown_layers(config):
        return False
    tokens, length = _few_rows(backbone, 9)
    rows, line = padded(tokens, length.to(tokens.device)), packed(tokens, length)
    try:
        with torch.no_grad(), running(backbone), attend_packed(backbone):
            ours = hidden_states(backbone, line)[line.place[line.run]]
    except Exception:  # whatever a model does without a mask, or with what it does not know; in rows it runs
        return False
    with torch.no_grad(), running(backbone):
        own = hidden_states(backbone, rows)[rows.place[rows.run]]
    return _near(ours, own, next(backbone.parameters()).dtype)


def windows_as_one(
    backbones: Sequence[nn.Module],
    attention: Literal["auto", "flex", "blocks"],
    dtype: torch.dtype,
) -> Windows | None:
    """Return the windows of models that run packed if a line of theirs is to be one attention; None: blocks are.

    backbones  of the models; none if one of them does not run packed
    Raises UsageError for "flex" where a trial, computed in `dtype`, fails.
    """
    if attention == "blocks" or (attention == "auto" and not backbones):
        return None
    if not backbones:
        raise UsageError('learner.attention = "flex": this policy runs row by row; set it to "auto" or "blocks"')
    kind, weights = next(backbones[0].parameters()).device.type, sum(p.numel() for p in backbones[0].parameters())
    if attention == "auto" and (kind == "cpu" or weights < LARGE):
        return None
    windows = windows_of(backbones)
    runs = all(runs_as_one(backbone, windows, dtype) for backbone in backbones)
    if not runs and attention == "flex":
        raise UsageError(
            f'learner.attention = "flex": torch does not run it for this policy on {kind}, or it gives other numbers '
            'than blocks do; set it to "auto" or "blocks"'
        )
    return windows if runs else None


def windows_of(backbones: Sequence[nn.Module]) -> Windows:
    """Return the windows that layers of models may ask for: that of the configuration, and none."""
    configs: list[Any] = [backbone.config for backbone in backbones]
    own = {window for config in configs if (window := getattr(config.get_text_config(), "sliding_window", None))}
    return (None, *sorted(own))


def runs_as_one(backbone: nn.Module, windows: Windows, dtype: torch.dtype) -> bool:
    """Tell whether a model that runs packed gives as one attention what it gives in blocks, gradient too: tried on the
    tokens of a few blocks of a mask, computed in `dtype`, and compared with float32.

    Not so in float64, where torch has no kernel for the shape of the heads, or where a layer asks for another window.
    """
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return False
    tokens, length = _few_rows(backbone, min(150, _longest(backbone)))
    try:
        ours = _states_and_slope(backbone, packed(tokens, length, windows=windows), dtype)
    except Exception:  # whatever torch's compilers raise: they have no common class
        return False
    line, held = packed(tokens, length), next(backbone.parameters()).dtype
    own, exact = (_states_and_slope(backbone, line, kind) for kind in (dtype, torch.float32))
    # No further off than blocks are, twice: rounding alone may take another expert of a mixture, in either.
    return all(_near(a, c, held, 2 * (b - c).norm()) for a, b, c in zip(ours, own, exact, strict=True))


def _states_and_slope(backbone: nn.Module, layout: Layout, dtype: torch.dtype) -> list[Tensor]:
    """Return the hidden states of the rows' tokens, and the gradient of a sum over them in a small weight."""
    trained = sorted((p for p in backbone.parameters() if p.requires_grad), key=Tensor.numel)[:1]
    kind = next(backbone.parameters()).device.type
    autocast = torch.autocast(kind, dtype, enabled=dtype != torch.float32)
    with torch.set_grad_enabled(bool(trained)), autocast, attend_packed(backbone, layout.line):
        states = hidden_states(backbone, layout)[layout.place[layout.run]].float()
        uneven = torch.arange(states.numel(), device=states.device).cos().view_as(states)
        slope = torch.autograd.grad((states * uneven).sum(), trained) if trained else ()
    return [states.detach(), *(x.float() for x in slope)]


def _few_rows(backbone: nn.Module, width: int) -> tuple[Tensor, Tensor]:
    """Return four rows of up to `width` tokens, two and two with the same beginning, on the model's device, and their
    lengths, on the CPU.
    """
    config: Any = backbone.config
    device, third = device_of(backbone), width // 3
    vocabulary, numbers = config.get_text_config().vocab_size, torch.Generator().manual_seed(0)
    tokens = torch.randint(vocabulary, (4, width), generator=numbers).to(device)
    tokens[1, :third], tokens[3, : third + 1] = tokens[0, :third], tokens[2, : third + 1]
    return tokens, torch.tensor([width, width - third, width - 1, width])


def _longest(backbone: nn.Module) -> int:
    config: Any = backbone.config
    return getattr(config.get_text_config(), "max_position_embeddings", None) or 150


def _near(ours: Tensor, own: Tensor, dtype: torch.dtype, more: Tensor | float = 0.0) -> bool:
    bound = 1e-3 if dtype.itemsize >= 4 else 3e-2
    return bool((ours.float() - own.float()).norm() <= bound * own.float().norm() + more)


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
    require_plain(others)
    if line is None:
        raise NotImplementedError("attention in a line without a line")
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


AttentionInterface.register(NAME, packed_attention)  # type: ignore[arg-type]
AttentionInterface.register(AS_ONE, attend_flex)  # type: ignore[arg-type]
AttentionInterface.register(UNMASKED, AttentionInterface()["sdpa"])
