"""Laws of the critic's loss and of its explained variance."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from groupwise.algorithms.parts.critic import explained_variance, value_loss


def columns(batch) -> tuple[Tensor, Tensor, Tensor]:
    """value, value_old, returns [N,T]: values that moved by up to several times the clip of 0.3."""
    return batch.live, batch.old, batch.ref + 0.2


def by_hand(value: float, old: float, wanted: float, clip: float) -> tuple[float, float]:
    """The loss and its derivative in the value, one token at a time."""
    plain = (value - wanted) ** 2
    kept = min(max(value, old - clip), old + clip)
    if clip and (kept - wanted) ** 2 > plain:
        return 0.5 * (kept - wanted) ** 2, 0.0
    return 0.5 * plain, value - wanted


@pytest.mark.parametrize("clip", [0.0, 0.3, 5.0])
def test_value_and_gradient_are_the_closed_form(batch, clip):
    value, old, returns = columns(batch)
    leaf = value.clone().requires_grad_()
    loss = value_loss(leaf, old, returns, batch.mask, clip)
    (gradient,) = torch.autograd.grad(loss.sum(), leaf)
    loss = loss.detach()
    for place in batch.mask.nonzero().tolist():
        n, t = place
        expected = by_hand(float(value[n, t]), float(old[n, t]), float(returns[n, t]), clip)
        assert (float(loss[n, t]), float(gradient[n, t])) == pytest.approx(expected, rel=1e-12, abs=1e-12)
    assert (loss[~batch.mask] == 0).all()
    assert (gradient[~batch.mask] == 0).all()


@pytest.mark.parametrize(
    ("value", "returns", "loss", "gradient"),
    [
        (0.1, 1.0, 0.405, -0.9),  # inside the band: as without a clip
        (0.5, 1.0, 0.32, 0.0),  # moved 0.5 towards the return, 0.2 is allowed: no more gradient
        (0.5, 0.0, 0.125, 0.5),  # moved away from the return: it may come back
        (0.2, 1.0, 0.32, -0.8),  # at the edge of the band
    ],
)
def test_the_clip_holds_a_value_that_ran_ahead_and_no_other(value, returns, loss, gradient):
    value = torch.tensor([[value]], dtype=torch.float64, requires_grad=True)
    old, returns = torch.zeros_like(value), torch.full_like(value, returns)
    found = value_loss(value, old, returns, torch.ones(1, 1, dtype=torch.bool), clip=0.2)
    found.sum().backward()
    assert found.item() == pytest.approx(loss, abs=1e-15)
    assert value.grad is not None
    assert value.grad.item() == pytest.approx(gradient, abs=1e-15)


def test_masked_positions_may_hold_anything(batch):
    clean = columns(batch)
    spoilt = [torch.where(batch.mask, x, torch.nan) for x in clean]
    spoilt[0].requires_grad_()
    loss = value_loss(spoilt[0], spoilt[1], spoilt[2], batch.mask, 0.3)
    assert torch.equal(loss, value_loss(*clean, batch.mask, 0.3))
    loss.sum().backward()
    assert spoilt[0].grad is not None
    assert spoilt[0].grad.isfinite().all()
    assert explained_variance(spoilt[0].detach(), spoilt[2], batch.mask) == explained_variance(
        clean[0], clean[2], batch.mask
    )


def test_a_negative_clip_is_refused():
    one = torch.zeros(1, 1)
    with pytest.raises(ValueError, match="clip = -1"):
        value_loss(one, one, one, one.bool(), -1)


def test_explained_variance_at_its_landmarks(batch):
    _, _, returns = columns(batch)
    assert explained_variance(returns, returns, batch.mask) == 1
    assert explained_variance(returns - 7, returns, batch.mask) == pytest.approx(1, abs=1e-12)
    assert explained_variance(torch.zeros_like(returns), returns, batch.mask) == pytest.approx(0, abs=1e-12)
    assert explained_variance(-returns, returns, batch.mask) == pytest.approx(-3, abs=1e-12)
    assert explained_variance(0.75 * returns, returns, batch.mask) == pytest.approx(1 - 0.25**2, abs=1e-12)


def test_explained_variance_of_returns_that_do_not_vary_is_zero():
    value, mask = torch.rand(2, 3), torch.ones(2, 3, dtype=torch.bool)
    for returns, inside in ((torch.full((2, 3), 0.1), mask), (torch.full((2, 3), math.nan), ~mask)):
        assert explained_variance(value, returns, inside) == 0.0
