"""Trial of a model as the engine runs it, before a run begins: two prompts of unlike length, and a step of each.

The model's own forward of the whole text must give the same logits. So whatever a model does otherwise than most (it
counts positions by columns, makes its mask itself, keeps no keys and values) is found here, and not in a run. A model
that cannot be run with the engine's cache is run without one (texts.py).
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from groupwise.core.errors import UsageError
from groupwise.engines.kinds import setting
from groupwise.engines.local.cache import RowCache
from groupwise.engines.local.columns import LayerWindows
from groupwise.engines.local.forward import ATTENTION as ROWS
from groupwise.engines.local.forward import Prefill, StepForward
from groupwise.engines.local.texts import TextForward, TextPrefill, TextStep
from groupwise.models.context import EVERY, has_states, positions, unknown_layers, windows
from groupwise.models.files.folder import error_line
from groupwise.models.forward.packed_attention import attending

#: How a model is sampled of which the engine cannot hold what its layers keep.
WHOLE_TEXTS = "every step runs whole texts, which is slow for long ones"
OTHER_ENGINE = f"set {setting(lambda kind: kind.own_layers)}"
#: How far logits may lie from the model's own, as a share of their norm. A type of 16 bits is not compared: rounding
#: alone can choose another expert there.
EXACT = 1e-3
NO_MEMORY = "its layers do not all keep keys and values of their own"
#: Tokens of the text, of which all but one are the long prompt, all but two the short one; they are more than a window
#: sees that is no longer than this.
TEXT, SHORT_WINDOW = 4, 32


def require_sampled(model: Any) -> LayerWindows:
    """Return how the engine gives a model its masks: one for each kind of layers, or, where it takes no such mask (as
    models with alibi do), which columns hold a token; or that it runs whole texts.

    Raises UsageError for a model that runs by itself, but not as the engine runs it; device meta will do.
    """
    layers = LayerWindows(windows(model.config))
    if other := unknown_layers(model.config):
        layers = LayerWindows(uncached=f"its {', '.join(other)} layers keep more than keys and values")
    tokens = TEXT + (layers.shortest if layers.shortest <= SHORT_WINDOW else 0)
    text = torch.arange(min(tokens, positions(model.config)), device=model.device)[None]
    text %= model.config.get_text_config().vocab_size
    with torch.no_grad(), _experts_that_run(model):
        try:
            # Without a cache transformers looks for packed rows, in numbers, which device meta does not have.
            with own_masks(model):
                own = model(input_ids=text, use_cache=text.is_meta).logits[0]
        except Exception:  # on device meta it may branch on a number; on another loading has tried it
            return layers
        if not (reason := layers.uncached or _refused(model, layers, text[0], own)):
            return layers
        with own_masks(model):
            if layers.kinds == (EVERY,) and not layers.uncached:
                if not (of_token := _refused(model, by_token := replace(layers, by_token=True), text[0], own)):
                    return by_token
                reason = of_token if of_token == NO_MEMORY else reason
            told = _refused(model, whole := LayerWindows(uncached=reason), text[0], own)
    if told:
        why = f"{reason}; beside a longer text {told}"
        raise UsageError(f"the local engine cannot sample {type(model).__name__}: {why}; {OTHER_ENGINE}")
    return whole


@contextmanager
def own_masks(model: Any) -> Iterator[None]:
    """Make a model attend inside by a function for which transformers makes masks."""
    name = model.config._attn_implementation
    with attending(model, "sdpa" if name == ROWS else name):
        yield


@contextmanager
def _experts_that_run(model: Any) -> Iterator[None]:
    """Let device meta run the experts of a model with states, which it has no grouped products for in float32."""
    used = getattr(model.config, "_experts_implementation", None)
    changes = model.device.type == "meta" and used == "grouped_mm" and has_states(model.config)
    if changes:
        model.set_experts_implementation("batched_mm")
    try:
        yield
    finally:
        if changes:
            model.set_experts_implementation(used)


def _refused(model: Any, layers: LayerWindows, text: Tensor, own: Tensor) -> str:
    """Say why a model does not give, with these masks, its own logits [T,V] of a text [T]; "" if it does."""
    try:
        ours = _sampled(model, layers, text)
    except Exception as error:  # whatever a model does
        refused = "it refuses" + ("" if layers.uncached else " positions, a cache and a mask of [rows,1,tokens,tokens]")
        return f"{refused} ({_named(error)})"
    if ours is None:
        return NO_MEMORY
    if ours.is_meta or own.dtype.itemsize < 4 or not own.isfinite().all():
        return ""
    off = float((ours - own[[-2, -3, -1, -2]]).norm() / own.norm())
    if off <= EXACT:
        return ""
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return "it takes no position_ids, so that a prompt beside a longer one would be computed at other positions"
    how = "" if layers.uncached else "with position_ids, a cache and a mask "
    return f"{how}its logits are {off:.1e} of their norm from those of a whole text"


def _sampled(model: Any, layers: LayerWindows, text: Tensor) -> Tensor | None:
    """Return the logits of two prompts and of a step of each, [4,V]; on device meta those of the prompts; None if a
    layer does not keep its keys and values.
    """
    long, short = (tuple(text[:-cut].tolist()) if not text.is_meta else (0,) * (len(text) - cut) for cut in (1, 2))
    texts = TextForward(model, routes=False, most=2 * len(text)) if layers.uncached else None
    prefill = Prefill(model, layers, pad=0) if texts is None else TextPrefill(texts, layers)
    prompts = prefill([long, short])
    if isinstance(prefill, Prefill) and len(prompts.keys) != len(prefill.kept.keyed):
        return None
    if text.is_meta:
        return prompts.logits
    cache = RowCache(layers)
    cache.insert(prompts, torch.arange(2, device=text.device), ahead=1)
    places, masks = cache.prepare(ahead=1, last=len(text) - 1)
    tokens, views = text[[-1, -2], None], cache.views()
    if isinstance(prefill, Prefill):
        logits, *_ = StepForward(model, len(masks), layers, prefill.kept, ()).eval()(tokens, places, *masks, *views)
    else:
        logits, _ = TextStep(prefill.forward)(tokens, places, masks, views)
    return torch.cat([prompts.logits, logits])


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error_line(error)}"
