"""One token for many rows through the model, with the interpreter's share of the time taken out where that is safe.

In a small model most of a step is Python between tensor operations. So the model's own forward is recorded once by
torch.jit.trace and replayed: the same operations on the same weights (a loaded weight is seen at once), 2 to 3 times as
fast at few rows. A recording is used only if nothing in it depended on the values of a tensor (the tracer warns where
something did: routing loops, rescaled rotary positions) and if it agrees with the plain forward at other shapes;
otherwise, and where torch has no tracer, the plain forward runs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from groupwise.engines.cache import ViewCache
from groupwise.models.quiet import quiet


class Step:
    """tokens [R,1], positions [R,1] or [1,1], mask [R,1,1,W] or None, views of the cache -> logits [R,V]."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._recorded: dict[bool, Callable[..., Tensor]] = {}

    def __call__(self, tokens: Tensor, positions: Tensor, mask: Tensor | None, views: Sequence[Tensor]) -> Tensor:
        masked = mask is not None
        if masked not in self._recorded:
            self._recorded[masked] = _fastest(_Forward(self._model, masked).eval(), views, masked)
        return self._recorded[masked](tokens, positions, *([mask] if masked else []), *views)

    @property
    def recorded(self) -> bool:
        """Whether every kind of step seen so far runs from a recording."""
        return all(isinstance(run, torch.jit.ScriptModule) for run in self._recorded.values())


class _Forward(nn.Module):
    def __init__(self, model: nn.Module, masked: bool) -> None:
        super().__init__()
        self.model = model
        self.masked = masked

    def forward(self, tokens: Tensor, positions: Tensor, *rest: Tensor) -> Tensor:
        mask, views = (rest[0], rest[1:]) if self.masked else (None, rest)
        out = self.model(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=mask,
            past_key_values=ViewCache(views),
            use_cache=True,
        )
        return out.logits[:, -1]


def _fastest(plain: _Forward, views: Sequence[Tensor], masked: bool) -> Callable[..., Tensor]:
    with torch.inference_mode(False), torch.no_grad(), warnings.catch_warnings(), quiet():
        warnings.simplefilter("ignore")
        # A value that decides what is recorded makes the recording wrong for other values.
        warnings.simplefilter("error", torch.jit.TracerWarning)  # type: ignore[reportPrivateImportUsage]
        try:
            recorded: Any = torch.jit.trace(plain, tuple(_example(views, 3, 5, masked)), check_trace=False)
            for rows, window in ((5, 9), (1, 2)):
                same = [run(*_example(views, rows, window, masked)) for run in (plain, recorded)]
                if not torch.allclose(*same, rtol=1e-3, atol=1e-3):
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
