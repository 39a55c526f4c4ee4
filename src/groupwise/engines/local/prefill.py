"""Prompts through the model, each once, before the first token is sampled.

A pass over short prompts in float32 is recorded where that is safe (recording.py), with the engine's own attention and
a mask. Longer ones run as the model's plain forward with transformers' attention, which never holds every score, and so
do those of bfloat16, whose scores it does not round.

A prompt whose first tokens are held (held.py) runs the others only. Beside one that has more of them it runs some of
its held ones again, in places that were padding otherwise: so what is before the tokens run ends in one column.

Shapes: P prompts, W tokens of the longest, padded on the left.
"""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from groupwise.core.errors import UsageError
from groupwise.engines.local.cache import PrefilledPrompts, PromptCache
from groupwise.engines.local.experts import logits_and_experts
from groupwise.engines.local.held import Held, first_tokens, routes_after
from groupwise.engines.local.recording import Forward, recorded
from groupwise.models.files.folder import error_line
from groupwise.models.moe.record import Router, record_routes, require_routers, routers

# The longest prompt whose pass is recorded: its attention holds every score, [P,heads,W,W].
SHORT = 128
#: The layers that the engine knows, as configurations name them.
ATTENTION_LAYERS = {"full_attention", "sliding_attention"}
OTHER_ENGINE = 'set engine.name = "vllm"'


def require_sampled(model: Any) -> None:
    """Raises UsageError for a model that runs by itself, but not as the engine runs it; device meta will do.

    Tried on two tokens: the engine gives positions, a mask of each prompt, and a cache of each layer's keys and values.
    """
    what = f"the local engine cannot sample {type(model).__name__}"
    other = sorted(set(getattr(model.config.get_text_config(), "layer_types", None) or ()) - ATTENTION_LAYERS)
    if other:
        raise UsageError(f"{what}, which has {', '.join(other)} layers; {OTHER_ENGINE}")
    positions = torch.arange(2)[None]
    ids, mask = positions.to(model.device), _mask(positions, True, model.dtype, 2).to(model.device)
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
        self._plain = _Forward(model, require_routers(model) if routes else ())
        self._short: Forward | None = None
        with torch.inference_mode():
            self._leave_out()
            if routes:
                with record_routes(model):  # refuses routers whose output is not understood
                    self._plain(*self._example((1,)))

    def __call__(self, prompts: Sequence[tuple[int, ...]]) -> PrefilledPrompts:
        short = max(map(len, prompts)) <= SHORT and self._model.dtype == torch.float32
        forward = self._recording() if short else self._plain
        ids, positions, mask, length = self._inputs(prompts, always_masked=short)
        logits, chosen, *memory = forward(ids, positions, mask)
        routes = _without_padding(chosen, length) if self._plain.routers else ()
        return PrefilledPrompts(tuple(prompts), memory[::2], memory[1::2], length.to(ids.device), logits, routes)

    def after(self, prompts: Sequence[tuple[int, ...]], held: Sequence[Held]) -> PrefilledPrompts:
        """The same of prompts of which the first tokens are held: prompt i goes on from held[i]."""
        new = [len(prompt) - len(sequence.tokens) for prompt, sequence in zip(prompts, held, strict=True)]
        last = max(new)
        past = first_tokens(held, [max(len(prompt) - last, 0) for prompt in prompts])
        ids, positions, mask, length = self._inputs(prompts, always_masked=True, last=last)
        logits, chosen, *memory = self._plain(ids, positions, mask, *past)
        routes = ()
        if self._plain.routers:
            routes = routes_after(held, _without_padding(chosen, torch.tensor(new)))
        return PrefilledPrompts(tuple(prompts), memory[::2], memory[1::2], length.to(ids.device), logits, routes)

    def _leave_out(self) -> None:
        """Run what follows the last keys and values on last tokens only, in a dense model in float32.

        Each module of the last layer and behind it that could is tried, and kept where the model answers the same.
        """
        if routers(self._model) or self._model.dtype != torch.float32:
            return
        example, last = self._example((5, 3, 4)), []
        answer = self._plain(*example)
        for module in _last_modules(self._model):
            shorter = _Forward(self._model, (), [*last, module])
            try:
                pairs = zip(answer, shorter(*example), strict=True)
                if all(torch.allclose(one, other, rtol=1e-4, atol=1e-5) for one, other in pairs):
                    self._plain, last = shorter, [*last, module]
            except Exception:  # a module that takes or gives something else runs as it is
                pass

    def _recording(self) -> Forward:
        if self._short is None:
            self._short = recorded(self._plain, self._example, (5, 3, 4), (9,) * 5, (1, 1), (2, 7))
        return self._short

    def _example(self, lengths: tuple[int, ...]) -> tuple[Tensor, ...]:
        *inputs, _ = self._inputs([tuple(i % 2 for i in range(length)) for length in lengths], always_masked=True)
        return tuple(t for t in inputs if t is not None)

    def _inputs(
        self, prompts: Sequence[tuple[int, ...]], always_masked: bool, last: int | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        """Ids [P,Q], positions [P,Q] or [1,Q], mask [P,1,Q,W] or [1,1,Q,W] or None, lengths [P] on the CPU.

        last  Q, how many of the W places are run; None for all
        """
        device, dtype = self._model.device, self._model.dtype
        length = torch.from_numpy(np.array([len(p) for p in prompts]))
        width = int(length.max())
        last = width if last is None else last
        # torch takes four times as long
        padded = np.array([((self._pad,) * (width - len(p)) + p)[width - last :] for p in prompts])
        ids = torch.from_numpy(padded).to(device)
        even = bool((length == width).all())
        positions = torch.arange(width) - (width - (length[:1] if even else length))[:, None]
        mask = None if even and not always_masked else _mask(positions, even, dtype, last).to(device)
        return ids, positions[:, width - last :].clamp(min=0).to(device), mask, length


class _Forward(nn.Module):
    """Ids, positions, mask, what is before them -> logits [P,V], experts [P,W,L,K] (empty for no routers), keys and
    values of each layer.

    last  modules that are to run on last tokens only: what they make of others is not read. An attention
          still makes every key and value.
    """

    def __init__(self, model: Any, routers: Sequence[Router], last: Sequence[nn.Module] = ()) -> None:
        super().__init__()
        self.model, self.routers, self.last = model, routers, last
        self.keep = {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
        self.eval()

    def forward(
        self, tokens: Tensor, positions: Tensor, mask: Tensor | None = None, *past: Tensor
    ) -> tuple[Tensor, ...]:
        cache = PromptCache(past)
        inputs = {"input_ids": tokens, "position_ids": positions, "attention_mask": mask, "past_key_values": cache}
        with _on_last_tokens(self.last):
            logits, experts = logits_and_experts(self.model, self.routers, **inputs, **self.keep)
        return logits, tokens[:0] if experts is None else experts.unflatten(0, tokens.shape), *cache.memory


def _last_modules(model: Any) -> list[nn.Module]:
    """The parts of the last layer, and what is beside the layers, such as the last norm: those that have weights."""
    for parent in model.modules():
        for child in parent.children():
            if isinstance(child, nn.ModuleList) and len(child) == model.config.get_text_config().num_hidden_layers:
                parts = [*child[-1].children(), *(other for other in parent.children() if other is not child)]
                return [part for part in parts if any(True for _ in part.parameters())]
    return []


@contextmanager
def _on_last_tokens(modules: Sequence[nn.Module]) -> Iterator[None]:
    """[P,1,D] of what a module would be given, [P,W,D]; an attention asks for the last token only."""
    with ExitStack() as stack:
        for module in modules:
            output = getattr(module, "o_proj", None)
            if output is not None:
                stack.callback(module.register_forward_pre_hook(_ask_last, with_kwargs=True).remove)
            stack.callback((output or module).register_forward_pre_hook(_give_last).remove)
        yield


def _ask_last(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, {**kwargs, "last_only": True}


def _give_last(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return args[0][:, -1:], *args[1:]


def _mask(positions: Tensor, even: bool, dtype: torch.dtype, last: int) -> Tensor:
    """[P,1,last,W] additive causal mask of the last places of left-padded prompts; positions [P,W] are negative in the
    padding.

    A padded place sees itself: a softmax over nothing would be NaN.
    """
    width = positions.shape[1]
    before = width - last
    if even:
        return torch.full((1, 1, last, width), float("-inf"), dtype=dtype).triu_(1 + before)
    causal = torch.ones(last, width, dtype=torch.bool).tril(before)
    itself = causal & ~torch.ones(last, width, dtype=torch.bool).tril(before - 1)
    seen = (causal & (positions >= 0)[:, None, :]) | itself
    return torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, float("-inf"))[:, None]


def _without_padding(routes: Tensor, length: Tensor) -> tuple[Tensor, ...]:
    """Routes [P,W,L,K] of left-padded prompts -> per prompt [length,L,K] on the CPU."""
    return tuple(row[len(row) - tokens :] for row, tokens in zip(routes.cpu(), length.tolist(), strict=True))
