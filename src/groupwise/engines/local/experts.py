"""Mixtures of experts in the engine: computed so that they can be recorded, and which ones were chosen.

Experts can be recorded where they are computed without a loop over those that were hit: transformers' grouped products
and its batched ones can, its "eager" ones cannot.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from groupwise.models.moe.record import Router, on_output, route_dtype, tensors_in


def make_experts_recordable(model: Any) -> None:
    """Replace experts in a Python loop, which cannot be recorded, by transformers' default implementation."""
    used, best = model.config._experts_implementation, model.get_correct_experts_implementation(None)
    slow = ("eager", "batched_mm") if model.device.type == "cpu" else ("eager",)
    if used in slow and best not in slow:
        model.set_experts_implementation(best)


def logits_and_experts(model: Any, routers: Sequence[Router], **inputs: Any) -> tuple[Tensor, Tensor | None]:
    """Return the model's logits at the last token of each row, [R,V], and the experts of every token, [tokens,L,K], in
    the smallest type that holds an expert's number; None for no routers.
    """
    chosen: list[Tensor] = []

    # A recording may not branch on a size, so this is less careful than models/moe/record.py; prefill.py has checked
    # the routers' outputs by record_routes.
    def keep(layer: int, output: object) -> None:
        ids = (t for t in tensors_in(output) if not t.is_floating_point() and t.dim() >= 2)
        chosen.extend(t.flatten(0, -2) for t in ids)

    with on_output(routers, keep):
        logits = model(**inputs, use_cache=True).logits[:, -1]
    experts = torch.stack(chosen, 1).to(route_dtype(max(r.experts for r in routers))) if routers else None
    return logits, experts
