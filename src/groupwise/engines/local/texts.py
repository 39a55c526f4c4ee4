"""Rows of a model whose memory of a text the engine cannot hold: each step runs the whole text of every row.

Layers that choose the tokens they attend to, compress them, or keep a state in a cache of their own have more than keys
and values. What such a row keeps of its text is the text: its ids stand where the cache (cache.py) has keys, in
float32, which has every id of a vocabulary. A step is as slow as the text is long, and asks for no more than what the
learner needs: a causal model. Its texts begin in one column and are padded on the right, where no token sees the
padding, so they need no mask and no positions.

Shapes: R rows, P prompts, W tokens of the longest.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from groupwise.engines.local.cache import Held, PrefilledPrompts
from groupwise.engines.local.columns import LayerWindows
from groupwise.engines.local.forward import logits_and_experts
from groupwise.models.moe.record import record_routes, require_routers


class TextForward:
    """The model's forward of whole texts, at most `most` padded tokens at a time, one text at least."""

    def __init__(self, model: Any, routes: bool, most: int) -> None:
        self.model, self._most = model, most
        self.routers = require_routers(model) if routes else ()
        self._keeps = "logits_to_keep" in inspect.signature(model.forward).parameters
        if routes:
            one = torch.zeros(1, 1, dtype=torch.long, device=model.device)
            with torch.inference_mode(), record_routes(model):  # refuses routers whose output is not understood
                self(one, one[0] + 1)

    def __call__(self, ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor | None]:
        """Run ids [R,W], of which lengths [R] are of the text -> the logits of the texts' last tokens [R,V], and the
        experts of every place, [R,W,L,K], or None.
        """
        rows = max(1, self._most // ids.shape[1])
        parts = [self._run(*part) for part in zip(ids.split(rows), lengths.split(rows), strict=True)]
        logits, experts = zip(*parts, strict=True)
        return torch.cat(logits), torch.cat(experts) if self.routers else None

    def _run(self, ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor | None]:
        ends, keep = lengths - 1, {}
        if self._keeps and not ids.is_meta:
            kept, ends = torch.unique(ends, return_inverse=True)
            keep = {"logits_to_keep": kept}
        # Without a cache transformers looks for packed rows, in numbers, which device meta does not have.
        logits, experts = logits_and_experts(self.model, self.routers, input_ids=ids, use_cache=ids.is_meta, **keep)
        last = logits[torch.arange(len(ids), device=ids.device), ends]
        return last, None if experts is None else experts.unflatten(0, ids.shape)


class TextPrefill:
    """Prompts of any lengths -> what stands for their keys, and their first logits; Prefill (forward.py) for texts."""

    def __init__(self, forward: TextForward, windows: LayerWindows) -> None:
        self.forward, self.windows = forward, windows

    def __call__(self, prompts: Sequence[tuple[int, ...]], held: Sequence[Held] = ()) -> PrefilledPrompts:
        """Run prompts; nothing is held of a sequence that has ended."""
        device = self.forward.model.device
        texts = [torch.tensor(prompt, device=device) for prompt in prompts]
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
        right, left = (
            torch.nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_side=side) for side in ("right", "left")
        )
        logits, experts = self.forward(right, lengths)
        routes = (
            () if experts is None else tuple(row[:n] for row, n in zip(experts.cpu(), lengths.tolist(), strict=True))
        )
        ids = left[:, None, :, None].float()
        return PrefilledPrompts(tuple(prompts), [ids], [ids[..., :0]], lengths, logits, routes)


class TextStep:
    """tokens [R,1], positions [R,1] or [1,1], views of the cache -> logits [R,V], and the experts chosen, [R,L,K];
    Step (forward.py) for texts.
    """

    def __init__(self, forward: TextForward) -> None:
        self._forward, self.routers = forward, forward.routers

    def __call__(
        self, tokens: Tensor, positions: Tensor, masks: Sequence[Tensor], views: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        """Write the tokens into the cache, and run each row's text, as long as its position says."""
        column, window = views[:2]
        column.copy_(tokens[:, None, :, None])
        lengths = positions[:, 0].expand(len(tokens)) + 1
        places = torch.arange(int(lengths.max()), device=tokens.device)
        first = window.shape[2] - lengths[:, None]
        ids = window[:, 0, :, 0].gather(1, (first + places).clamp_(max=window.shape[2] - 1)).long()
        logits, experts = self._forward(ids, lengths)
        return logits, None if experts is None else experts[torch.arange(len(ids), device=ids.device), lengths - 1]
