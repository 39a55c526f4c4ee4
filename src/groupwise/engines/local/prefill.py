"""Prompts through the model, each once, before the first token is sampled.

They run as the model's plain forward with transformers' attention, which never holds every score.

A prompt whose first tokens are held (held.py) runs the others only. Beside one that has more of them it runs some of
its held ones again, in places that were padding otherwise: so what is before the tokens run ends in one column.

Shapes: P prompts, W tokens of the longest, padded on the left.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from groupwise.core.errors import UsageError
from groupwise.engines.kinds import setting
from groupwise.engines.local.cache import PrefilledPrompts, PromptCache
from groupwise.engines.local.experts import logits_and_experts
from groupwise.engines.local.held import Held, first_tokens, routes_after
from groupwise.models.files.folder import error_line
from groupwise.models.moe.record import Router, record_routes, require_routers

#: The layers that the engine knows, as configurations name them.
ATTENTION_LAYERS = {"full_attention", "sliding_attention"}
OTHER_ENGINE = f"set {setting(lambda kind: kind.own_layers)}"


def require_sampled(model: Any) -> None:
    """Raise UsageError for a model that runs by itself, but not as the engine runs it; device meta will do.

    Tried on two tokens: the engine gives positions, a mask of each prompt, and a cache of each layer's keys and values.
    """
    what = f"the local engine cannot sample {type(model).__name__}"
    other = sorted(set(getattr(model.config.get_text_config(), "layer_types", None) or ()) - ATTENTION_LAYERS)
    if other:
        raise UsageError(f"{what}, which has {', '.join(other)} layers; {OTHER_ENGINE}")
    positions = torch.arange(2)[None]
    ids, mask = positions.to(model.device), _mask(positions, model.dtype, 2).to(model.device)
    with torch.no_grad():
        try:
            model(input_ids=ids, use_cache=True)  # without a cache transformers looks for packed rows, in numbers
        except Exception:  # it branches on a number, which device meta does not have
            return
        try:
            _, _, *memory = _Forward(model, ())(ids, ids, mask)
        except Exception as error:
            raise UsageError(
                f"{what}: its forward pass refuses positions, a cache and a mask of [prompts,1,tokens,tokens], "
                f"as models with alibi do ({type(error).__name__}: {error_line(error)}); {OTHER_ENGINE}"
            ) from None
    if len(memory) != 2 * model.config.get_text_config().num_hidden_layers:
        raise UsageError(f"{what}, whose layers do not all keep keys and values of their own; {OTHER_ENGINE}")


class Prefill:
    """Prompts of any lengths -> their keys, values and first logits, and their experts where `routes` asks for them."""

    def __init__(self, model: Any, pad: int, routes: bool = False) -> None:
        self._model, self._pad = model, pad
        self._forward = _Forward(model, require_routers(model) if routes else ())
        if routes:
            with torch.inference_mode(), record_routes(model):  # refuses routers whose output is not understood
                self([(0,)])

    def __call__(self, prompts: Sequence[tuple[int, ...]], held: Sequence[Held] = ()) -> PrefilledPrompts:
        """Run prompts, only the part of prompt i that is behind held[i] if sequences are held."""
        new = length = [len(prompt) for prompt in prompts]
        past: list[Tensor] = []
        if held:
            new = [tokens - len(sequence.tokens) for tokens, sequence in zip(length, held, strict=True)]
            past = first_tokens(held, [max(tokens - max(new), 0) for tokens in length])
        logits, chosen, *memory = self._forward(*self._inputs(prompts, last=max(new)), *past)
        routes = _without_padding(chosen, new) if self._forward.routers else ()
        if held and routes:
            routes = routes_after(held, routes)
        lengths = torch.tensor(length, device=logits.device)
        return PrefilledPrompts(tuple(prompts), memory[::2], memory[1::2], lengths, logits, routes)

    def _inputs(self, prompts: Sequence[tuple[int, ...]], last: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Lay out the `last` places that are run: ids [P,last], positions [P,last], mask [P,1,last,W]; no mask if the
        prompts are equally long and run whole.
        """
        device, dtype = self._model.device, self._model.dtype
        length = torch.tensor([len(prompt) for prompt in prompts])
        width = int(length.max())
        # torch takes four times as long
        padded = np.array([((self._pad,) * (width - len(p)) + p)[width - last :] for p in prompts])
        ids = torch.from_numpy(padded).to(device)
        positions = torch.arange(width) - (width - length)[:, None]
        whole = last == width and bool((length == width).all())
        mask = None if whole else _mask(positions, dtype, last).to(device)
        return ids, positions[:, width - last :].clamp(min=0).to(device), mask


class _Forward(nn.Module):
    """Ids, positions, mask, what is before them -> logits [P,V], experts [P,W,L,K] (empty for no routers), keys and
    values of each layer.
    """

    def __init__(self, model: Any, routers: Sequence[Router]) -> None:
        super().__init__()
        self.model, self.routers = model, routers
        self.keep = {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
        self.eval()

    def forward(
        self, tokens: Tensor, positions: Tensor, mask: Tensor | None = None, *past: Tensor
    ) -> tuple[Tensor, ...]:
        cache = PromptCache(past)
        inputs = {"input_ids": tokens, "position_ids": positions, "attention_mask": mask, "past_key_values": cache}
        logits, experts = logits_and_experts(self.model, self.routers, **inputs, **self.keep)
        return logits, tokens[:0] if experts is None else experts.unflatten(0, tokens.shape), *cache.memory


def _mask(positions: Tensor, dtype: torch.dtype, last: int) -> Tensor:
    """Make the additive causal mask [P,1,last,W] of the last places of left-padded prompts; positions [P,W] are
    negative in the padding.

    A padded place sees itself: a softmax over nothing would be NaN.
    """
    width = positions.shape[1]
    causal = torch.ones(last, width, dtype=torch.bool).tril(width - last)
    itself = causal & ~causal.tril(width - last - 1)
    seen = (causal & (positions >= 0)[:, None, :]) | itself
    return torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, float("-inf"))[:, None]


def _without_padding(routes: Tensor, length: Sequence[int]) -> tuple[Tensor, ...]:
    """Map routes [P,W,L,K] of left-padded prompts -> per prompt [length,L,K] on the CPU."""
    return tuple(row[len(row) - tokens :] for row, tokens in zip(routes.cpu(), length, strict=True))
