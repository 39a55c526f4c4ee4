"""Mixtures of experts in the engine: computed so that they can be recorded, and asked which ones were chosen.

Experts can be recorded where they are computed without a loop over those that were hit: transformers' grouped products
and its batched ones can, its "eager" ones cannot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from groupwise.models.moe.record import Router, route_dtype


def quicken_experts(model: Any) -> None:
    """Make experts in a Python loop, which cannot be recorded, into what transformers takes where nobody chose."""
    used, best = model.config._experts_implementation, model.get_correct_experts_implementation(None)
    slow = ("eager", "batched_mm") if model.device.type == "cpu" else ("eager",)
    if used in slow and best not in slow:
        model.set_experts_implementation(best)


@contextmanager
def experts_chosen(routers: Sequence[Router]) -> Iterator[list[Tensor]]:
    """The [tokens,K] of each router, as they run; prefill.py has had a look at their answers by record_routes."""
    chosen: list[Tensor] = []

    # A recording may not branch on a size, so this is less careful than models/moe/record.py.
    def keep(module: nn.Module, args: object, out: object) -> None:
        told = out if isinstance(out, (tuple, list)) else (out,)
        whole = (t for t in told if isinstance(t, Tensor) and not t.is_floating_point() and t.dim() >= 2)
        chosen.extend(t.flatten(0, -2) for t in whole)

    with ExitStack() as stack:
        for router in routers:
            stack.callback(router.module.register_forward_hook(keep).remove)
        yield chosen


def stacked(chosen: Sequence[Tensor], routers: Sequence[Router]) -> Tensor:
    """[tokens,K] of each router -> [tokens,L,K], in the smallest type that holds an expert's number."""
    return torch.stack(list(chosen), 1).to(route_dtype(max(r.experts for r in routers)))
