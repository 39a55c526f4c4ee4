"""What a model's routers say before they choose, heard on its own modules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from groupwise.core.errors import UsageError
from groupwise.models.moe.routing import Router


@contextmanager
def router_logits(found: Sequence[Router]) -> Iterator[list[Tensor]]:
    """The routers' logits [tokens,E] of one forward, a layer each, with their gradient.

    Raises UsageError, from the forward, for a router that does not return them.
    """
    heard = [torch.empty(0)] * len(found)

    def keep(layer: int, module: nn.Module, args: object, out: Any) -> None:
        heard[layer] = _logits(found[layer], out)

    with ExitStack() as stack:
        for layer, router in enumerate(found):
            stack.callback(router.module.register_forward_hook(partial(keep, layer)).remove)
        yield heard


def _logits(router: Router, out: Any) -> Tensor:
    parts = out if isinstance(out, (tuple, list)) else (out,)
    fits = [part for part in parts if isinstance(part, Tensor) and part.is_floating_point()]
    for part in fits:
        if part.dim() == 2 and part.shape[-1] == router.experts:
            return part
    raise UsageError(
        f"{router.name} ({type(router.module).__name__}) does not return logits of its {router.experts} experts: "
        "there is nothing to balance"
    )
