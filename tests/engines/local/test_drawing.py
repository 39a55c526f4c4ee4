"""A recorded draw is the plain one, bit for bit, and its one number says when the loop must look closer."""

from __future__ import annotations

import math
from contextlib import nullcontext
from unittest import mock

import pytest
import torch

from groupwise.core.engine import Sampling
from groupwise.engines.local.sampler import END, Drawing, draw
from tests.engines.local.test_recording import is_recorded

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


@pytest.mark.parametrize("recording", [True, False])
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("vocabulary", [20, 256, 257, 4096, 4100])
def test_a_drawing_is_the_plain_draw(vocabulary: int, how: Sampling, recording: bool) -> None:
    drawing = Drawing(torch.zeros(vocabulary, dtype=torch.bool))
    refuse = mock.patch("groupwise.engines.local.recording._replayed", side_effect=RuntimeError)
    with torch.inference_mode(), nullcontext() if recording else refuse:
        for rows in (4, 1, 33):
            logits, uniform = inputs(rows, vocabulary)
            found, plain = drawing(logits, uniform, how)[0], draw(logits, uniform, how)
            for name in ("tokens", "chance", "total"):
                assert torch.equal(getattr(found, name), getattr(plain, name))
            assert (found.support is None) == (plain.support is None)
            assert found.support is None or (plain.support is not None and torch.equal(found.support, plain.support))
    assert all(is_recorded(forward) == recording for forward in drawing._recordings.values())


@pytest.mark.parametrize("how", HOWS)
def test_the_number_counts_ends_and_is_finite_only_where_all_totals_are(how: Sampling) -> None:
    vocabulary, rows = 20, 700
    logits, uniform = inputs(rows, vocabulary)
    tokens = draw(logits, uniform, how).tokens
    once = int(tokens.bincount(minlength=vocabulary).argmin())
    for ends in ([], [once], [1, 2, 5]):
        stops = torch.zeros(vocabulary, dtype=torch.bool)
        stops[ends] = True
        end_sum = Drawing(stops)(logits, uniform, how)[1].item()
        assert end_sum == pytest.approx(rows + END * int(stops[tokens].sum()), abs=END / 100)
    for value in (math.nan, math.inf):
        broken = logits.clone()
        broken[5, 3] = value
        assert not math.isfinite(Drawing(torch.zeros(vocabulary).bool())(broken, uniform, how)[1].item())
