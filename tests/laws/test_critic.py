"""Laws of the critic: its loss, its explained variance, and one gradient however a batch is split."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from groupwise.algorithms.parts.critic import explained_variance, value_loss
from groupwise.core.records import Batch
from groupwise.models.scalar_heads import from_policy, token_values
from groupwise.training.critic import Critic, CriticSettings
from tests.laws.test_split import ROWS, WIDTH, budget_for, make_batch


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


def value_model(policy, seed: int = 0):
    """The policy's backbone under a random head, float64, so that every weight has a gradient."""
    model = from_policy(policy.model).double()
    with torch.no_grad():
        for parameter in model.score.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(seed))
    return model


def credited(model) -> Batch:
    """Values near the model's own, so that some tokens are clipped on either side, and returns of 0 and 1."""
    batch = make_batch()
    value = token_values(model, batch.tokens, batch.mask).detach()
    shift = 0.4 * torch.randn(value.shape, generator=torch.Generator().manual_seed(1), dtype=value.dtype)
    returns = batch.score[:, None].expand_as(value)
    return batch.add(
        value=torch.where(batch.mask, value + shift, math.nan), returns=torch.where(batch.mask, returns, math.nan)
    )


def gradient(model, batch: Batch, budget: int, cut: int = 1, padded: bool = True) -> tuple[float, int, torch.Tensor]:
    critic = Critic(model, CriticSettings(tokens_per_microbatch=budget), 1)
    model.zero_grad(set_to_none=True)
    loss, held = 0.0, 0
    for rows in torch.arange(len(batch)).tensor_split(cut):
        part, more = critic.gradients(batch.rows(rows, width=WIDTH if padded else None), int(batch.mask.sum()))
        loss, held = loss + part, held + more
    return loss, held, torch.cat([p.grad.flatten() for p in model.parameters()])


def test_the_gradient_does_not_depend_on_the_split(policy):
    model = value_model(policy)
    batch = credited(model)
    loss, held, whole = gradient(model, batch, budget=10**6)
    assert whole.isfinite().all()
    assert whole.norm() > 1e-3
    assert 0 < held < batch.mask.sum()
    for parts in (2, 7, ROWS):
        budget = 1 if parts == ROWS else budget_for(batch.length, parts)
        for cut, padded in ((1, True), (parts, True), (parts, False)):
            again, still, split = gradient(model, batch, budget if cut == 1 else 10**6, cut, padded)
            assert again == pytest.approx(loss, rel=1e-9)
            assert still == held
            assert (split - whole).norm() / whole.norm() < 1e-9


def test_the_loss_is_the_mean_over_the_trained_tokens(policy):
    """0.5 max of both branches, written out token by token."""
    model = value_model(policy)
    batch = credited(model)
    value = Critic(model, CriticSettings(), 1).values(batch)
    expected = 0.0
    for v, old, r in zip(
        *(x[batch.mask].tolist() for x in (value, batch.need("value"), batch.need("returns"))), strict=True
    ):
        near = min(max(v, old - 0.2), old + 0.2)
        expected += 0.5 * max((v - r) ** 2, (near - r) ** 2)
    assert gradient(model, batch, 10**6)[0] == pytest.approx(expected / int(batch.mask.sum()), rel=1e-9)


@pytest.mark.parametrize("t", [5, 9, 14])
def test_a_value_is_the_models_output_before_its_token(policy, t: int):
    """V(s_t) is what the model says at the end of (prompt, y_<t), and no token from t on changes it."""
    model, batch = value_model(policy), make_batch()
    everywhere = torch.ones_like(batch.mask)
    with torch.no_grad():
        value = token_values(model, batch.tokens, everywhere)
        prefix = model(input_ids=batch.tokens[:, :t], use_cache=False).logits[:, -1, 0]
        future = torch.cat([batch.tokens[:, :t], (batch.tokens[:, t:] + 1) % 15], dim=1)
        other = token_values(model, future, everywhere)
    torch.testing.assert_close(value[:, t], prefix, rtol=0, atol=1e-12)
    torch.testing.assert_close(other[:, : t + 1], value[:, : t + 1], rtol=0, atol=1e-12)
    assert (other[:, t + 1] - value[:, t + 1]).abs().max() > 1e-3


def test_masked_and_padded_positions_hold_0_and_change_nothing(policy):
    model, batch = value_model(policy), make_batch()
    with torch.no_grad():
        value = token_values(model, batch.tokens, batch.mask)
        beyond = torch.arange(WIDTH) >= batch.length[:, None]
        other = token_values(model, torch.where(beyond, 7, batch.tokens), batch.mask)
    assert (value[~batch.mask] == 0).all()
    assert (value[batch.mask] != 0).all()
    torch.testing.assert_close(other, value, rtol=0, atol=1e-12)
    first = replace(batch, mask=torch.ones_like(batch.mask))
    assert (Critic(model, CriticSettings(), 1).values(first)[:, 0] == 0).all()


def test_values_do_not_depend_on_the_split(policy):
    model, batch = value_model(policy), make_batch()
    whole = Critic(model, CriticSettings(), 1).values(batch)
    assert not whole.requires_grad
    for budget in (1, 60, 200):
        split = Critic(model, CriticSettings(tokens_per_microbatch=budget), 1).values(batch)
        torch.testing.assert_close(split, whole, rtol=0, atol=1e-12)
