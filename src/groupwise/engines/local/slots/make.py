"""Slots for a model, if it can be sampled in them: tried on a few tokens, beside the model's own forward."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from groupwise.core.engine import Progress, Request, Sampling, silent
from groupwise.core.errors import UsageError
from groupwise.engines.local.cache import PrefilledPrompts
from groupwise.engines.local.forward import Prefill
from groupwise.engines.local.outputs import Outputs
from groupwise.engines.local.rules import Rules
from groupwise.engines.local.scheduler import Queue, Take
from groupwise.engines.local.slots.attention import Attend, Seating, attend_plainly
from groupwise.engines.local.slots.sampler import SlotSampler
from groupwise.engines.local.slots.step import SlotStep
from groupwise.models.files.folder import error_line, quiet
from groupwise.models.forward.adjustment import UNADJUSTED
from groupwise.models.moe.record import Router

#: How far logits of the trial may lie from the plain forward's, as a share of their norm: float32, and shorter types.
EXACT, ROUNDED = 1e-3, 3e-2
#: Slots of a full place.
FULL = 64
#: Two prompts of unlike length, the second with one completion, and steps of each: enough for a step to be recorded.
TRIED = (Request((1, 2, 3), 2, seed=1), Request((4,), 1, seed=2))
STEPS = 4


def make_slots(
    model: Any,
    prefill: Prefill,
    routers: Sequence[Router],
    context: int,
    max_rows: int,
    progress: Progress = silent,
    graphs: bool = False,
    compiled: bool = False,
) -> tuple[SlotSampler | None, str]:
    """Make slots for a model -> them, or None and why not.

    graphs    steps are recorded as CUDA graphs, and attend by a kernel where it agrees
    compiled  layers are compiled
    Raises UsageError if they are to be compiled and cannot.
    """
    reason = _without_place(prefill)
    for attend in [] if reason else _ways(graphs):
        step = partial(SlotStep, model, routers, context, attend, graphs, compiled and attend is not None)
        reason = _refused(model, prefill, step())
        if not reason and attend not in (None, attend_plainly):
            reason = _refused_when_full(attend, model)
        if not reason:
            return SlotSampler(step(), max_rows, progress), ""
        if compiled:
            break
    if compiled:
        raise UsageError(f"engine.compile: {reason}; set it to false")
    return None, reason


def _without_place(prefill: Prefill) -> str:
    """Say what a model has that slots have no place for; "" if nothing."""
    if prefill.kept.states:
        return "its layers keep states, for which slots have no place"
    return "it makes its masks itself, of columns, which slots do not have" if prefill.windows.by_token else ""


def _ways(on_gpu: bool) -> list[Attend | None]:
    """List the attentions to try, the fastest first; None is the model's own."""
    if not on_gpu or find_spec("triton") is None:
        return [attend_plainly, None]
    from groupwise.engines.local.slots.kernel import attend_by_kernels  # triton comes with torch for GPUs alone

    return [attend_by_kernels, attend_plainly, None]


def _refused(model: Any, prefill: Prefill, step: SlotStep) -> str:
    """Say why a model does not give in slots what it gives in its own forward; "" if it does."""
    sampler = SlotSampler(step, max_rows=4, progress=silent)
    try:
        with torch.inference_mode(), quiet():
            rows, ours = _sampled(model, prefill, sampler)
            own = torch.cat([model(input_ids=row[None], use_cache=False).logits[:, -1] for row in rows]).float()
    except Exception as error:  # whatever a model does that cannot be sampled so, the engine's rows can do
        return f"{type(error).__name__}: {error_line(error)}"
    if step.refused:
        return step.refused
    bound = EXACT if next(model.parameters()).dtype.itemsize >= 4 else ROUNDED
    off = float((ours.float() - own).norm() / own.norm())
    return "" if off <= bound else f"its logits lie {off:.1e} of their norm from those of its own forward"


def _refused_when_full(attend: Attend, model: Any) -> str:
    """Say why an attention does not run with full places, whose kernels are larger than those of a trial; else ""."""
    config, weight = model.config.get_text_config(), next(model.parameters())
    heads, groups = (
        config.num_attention_heads,
        getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
    )
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    numbers = torch.Generator().manual_seed(0)

    def some(*shape: int) -> Tensor:
        return torch.randn(shape, generator=numbers).to(weight.device, weight.dtype)

    slots = torch.arange(FULL, device=weight.device)
    own, prompts = ([some(rows, groups, 64, size) for _ in range(2)] for rows in (FULL, 1))
    full = Seating(slots % 64, slots[:1] + 50, slots[None], slots, own, prompts, attend)
    query = some(FULL, heads, size)
    try:
        ours, plain = (way(query, 0, full, size**-0.5, None).float() for way in (attend, attend_plainly))
    except Exception as error:
        return f"{type(error).__name__}: {error_line(error)}"
    bound = EXACT if weight.dtype.itemsize >= 4 else ROUNDED
    return "" if float((ours - plain).norm()) <= bound * float(plain.norm()) else "its kernels give other numbers"


def _sampled(model: Any, prefill: Prefill, sampler: SlotSampler) -> tuple[list[Tensor], Tensor]:
    """Sample the trial's requests -> the ids of each, its prompt's too, and the logits [3,V] of what would follow."""
    device, vocabulary = next(model.parameters()).device, model.config.get_text_config().vocab_size
    requests = [Request(tuple(i % vocabulary for i in r.tokens), r.samples, r.seed) for r in TRIED]
    queue, stops = Queue(requests, [STEPS] * len(requests)), torch.zeros(vocabulary, dtype=torch.bool, device=device)
    outputs = Outputs([()] * queue.count, STEPS, stops)

    def run_prompts(takes: Sequence[Take]) -> tuple[PrefilledPrompts, list[int]]:
        return prefill([requests[take.request].tokens for take in takes]), list(range(len(takes)))

    rules = Rules(Sampling(), UNADJUSTED.on(device), stops, None)
    sampler.sample(queue, outputs, rules, version=0, announce=lambda slots: None, run_prompts=run_prompts)
    assert sampler.tables is not None
    sampled = outputs.sampled(torch.arange(queue.count, device=device), torch.full((queue.count,), STEPS))
    prompts = [request.tokens for request in queue.by_slot()]
    rows = [torch.tensor(prompt + own, device=device) for prompt, own in zip(prompts, sampled, strict=True)]
    return rows, sampler.tables.state.logits[: queue.count]
