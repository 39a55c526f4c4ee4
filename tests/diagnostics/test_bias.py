"""The systematic part of a gap: exact numbers, in float64, for distributions that can be counted out."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from groupwise.diagnostics.tolerance import ratio_excess, tilt


def counted(share: list[int]) -> tuple[Tensor, Tensor]:
    """log q [V] of q = share / sum, and one token for each count: samples that have q's frequencies exactly."""
    count = torch.tensor(share)
    return (count.double() / count.sum()).log(), torch.repeat_interleave(torch.arange(len(share)), count)


Q, TOKENS = counted([1, 2, 3, 10, 16])
P = torch.tensor([0.3, 0.05, 0.25, 0.3, 0.1], dtype=torch.float64).log()


def test_ratios_of_any_two_distributions_average_one():
    assert float((P - Q)[TOKENS].abs().mean()) > 0.5
    found = ratio_excess((P - Q)[TOKENS])
    assert found.value == pytest.approx(0, abs=1e-12)
    ratios = (P - Q)[TOKENS].exp()
    assert found.error == pytest.approx(float(ratios.var(correction=0) / len(TOKENS)) ** 0.5, rel=1e-12)
    assert found.points == len(TOKENS)


def test_under_a_set_that_is_not_told_they_average_its_probability():
    """The learner's p is over all tokens, the engine's q is p renormalised over some: p/q = their share of p."""
    everything = torch.cat([Q + math.log(0.9), torch.tensor([0.1], dtype=torch.float64).log()])
    assert ratio_excess((everything[:5] - Q)[TOKENS]).value == pytest.approx(-0.1, rel=1e-12)


@pytest.mark.parametrize("temperature", [0.5, 0.9, 1.1])
def test_a_temperature_tilts_the_gap_by_its_own_error(temperature: float):
    """q = softmax(l / T) sampled where the learner has softmax(l): log p = T log q + a constant."""
    p = (temperature * Q).log_softmax(-1)
    found = tilt((p - Q)[TOKENS], Q[TOKENS])
    assert found.value == pytest.approx(temperature - 1, rel=1e-12)
    assert found.error == pytest.approx(0, abs=1e-12)


def test_the_error_of_a_tilt_is_that_of_leaving_out_each_token():
    gap, logp = (torch.randn(2, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))).unbind()
    found = tilt(gap, logp)
    slopes = []
    for i in range(9):
        left = [j for j in range(9) if j != i]
        u = logp[left] - logp[left].mean()
        slopes.append(float((u * gap[left]).sum() / (u**2).sum()))
    assert found.error == pytest.approx(math.dist(slopes, [found.value] * 9), rel=1e-12)


def test_a_lone_rare_token_is_one_point_and_no_certainty():
    logp = torch.tensor([-1e-3] * 500 + [-6.0], dtype=torch.float64)
    gap = torch.zeros(501, dtype=torch.float64)
    gap[-1] = 0.3
    found = tilt(gap, logp)
    assert found.value == pytest.approx(-0.05, rel=1e-3)
    assert found.points < 1.01


def test_without_two_probabilities_there_is_no_tilt():
    assert tilt(torch.ones(4), torch.full((4,), -2.0)).points == 0
