"""Draws, and what the scheduler must know of each, from a recording where no token is cut off.

Shapes: R rows, V vocabulary.
"""

from functools import partial

import torch
from torch import Tensor, nn

from groupwise.core.engine import Sampling
from groupwise.engines.local.recording import Forward, recorded
from groupwise.engines.local.sampler import Draw, draw, from_all

# What a row that ends adds to the sum of a draw's totals; far above what R totals of about 1 can be off by.
END = 2.0


class Drawing:
    """Logits [R,V] and numbers [R] -> a Draw and its end sum. `stops` [V] bool are the ids that end a completion.

    The end sum, [] float64, tells whether the scheduler must look closer: the draw's totals, about R, and END for each
    row that it ends; finite if every total is. All this is a dozen operations on little data, whose time is that of
    calling them.
    """

    def __init__(self, stops: Tensor) -> None:
        self._stops = stops.double() * END
        self._recordings: dict[float, Forward] = {}

    def __call__(self, logits: Tensor, uniform: Tensor, sampling: Sampling) -> tuple[Draw, Tensor]:
        if sampling.temperature == 0 or sampling.truncates:
            plain = draw(logits, uniform, sampling)
            return plain, _end_sum(plain.tokens, plain.total, self._stops)
        forward = self._recordings.get(sampling.temperature) or self._recorded(sampling.temperature)
        tokens, chance, total, end_sum = forward(logits, uniform)
        return Draw(tokens, chance, total, None), end_sum

    def _recorded(self, temperature: float) -> Forward:
        forward = recorded(_DrawFromAll(temperature, self._stops), partial(_example, self._stops), 5, 3, 1)
        self._recordings[temperature] = forward
        return forward


class _DrawFromAll(nn.Module):
    """Draws from the whole vocabulary, as groupwise.engines.local.sampler.draw does."""

    def __init__(self, temperature: float, stops: Tensor) -> None:
        super().__init__()
        self.temperature, self.vocabulary = temperature, len(stops)
        self.register_buffer("stops", stops)

    def forward(self, logits: Tensor, uniform: Tensor) -> tuple[Tensor, ...]:
        tokens, chance, total = from_all(logits, uniform, self.temperature, self.vocabulary)
        return tokens, chance, total, _end_sum(tokens, total, self.get_buffer("stops"))


def _end_sum(tokens: Tensor, total: Tensor, stops: Tensor) -> Tensor:
    return (total + stops.index_select(0, tokens)).sum()


def _example(stops: Tensor, rows: int) -> list[Tensor]:
    noise = torch.Generator().manual_seed(rows)
    logits = torch.randn(rows, len(stops), generator=noise)
    return [logits.to(stops.device), torch.rand(rows, generator=noise, dtype=torch.float64).to(stops.device)]
