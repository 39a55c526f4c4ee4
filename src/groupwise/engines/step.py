"""One token for many rows through the model, with the interpreter's share of the time taken out where that is safe.

In a small model most of a step is Python between tensor operations. So the model's own forward is recorded once by
torch.jit.trace and replayed: the same operations on the same weights (a loaded weight is seen at once), 2 to 3 times as
fast at few rows. A recording is used only if nothing in it depended on the values of a tensor (the tracer warns where
something did: routing loops, rescaled rotary positions) and if it agrees with the plain forward at other shapes;
otherwise, and where torch has no tracer, the plain forward runs.

The experts of a mixture-of-experts model can be recorded where they are computed without a loop over those that were
hit: transformers' grouped products and its batched ones can, its "eager" ones cannot.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from groupwise.engines.cache import ViewCache
from groupwise.models.quiet import quiet
from groupwise.models.routing import Router, need_routers, route_dtype


class Step:
    """tokens [R,1], positions [R,1] or [1,1], mask [R,1,1,W] or None, views of the cache -> logits [R,V] and, where
    `routes` are asked for, the experts chosen, [R,L,K].
    """

    def __init__(self, model: Any, routes: bool = False) -> None:
        self._model = model
        self._routers = need_routers(model) if routes else ()
        self._recorded: dict[bool, Callable[..., tuple[Tensor, ...]]] = {}

    def __call__(
        self, tokens: Tensor, positions: Tensor, mask: Tensor | None, views: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        masked = mask is not None
        if masked not in self._recorded:
            self._recorded[masked] = _fastest(_Forward(self._model, masked, self._routers).eval(), views, masked)
        logits, *routes = self._recorded[masked](tokens, positions, *([mask] if masked else []), *views)
        return logits, routes[0] if routes else None

    @property
    def recorded(self) -> bool:
        """Whether every kind of step seen so far runs from a recording."""
        return all(isinstance(run, torch.jit.ScriptModule) for run in self._recorded.values())


class _Forward(nn.Module):
    def __init__(self, model: nn.Module, masked: bool, routers: Sequence[Router]) -> None:
        super().__init__()
        self.model = model
        self.masked = masked
        self.routers = routers

    def forward(self, tokens: Tensor, positions: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        mask, views = (rest[0], rest[1:]) if self.masked else (None, rest)
        with _chosen(self.routers) as chosen:
            out = self.model(
                input_ids=tokens,
                position_ids=positions,
                attention_mask=mask,
                past_key_values=ViewCache(views),
                use_cache=True,
            )
        logits = out.logits[:, -1]
        if not self.routers:
            return (logits,)
        return logits, torch.stack(chosen, 1).to(route_dtype(max(r.experts for r in self.routers)))


@contextmanager
def _chosen(routers: Sequence[Router]) -> Iterator[list[Tensor]]:
    """The [R,K] of each router, as they run. record_routes has looked at these routers' answers, at the prompts."""
    chosen: list[Tensor] = []

    # A recording may not branch on a size, so this is less careful than models/routing.py.
    def keep(module: nn.Module, args: object, out: object) -> None:
        told = out if isinstance(out, (tuple, list)) else (out,)
        whole = (t for t in told if isinstance(t, Tensor) and not t.is_floating_point() and t.dim() >= 2)
        chosen.extend(t.flatten(0, -2) for t in whole)

    with ExitStack() as stack:
        for router in routers:
            stack.callback(router.module.register_forward_hook(keep).remove)
        yield chosen


def _fastest(plain: _Forward, views: Sequence[Tensor], masked: bool) -> Callable[..., tuple[Tensor, ...]]:
    with torch.inference_mode(False), torch.no_grad(), warnings.catch_warnings(), quiet():
        warnings.simplefilter("ignore")
        # A value that decides what is recorded makes the recording wrong for other values.
        warnings.simplefilter("error", torch.jit.TracerWarning)  # type: ignore[reportPrivateImportUsage]
        try:
            recorded: Any = torch.jit.trace(plain, tuple(_example(views, 3, 5, masked)), check_trace=False)
            for rows, window in ((5, 9), (1, 2)):
                one, other = (run(*_example(views, rows, window, masked)) for run in (plain, recorded))
                if not all(torch.allclose(a, b, rtol=1e-3, atol=1e-3) for a, b in zip(one, other, strict=True)):
                    return plain
        except Exception:  # whatever a model does that cannot be recorded, the plain forward can do
            return plain
    return recorded


def _example(views: Sequence[Tensor], rows: int, window: int, masked: bool) -> list[Tensor]:
    """Inputs of the right kinds, strided as the cache's are, the same at every call."""
    device, dtype = views[0].device, views[0].dtype
    noise = torch.Generator().manual_seed(rows)
    memory = []
    for keys in views[1::2]:
        shape = (rows + 1, keys.shape[1], window + 3, keys.shape[3])
        whole = torch.randn(shape, generator=noise).to(device, dtype)[:rows]
        memory += [whole[:, :, window : window + 1], whole[:, :, 1 : window + 1]]
    tokens = torch.arange(rows, device=device)[:, None] % 2
    if not masked:
        return [tokens, torch.full((1, 1), window - 1, device=device), *memory]
    mask = torch.zeros(rows, window + 2, device=device, dtype=dtype)[:, None, None, 1 : window + 1]
    mask[0, :, :, : window // 2] = float("-inf")
    return [tokens, torch.arange(rows, device=device)[:, None] % window, mask, *memory]
