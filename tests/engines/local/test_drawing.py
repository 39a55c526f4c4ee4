"""The one number of a draw says when the loop must look closer."""

from __future__ import annotations

import math

import pytest
import torch

from groupwise.core.engine import Sampling
from groupwise.engines.local.sampler import END, draw, end_sum

HOWS = [
    Sampling(),
    Sampling(temperature=0.6),
    Sampling(temperature=1.3),
    Sampling(temperature=0.6, top_p=0.9),
    Sampling(top_k=3),
    Sampling(temperature=0),
]


def inputs(rows: int, vocabulary: int) -> tuple[torch.Tensor, torch.Tensor]:
    noise = torch.Generator().manual_seed(rows)
    logits = torch.randn(rows, vocabulary, generator=noise) * 3
    logits[:, ::7] = -torch.inf
    return logits, torch.rand(rows, generator=noise, dtype=torch.float64)


@pytest.mark.parametrize("how", HOWS)
def test_the_number_counts_ends_and_is_finite_only_where_all_totals_are(how: Sampling) -> None:
    vocabulary, rows = 20, 700
    logits, uniform = inputs(rows, vocabulary)
    drawn = draw(logits, uniform, how)
    once = int(drawn.tokens.bincount(minlength=vocabulary).argmin())
    for ends in ([], [once], [1, 2, 5]):
        stops = torch.zeros(vocabulary, dtype=torch.bool)
        stops[ends] = True
        ended = int(stops[drawn.tokens].sum())
        assert end_sum(drawn, stops).item() == pytest.approx(rows + END * ended, abs=END / 100)
    for value in (math.nan, math.inf):
        broken = logits.clone()
        broken[5, 3] = value
        assert not math.isfinite(end_sum(draw(broken, uniform, how), torch.zeros(vocabulary).bool()).item())
