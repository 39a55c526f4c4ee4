"""One token for many rows through the model, recorded where that is safe: 2 to 3 times as fast at few rows."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from groupwise.engines.local.cache import ViewCache
from groupwise.engines.local.experts import logits_and_experts
from groupwise.engines.local.recording import Forward, recorded
from groupwise.models.moe.record import Router, require_routers


class Step:
    """tokens [R,1], positions [R,1] or [1,1], mask [R,1,1,W] or None, views of the cache -> logits [R,V] and, where
    `routes` is True, the experts chosen, [R,L,K].
    """

    def __init__(self, model: Any, routes: bool = False) -> None:
        self._model = model
        self._routers = require_routers(model) if routes else ()
        self._forward: dict[bool, Forward] = {}

    def __call__(
        self, tokens: Tensor, positions: Tensor, mask: Tensor | None, views: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        masked = mask is not None
        if masked not in self._forward:
            plain = _Forward(self._model, masked, self._routers).eval()
            example = partial(_example, views, masked)
            self._forward[masked] = recorded(plain, example, (3, 5), (5, 9), (1, 2))
        logits, *routes = self._forward[masked](tokens, positions, *([mask] if masked else []), *views)
        return logits, routes[0] if routes else None


class _Forward(nn.Module):
    def __init__(self, model: nn.Module, masked: bool, routers: Sequence[Router]) -> None:
        super().__init__()
        self.model = model
        self.masked = masked
        self.routers = routers

    def forward(self, tokens: Tensor, positions: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        mask, views = (rest[0], rest[1:]) if self.masked else (None, rest)
        logits, experts = logits_and_experts(
            self.model,
            self.routers,
            input_ids=tokens,
            position_ids=positions,
            attention_mask=mask,
            past_key_values=ViewCache(views),
        )
        return (logits,) if experts is None else (logits, experts)


def _example(views: Sequence[Tensor], masked: bool, shape: tuple[int, int]) -> list[Tensor]:
    """Inputs of the right kinds, strided as the cache's are, the same at every call."""
    rows, window = shape
    device, dtype = views[0].device, views[0].dtype
    noise = torch.Generator().manual_seed(rows)
    memory = []
    for keys in views[1::2]:
        sizes = (rows + 1, keys.shape[1], window + 3, keys.shape[3])
        states = torch.randn(sizes, generator=noise).to(device, dtype)[:rows]
        memory += [states[:, :, window : window + 1], states[:, :, 1 : window + 1]]
    tokens = torch.arange(rows, device=device)[:, None] % 2
    if not masked:
        return [tokens, torch.full((1, 1), window - 1, device=device), *memory]
    mask = torch.zeros(rows, window + 2, device=device, dtype=dtype)[:, None, None, 1 : window + 1]
    mask[0, :, :, : window // 2] = float("-inf")
    return [tokens, torch.arange(rows, device=device)[:, None] % window, mask, *memory]
