"""The model's two forwards: prompts, each once before the first token is sampled, and one token for many rows.

Prompts run with transformers' attention, which never holds every score. A prompt whose first tokens are held (cache.py)
runs the others only. Beside one that has more of them it runs some of its held ones again, in places that were padding
otherwise: so what is before the tokens run ends in one column. A layer with a state (states.py) would read padding, so
prompts of a model with such layers run with those of their own length alone, and are joined behind that.

In a small model most of a forward over few tokens is Python between tensor operations. So the forward of one token a
row is recorded once by torch's tracer and replayed where that gives the same (recording.py): a step is 1.4 to 2.6 times
as fast so (docs/findings/performance.md: python benchmarks/engine.py experts). A loaded weight is seen at once.

Experts can be recorded where they are computed without a loop over those that were hit: transformers' grouped products
and its batched ones can, its "eager" ones cannot.

Importing this module registers `row_attention` with transformers under the name ATTENTION.

Shapes: P prompts, W tokens of the longest, padded on the left; R rows.
"""

import inspect
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.cache_utils import Cache

from groupwise.engines.local.cache import Held, PrefilledPrompts, first_tokens, joined
from groupwise.engines.local.columns import LayerWindows
from groupwise.engines.local.recording import Forward, recorded
from groupwise.engines.local.states import LayerMemory
from groupwise.models.context import EVERY
from groupwise.models.moe.record import Router, on_output, record_routes, require_routers, route_dtype, tensors_in

ATTENTION = "groupwise_rows"


class PromptCache(Cache):
    """The cache of a model that runs prompts behind `past`: keys and values of each layer in turn, or nothing.

    memory  past and new ones, [P,H,W,D]
    """

    def __init__(self, kept: LayerMemory, past: Sequence[Tensor] = ()) -> None:
        super().__init__(layers=kept.empty())
        self._past = past
        self.memory: list[Tensor] = []

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        if self._past:
            key_states = torch.cat([self._past[2 * layer_idx], key_states], 2)
            value_states = torch.cat([self._past[2 * layer_idx + 1], value_states], 2)
        self.memory += [key_states, value_states]
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._past[0].shape[2] if self._past else 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return query_length + self.get_seq_length(), 0


class ViewCache(Cache):
    """The cache of a model that runs one step of the rows: it writes and reads the views of RowCache.views."""

    def __init__(self, kept: LayerMemory, views: Sequence[Tensor]) -> None:
        columns = 4 * len(kept.keyed)
        super().__init__(layers=kept.filled(views[columns:]))
        self._views, self._keyed = views[:columns], kept.keyed

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write one column of keys and values, [R,H,1,D] each, and return the windows, [R,H,W,D] each."""
        first = 4 * self._keyed[layer_idx]
        key_column, keys, value_column, values = self._views[first : first + 4]
        key_column.copy_(key_states)
        value_column.copy_(value_states)
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.get_mask_sizes(1, layer_idx)[0] - 1

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Return the columns that a layer sees; of one without keys and values, those of the first that has them."""
        return self._views[4 * self._keyed.get(layer_idx, 0) + 1].shape[2], 0


def row_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend from one new token per row, by two batched products; prompts go to transformers' own sdpa function.

    query [R,heads,Q,D], key and value [R,H,W,D], mask [R,1,Q,W] additive -> [R,Q,heads,D]. Query heads that share a
    key-value head are one matrix, so grouped-query attention copies no key. On a CPU this is 2 to 6 times as fast as
    scaled_dot_product_attention at one token, whose kernels are made for long queries. Whatever is recorded
    (recording.py) runs this.
    """
    # A recording may not branch on a size.
    short = torch.jit.is_tracing() or query.shape[2] == 1  # type: ignore[reportPrivateImportUsage]
    if not short or kwargs.get("softcap") is not None or kwargs.get("position_bias") is not None:
        attend = AttentionInterface()["sdpa"]
        return attend(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    rows, heads, queries, size = query.shape
    packed = query.reshape(rows, key.shape[1], -1, size).flatten(0, 1)
    scale = size**-0.5 if scaling is None else scaling
    # The first argument is not read where beta is 0; the scale costs nothing here.
    scores = torch.baddbmm(packed.new_empty(()), packed, key.flatten(0, 1).transpose(1, 2), beta=0, alpha=scale)
    if attention_mask is not None:
        scores.view(rows, heads, queries, -1).add_(attention_mask)
    weight = torch.softmax(scores, -1, dtype=torch.float32).to(value.dtype)
    return torch.bmm(weight, value.flatten(0, 1)).view(rows, heads, queries, -1).transpose(1, 2), None


AttentionInterface.register(ATTENTION, row_attention)


def make_experts_recordable(model: Any) -> None:
    """Replace experts in a Python loop, which cannot be recorded, by transformers' default implementation."""
    used, best = model.config._experts_implementation, model.get_correct_experts_implementation(None)
    slow = ("eager", "batched_mm") if model.device.type == "cpu" else ("eager",)
    if used in slow and best not in slow:
        model.set_experts_implementation(best)


def logits_and_experts(model: Any, routers: Sequence[Router], **inputs: Any) -> tuple[Tensor, Tensor | None]:
    """Return the model's logits, [R,T,V], and the experts of every token, [tokens,L,K], in the smallest type that holds
    an expert's number; None for no routers.
    """
    chosen: list[Tensor] = []

    # A recording may not branch on a size, so this is less careful than models/moe/record.py; Prefill has checked
    # the routers' outputs by record_routes.
    def keep(layer: int, output: object) -> None:
        ids = (t for t in tensors_in(output) if not t.is_floating_point() and t.dim() >= 2)
        chosen.extend(t.flatten(0, -2) for t in ids)

    with on_output(routers, keep):
        logits = model(**inputs).logits
    experts = torch.stack(chosen, 1).to(route_dtype(max(r.experts for r in routers))) if routers else None
    return logits, experts


class Prefill:
    """Prompts of any lengths -> their keys, values and first logits, and their experts where `routes` asks for them."""

    def __init__(self, model: Any, windows: LayerWindows, pad: int, routes: bool = False) -> None:
        self._model, self.windows, self._pad = model, windows, pad
        self._routers = require_routers(model) if routes else ()
        self.kept = LayerMemory.of(model)
        self._keep = {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
        if routes:
            with torch.inference_mode(), record_routes(model):  # refuses routers whose output is not understood
                self([(0,)])

    def __call__(self, prompts: Sequence[tuple[int, ...]], held: Sequence[Held] = ()) -> PrefilledPrompts:
        """Run prompts, only the part of prompt i that is behind held[i] if sequences are held: of a model with states
        none is.
        """
        if self.kept.states and len(set(map(len, prompts))) > 1:
            order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
            return joined([self(list(alike)) for _, alike in groupby((prompts[i] for i in order), key=len)], order)
        new = length = [len(prompt) for prompt in prompts]
        past: list[Tensor] = []
        if held:
            new = [tokens - len(sequence.tokens) for tokens, sequence in zip(length, held, strict=True)]
            past = first_tokens(held, [max(tokens - max(new), 0) for tokens in length])
        logits, chosen, cache = self.run(*self._inputs(prompts, last=max(new)), past)
        routes = () if chosen is None else tuple(row[-tokens:] for row, tokens in zip(chosen.cpu(), new, strict=True))
        before = [sequence.routes for sequence in held if sequence.routes is not None]
        if before:
            routes = tuple(torch.cat(pair) for pair in zip(before, routes, strict=True))
        lengths = torch.tensor(length, device=logits.device)
        keys, values, states = cache.memory[::2], cache.memory[1::2], self.kept.states_in(cache.layers)
        return PrefilledPrompts(tuple(prompts), keys, values, lengths, logits, routes, states)

    def run(
        self, ids: Tensor, positions: Tensor, masks: Sequence[Tensor], past: Sequence[Tensor] = ()
    ) -> tuple[Tensor, Tensor | None, PromptCache]:
        """Run ids [P,last] behind `past` -> logits [P,V], experts [P,last,L,K] or None, and what the layers keep."""
        cache, mask = PromptCache(self.kept, past), self.windows.as_argument(masks)
        inputs = {"input_ids": ids, "position_ids": positions, "attention_mask": mask, self.kept.argument: cache}
        logits, experts = logits_and_experts(self._model, self._routers, **inputs, **self._keep, use_cache=True)
        return logits[:, -1], None if experts is None else experts.unflatten(0, ids.shape), cache

    def _inputs(self, prompts: Sequence[tuple[int, ...]], last: int) -> tuple[Tensor, Tensor, Sequence[Tensor]]:
        """Lay out the `last` places: ids, positions [P,last], a mask [P,1,last,W] for each kind of layers; none if all
        prompts are whole, of one length, and within every window.
        """
        device, dtype = self._model.device, self._model.dtype
        length = torch.tensor([len(prompt) for prompt in prompts])
        width = int(length.max())
        # torch takes four times as long
        padded = np.array([((self._pad,) * (width - len(p)) + p)[width - last :] for p in prompts])
        ids = torch.from_numpy(padded).to(device)
        positions = torch.arange(width) - (width - length)[:, None]
        whole = last == width <= self.windows.shortest and bool((length == width).all())
        kinds = () if whole else self.windows.kinds
        masks = [_mask(positions, dtype, last, window).to(device) for window in kinds]
        return ids, positions[:, width - last :].clamp(min=0).to(device), masks


def _mask(positions: Tensor, dtype: torch.dtype, last: int, window: int) -> Tensor:
    """Make the additive causal mask [P,1,last,W] of the last places of left-padded prompts, for layers that see
    `window` tokens; positions [P,W] are negative in the padding.

    A padded place sees itself: a softmax over nothing would be NaN.
    """
    width = positions.shape[1]
    causal = torch.ones(last, width, dtype=torch.bool).tril(width - last)
    itself = causal & ~causal.tril(width - last - 1)
    if window < width:
        causal &= ~causal.tril(width - last - window)
    seen = (causal & (positions >= 0)[:, None, :]) | itself
    return torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, float("-inf"))[:, None]


class Step:
    """tokens [R,1], positions [R,1] or [1,1], a mask [R,1,1,W] for each kind of layers or none, views of the cache ->
    logits [R,V] and, where `routes` is True, the experts chosen, [R,L,K].
    """

    def __init__(self, model: Any, windows: LayerWindows, routes: bool = False) -> None:
        self._model, self._windows = model, windows
        self.routers = require_routers(model) if routes else ()
        self._kept = LayerMemory.of(model)
        self._forward: dict[bool, Forward] = {}

    def __call__(
        self, tokens: Tensor, positions: Tensor, masks: Sequence[Tensor], views: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        masked = bool(masks)
        if masked not in self._forward:
            plain = StepForward(self._model, len(masks), self._windows, self._kept, self.routers).eval()
            example = partial(_example, views, self._windows, self._kept, masked)
            states = bool(self._kept.states)
            # Prime numbers of rows and columns, of which a model has few sizes that are multiples.
            first = (7, 10) if states else (3, 5)
            self._forward[masked] = recorded(plain, example, first, (5, 9), (1, 2), branches=states)
        logits, *routes = self._forward[masked](tokens, positions, *masks, *views)
        return logits, routes[0] if routes else None


class StepForward(nn.Module):
    """The model's forward of a step, of tensors alone, so that it can be recorded."""

    def __init__(
        self, model: nn.Module, masks: int, windows: LayerWindows, kept: LayerMemory, routers: Sequence[Router]
    ) -> None:
        super().__init__()
        self.model, self.masks, self.windows, self.kept, self.routers = model, masks, windows, kept, routers

    def forward(self, tokens: Tensor, positions: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        logits, experts = logits_and_experts(
            self.model,
            self.routers,
            input_ids=tokens,
            position_ids=positions,
            attention_mask=self.windows.as_argument(rest[: self.masks]),
            use_cache=True,
            **{self.kept.argument: ViewCache(self.kept, rest[self.masks :])},
        )
        return (logits[:, -1],) if experts is None else (logits[:, -1], experts)


def _example(
    views: Sequence[Tensor], windows: LayerWindows, kept: LayerMemory, masked: bool, shape: tuple[int, int]
) -> list[Tensor]:
    """Return inputs of the right kinds, strided as the cache's are, the same at every call.

    Layers of another kind than the first see fewer columns.
    """
    rows, width = shape
    device, dtype = views[0].device, views[0].dtype
    noise = torch.Generator().manual_seed(rows)
    seen = {kind: max(1, width - 2 * number) for number, kind in enumerate(windows.kinds)}
    memory = []
    for number, keys in enumerate(views[1 : 4 * len(kept.keyed) : 2]):
        sizes = (rows + 1, keys.shape[1], width + 3, keys.shape[3])
        states = torch.randn(sizes, generator=noise).to(device, dtype)[:rows]
        first = width + 1 - seen[windows.layers[number // 2] if windows.layers else EVERY]
        memory += [states[:, :, width : width + 1], states[:, :, first : width + 1]]
    for state in views[4 * len(kept.keyed) :]:
        memory.append(torch.randn((rows + 1, *state.shape[1:]), generator=noise).to(device, state.dtype)[:rows])
    tokens = torch.arange(rows, device=device)[:, None] % 2
    if not masked:
        return [tokens, torch.full((1, 1), width - 1, device=device), *memory]
    mask = torch.zeros(rows, width + 2, device=device, dtype=dtype)[:, None, None]
    mask[0, :, :, : 1 + width // 2] = float("-inf")
    masks = [mask[..., width + 1 - columns : width + 1] for columns in seen.values()]
    return [tokens, torch.arange(rows, device=device)[:, None] % width, *masks, *memory]
