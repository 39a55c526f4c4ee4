"""Memory of a microbatch between its forward and its backward pass: both are run, on tensors that have a shape only.

So every architecture is counted by its own code, in the learner's layout, precision and chunks. One of the layers that
are alike is run, and counts for all of them.
"""

import copy
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, UntypedStorage, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from transformers.cache_utils import Cache, DynamicCache

from groupwise.core.prefixes import prompt_keys
from groupwise.engines.local.states import cache_argument, states_of
from groupwise.models.causal import CausalLM
from groupwise.models.context import has_states, windows
from groupwise.models.files.folder import quiet
from groupwise.models.forward.forwards import recomputed
from groupwise.models.forward.fused_layers import FusedLayers
from groupwise.models.forward.heads import LogitChange, halves, logit_change
from groupwise.models.forward.layout import Layout, moved, packed, padded
from groupwise.models.forward.logprobs import token_logprobs
from groupwise.models.forward.packed_attention import NAME, UNMASKED, attending, hidden_states

#: Tokens of a microbatch that are run, if only in shape: where each lies is computed with numbers.
MOST_TOKENS = 1 << 18


@dataclass(frozen=True)
class Computation:
    """Settings with which a learner runs a microbatch.

    packs         a prompt is run once for the completions of its group
    bf16            computed in bfloat16 over float32 weights
    recompute       the backward pass runs each layer again
    chunk_elements  logits computed at once
    held_elements   log-probabilities held for the backward pass, at most
    """

    packs: bool
    bf16: bool
    recompute: bool
    chunk_elements: int
    held_elements: int


@dataclass(frozen=True)
class Rows:
    """Rows of one microbatch: completions[i] of the i-th prompt; a prompt and a completion have that many tokens."""

    completions: tuple[int, ...]
    prompt: int
    completion: int

    def tokens(self, packs: bool) -> int:
        """Count the tokens of all rows."""
        count = sum(self.completions)
        return (len(self.completions) if packs else count) * self.prompt + count * self.completion


@dataclass(frozen=True)
class MicrobatchBytes:
    """The most that a microbatch takes, beside weights and gradients.

    head   while the activations of every layer are held, and log-probabilities are made or go back
    first  when the backward pass begins in the layers
    last   when it is through them: nearly nothing of their activations is left
    layer  the activations of one layer, of the largest kind
    """

    head: int
    first: int
    last: int
    layer: int


def without_memory(config: Any) -> Any:
    """Make the causal language model of a configuration, its weights with a shape only; not to be changed.

    Runs of one configuration share the model, and what is found of it, wherever the weights lie.
    """
    placeless = copy.deepcopy(config)
    placeless.name_or_path = ""
    return _shapes(_Configuration(placeless.to_json_string(use_diff=False), placeless))


@dataclass(frozen=True)
class _Configuration:
    """A configuration that equals another of the same text."""

    text: str
    config: Any = field(compare=False)


@lru_cache(maxsize=8)
def _shapes(of: _Configuration) -> Any:
    with quiet(), torch.device("meta"):
        return CausalLM.from_config(copy.deepcopy(of.config), dtype=torch.float32, trust_remote_code=False)


@lru_cache(maxsize=8)
def with_value_head(model: Any, bias: bool = True) -> Any:
    """Copy a model without memory, with a head that gives one number: a critic's has a bias, a reward model's none.

    The copy is shared as the model is, and not to be changed either.
    """
    model = copy.deepcopy(model)
    model.config.get_text_config().tie_word_embeddings = False
    model.set_output_embeddings(nn.Linear(halves(model)[1].in_features, 1, bias=bias, device="meta"))
    return model


def weight_bytes(model: Any) -> int:
    """Size the weights in float32, each counted once."""
    return sum(parameter.numel() for parameter in model.parameters()) * 4


def cached_widths(model: Any) -> tuple[int, ...]:
    """Count the numbers that a token has in each tensor of keys or values: two for each layer that has them."""
    return _kept_by_layers(model)[0]


def state_numbers(model: Any) -> int:
    """Count the numbers that a row has in the states of all layers, however long it is; 0 for attention alone."""
    return _kept_by_layers(model)[1]


@lru_cache(maxsize=32)
def _kept_by_layers(model: Any) -> tuple[tuple[int, ...], int]:
    thin, counts = _one_of_each_kind(copy.deepcopy(model))
    cache, backbone = _Widths(model.config), halves(thin.to_empty(device="cpu").eval())[0]
    try:
        with quiet(), torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True), _ShapesLive():
            ids = torch.zeros(1, 2, dtype=torch.long)
            backbone(input_ids=ids, use_cache=True, **{cache_argument(backbone): cache})
        keyed = {layer: count for layer, count in counts.items() if layer in cache.pairs or not cache.layers}
        widths = tuple(width for layer, count in keyed.items() for width in cache.pairs[layer] * count)
        if not counts:
            raise LookupError("no list of layers")
        return widths, sum(count * cache.numbers(layer) for layer, count in counts.items())
    except Exception:  # as in microbatch_bytes
        config = model.config.get_text_config()
        return (config.hidden_size,) * 2 * len(windows(config)), 0


def microbatch_bytes(model: Any, rows: Rows, how: Computation, device: str) -> MicrobatchBytes:
    """Size a microbatch of a model without memory, which stays as it is; one that shapes cannot run is estimated."""
    _, head = halves(model)
    tokens = sum(rows.completions) * rows.completion
    inside = _backbone_bytes(model, rows, how.packs, how.bf16, how.recompute, device)
    trains, change = head.weight.requires_grad, logit_change(model)
    shape = _Head(*head.weight.shape, bias=head.bias is not None, trains=trains, change=change)
    logits = _head_bytes(shape, tokens, how, device)
    # A weight that is embedding and head waits for its second gradient until the backward pass is through.
    tied = head.weight is model.get_input_embeddings().weight and head.weight.requires_grad
    waiting = head.weight.numel() * 4 if tied else 0
    return replace(inside, head=inside.head + logits, first=inside.first + waiting, last=inside.last + waiting)


@lru_cache(maxsize=128)
def _backbone_bytes(model: Any, rows: Rows, packs: bool, bf16: bool, recompute: bool, device: str) -> MicrobatchBytes:
    """Size all but the head; a run tries several ways to cut its logits over one result."""
    if rows.tokens(packs) <= MOST_TOKENS:
        with suppress(Exception):  # whatever a model does that needs numbers, such as a branch on one
            return _simulated(model, rows, packs, bf16, recompute, device)
    return _rough(model, rows, packs)


def _rough(model: Any, rows: Rows, packs: bool) -> MicrobatchBytes:
    """Estimate as if each linear layer held what goes in and what comes out."""
    backbone, _ = halves(model)
    widths = [m.in_features + m.out_features for m in backbone.modules() if isinstance(m, nn.Linear)]
    held, layer = (rows.tokens(packs) * width * 4 for width in (sum(widths), max(widths, default=1)))
    return MicrobatchBytes(head=held, first=held + layer, last=layer, layer=layer)


def _simulated(model: Any, rows: Rows, packs: bool, bf16: bool, recompute: bool, device: str) -> MicrobatchBytes:
    """Run the layers forward and backward, one of each kind, on tensors that have a shape only."""
    layout = _layout(rows, packs)
    thin, counts = _one_of_each_kind(copy.deepcopy(model))
    fused = FusedLayers(thin)  # tried on numbers, and so before there are shapes only
    with quiet(), fused.running(), FakeTensorMode(allow_non_fake_inputs=True), ExitStack() as stack:
        backbone: Any = halves(thin.to_empty(device=device).eval())[0]
        for parameter in backbone.parameters():
            parameter.grad = torch.empty_like(parameter) if parameter.requires_grad else None
        # A model that sees no numbers would make the mask that real rows go without.
        if packs or backbone.config._attn_implementation == "sdpa":
            stack.enter_context(attending(backbone, NAME if packs else UNMASKED))
        if recompute:
            stack.enter_context(recomputed(backbone))
        layout = moved(layout, device)
        live = stack.enter_context(_ShapesLive())
        layers = [_Layer(module, live) for module in _layers(backbone)]
        with torch.autocast(layout.ids.device.type, torch.bfloat16, enabled=bf16):
            states = hidden_states(backbone, layout)
        held, live.peak = live.now, live.now
        states.backward(torch.empty_like(states))
    others = sum(layer.held * (count - 1) for layer, count in zip(layers, counts.values(), strict=True))
    first = (layers[-1].peak if layers else 0) or live.peak
    return MicrobatchBytes(held + others, first + others, live.peak, max((each.held for each in layers), default=held))


@dataclass(frozen=True)
class _Head:
    """The shape of a linear layer from hidden states to logits, whether it is trained, and what changes the logits."""

    vocabulary: int
    width: int
    bias: bool
    trains: bool
    change: LogitChange | None


@lru_cache(maxsize=128)
def _head_bytes(head: _Head, tokens: int, how: Computation, device: str) -> int:
    """Find the most that log-probabilities of `tokens` tokens take, backward too. Chunks are alike: three are run."""
    vocabulary = head.vocabulary
    holds = tokens * vocabulary <= how.held_elements and not (head.change and head.change.cap)
    run = min(tokens, 3 * max(1, how.chunk_elements // vocabulary))
    with FakeTensorMode():
        same = nn.Linear(head.width, vocabulary, bias=head.bias, device=device)
        same.requires_grad_(head.trains)
        for parameter in same.parameters():
            parameter.grad = torch.empty_like(parameter) if parameter.requires_grad else None
        hidden = torch.empty(tokens, head.width, device=device, requires_grad=True)
        with LiveBytes() as live, torch.autocast(hidden.device.type, torch.bfloat16, enabled=how.bf16):
            states = hidden.index_select(0, torch.arange(tokens, device=device))[:run]
            logp, *_ = token_logprobs(
                same,
                states,
                torch.zeros(run, dtype=torch.long, device=device),
                chunk_elements=how.chunk_elements,
                held_elements=run * vocabulary if holds else 0,
                change=head.change,
            )
            logp.sum().backward()
    return live.peak + ((tokens - run) * vocabulary * 4 if holds else 0)


def _layout(rows: Rows, line: bool) -> Layout:
    count, width = sum(rows.completions), rows.prompt + rows.completion
    tokens, length = torch.zeros(count, width, dtype=torch.long), torch.full((count,), width)
    family = torch.arange(len(rows.completions)).repeat_interleave(torch.tensor(rows.completions))
    return packed(tokens, length, prompt_keys(family, rows.prompt, rows.completion)) if line else padded(tokens, length)


class LiveBytes(TorchDispatchMode):
    """Counter of every tensor that an operation makes inside it, views of older ones not, until its storage is gone.

    now   bytes
    peak  the most that `now` has been
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = self.compute(func, args, kwargs or {})
        older = {storage._cdata for storage in _storages((args, kwargs))}
        for storage in _storages(out):
            if storage._cdata not in older:
                self._see(storage)
        return out

    def compute(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation; a subclass may know better what one gives of shapes."""
        return func(*args, **kwargs)

    def _see(self, storage: UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


class _ShapesLive(LiveBytes):
    """Counter of tensors without memory. torch says of grouped products of bfloat16 alone what shape they have."""

    def compute(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func is not torch.ops.aten._grouped_mm.default:
            return super().compute(func, args, kwargs)
        one, other, ends = *args[:2], kwargs.get("offs", args[2] if len(args) > 2 else None)
        groups = [len(ends)] if one.dim() == other.dim() == 2 else []
        return one.new_empty(*groups, one.shape[0], other.shape[-1])


class _Widths(Cache):
    """Cache that takes keys and values [1,H,W,D], and keeps of each layer how many numbers of each a token has."""

    def __init__(self, config: Any) -> None:
        super().__init__(layers=DynamicCache(config=config).layers if has_states(config) else [])
        self.pairs: dict[int, tuple[int, int]] = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        keys, values = (states.shape[1] * states.shape[3] for states in (key_states, value_states))
        self.pairs[layer_idx] = (keys, values)
        return key_states, value_states

    def numbers(self, layer: int) -> int:
        """Count the numbers of a layer's states, of which there is one row."""
        places = states_of(self.layers[layer]) if self.layers else {}
        return sum(state.numel() for state in places.values())

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return query_length, 0


class _Layer:
    """Record of what a layer leaves behind forward, and of the peak when the backward pass is through it."""

    def __init__(self, module: nn.Module, live: LiveBytes) -> None:
        self.held = self.peak = 0
        self._live = live
        module.register_forward_pre_hook(self._begin, with_kwargs=True)
        module.register_forward_hook(self._end)

    def _begin(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        states = args[0] if args else kwargs["hidden_states"]
        if states.requires_grad:  # else the backward pass ends in this layer
            states.register_hook(self._behind)
        self._before = self._live.now

    def _end(self, *_: object) -> None:
        self.held = self._live.now - self._before

    def _behind(self, _: Tensor) -> None:
        self.peak = self._live.peak


def _one_of_each_kind(model: Any) -> tuple[Any, dict[int, int]]:
    """Keep the first layer of each kind, in place; return the model, and by that layer's number how many there were."""
    backbone, _ = halves(model)
    for parent in backbone.modules():
        for name, child in parent.named_children():
            if child is _layers(backbone):
                layers = list(child.children())
                # Two take the same memory if their weights have the same names and shapes.
                shapes = (tuple((name, p.shape) for name, p in layer.named_parameters()) for layer in layers)
                kinds = [(type(layer), shape) for layer, shape in zip(layers, shapes, strict=True)]
                number = Counter(kinds)
                setattr(parent, name, nn.ModuleList(layers[kinds.index(kind)] for kind in number))
                return model, {kinds.index(kind): count for kind, count in number.items()}
    return model, {}


def _layers(backbone: nn.Module) -> Any:
    """Find the list of the backbone's layers; empty if it has none that is known."""
    lists = [m for m in backbone.modules() if isinstance(m, nn.ModuleList)]
    return max(lists, key=lambda each: sum(p.numel() for p in each.parameters()), default=[])


def _storages(values: Any) -> Iterator[UntypedStorage]:
    return (value.untyped_storage() for value in tree_iter(values) if isinstance(value, Tensor))
