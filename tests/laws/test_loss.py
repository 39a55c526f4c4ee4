"""Laws of every catalog row's loss, and closed forms written out from the papers' equations."""

from __future__ import annotations

import dataclasses
import math
from itertools import product

import pytest
import torch

import groupwise
from groupwise.algorithms.laws.draws import draw
from groupwise.algorithms.parts.aggregate import count
from groupwise.algorithms.parts.kl import KL
from groupwise.algorithms.parts.off_policy import GammaWeight, Tapered
from groupwise.algorithms.parts.ratio import SequenceSum
from groupwise.algorithms.settings import CATALOG, ESTIMATORS
from tests.laws.sampler import of_sampler

ROWS = sorted(CATALOG)


def value_and_gradient(algo, b, advantage=None, **columns):
    live = b.live.clone().requires_grad_(True)
    columns = {**of_sampler(algo, b.old), **columns}
    out = algo.loss(live, b.old, b.advantage if advantage is None else advantage, b.mask, logp_ref=b.ref, **columns)
    out.value.backward()
    return out, live.grad


def without_kl(name: str) -> groupwise.Algorithm:
    """Make an algorithm without a KL term in its loss."""
    algo = groupwise.algorithm(name)
    return groupwise.algorithm(name, {"kl.beta": 0.0}) if algo.kl.in_loss else algo


@pytest.mark.parametrize("name", ROWS)
def test_a_row_without_an_advantage_has_no_gradient(name, batch):
    """What lets the learner run such rows forward alone: Algorithm.trained_rows."""
    advantage = batch.advantage.clone()
    advantage[::2] = 0
    _, gradient = value_and_gradient(without_kl(name), batch, advantage)
    assert not gradient[::2].any()
    assert gradient[1::2].any()


@pytest.mark.parametrize("name", ROWS)
def test_masked_positions_change_nothing(name, batch):
    algo = groupwise.algorithm(name)
    out, gradient = value_and_gradient(algo, batch)
    for poison in (math.nan, math.inf, 1e30):
        holes = {k: torch.where(batch.mask, getattr(batch, k), poison) for k in ("live", "old", "ref")}
        live = holes["live"].requires_grad_(True)
        advantage = torch.where(batch.mask, batch.advantage[:, None].expand_as(batch.mask), poison)
        sampler = of_sampler(algo, holes["old"])
        again = algo.loss(live, holes["old"], advantage, batch.mask, logp_ref=holes["ref"], **sampler)
        again.value.backward()
        assert torch.equal(again.value, out.value)
        assert torch.equal(live.grad, gradient)
        for column in (again.share, again.log_ratio, again.kl):
            assert column is None or (column[~batch.mask] == 0).all()


class NaiveRatio:
    per_completion = False

    def __call__(self, logp_live, logp_old, mask):
        return (logp_live - logp_old) * 1.0


class NaiveEstimator:
    def __call__(self, logp_live, logp_ref, token_log_ratio):
        return (logp_live - logp_ref) ** 2 * token_log_ratio.exp()


def test_the_algorithm_keeps_masked_positions_from_parts_that_do_not(batch):
    algo = dataclasses.replace(groupwise.algorithm("grpo"), ratio=NaiveRatio(), kl=KL(0.1, NaiveEstimator()))
    out, gradient = value_and_gradient(algo, batch)
    for name in ("live", "old", "ref"):
        setattr(batch, name, torch.where(batch.mask, getattr(batch, name), math.nan))
    again, poisoned = value_and_gradient(algo, batch)
    assert torch.equal(again.value, out.value)
    assert torch.equal(poisoned, gradient)


@pytest.mark.parametrize("name", ROWS)
def test_any_split_adds_up(name, batch):
    """Weights are made once for the optimizer batch: parts, in any order and with any padding, sum to the whole."""
    algo = groupwise.algorithm(name)
    out, gradient = value_and_gradient(algo, batch)
    weight = algo.aggregate(batch.mask, count(batch.mask))
    for parts in (2, 3, len(batch.mask)):
        live = batch.live.clone().requires_grad_(True)
        order = torch.randperm(len(batch.mask), generator=torch.Generator().manual_seed(parts))
        total = torch.zeros((), dtype=torch.float64)
        for rows in order.tensor_split(parts):
            columns = (weight, live, batch.old, batch.mask, batch.ref)
            w, x, old, mask, ref = (torch.nn.functional.pad(c[rows], (0, parts)) for c in columns)
            more = {"logp_ref": ref, **of_sampler(algo, old)}
            total = total + algo.objective(w, x, old, batch.advantage[rows], mask, **more).value
        total.backward()
        torch.testing.assert_close(total, out.value.detach(), rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(live.grad, gradient, rtol=1e-12, atol=1e-16)


@pytest.mark.parametrize("name", ROWS)
def test_at_ratio_one_the_gradient_is_the_weighted_advantage(name, batch):
    algo = without_kl(name)
    batch.old = batch.live.clone()
    out, gradient = value_and_gradient(algo, batch)
    weight = algo.aggregate(batch.mask, count(batch.mask))
    if isinstance(algo.ratio, SequenceSum) and not isinstance(
        algo.trust, (Tapered, GammaWeight)
    ):  # the whole completion is one action: each token moves all of it
        weight = weight * batch.mask.sum(-1, keepdim=True)
    expected = -(weight * batch.advantage[:, None]) * batch.mask
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-15)
    assert torch.equal(out.share, batch.mask.double())


@pytest.mark.parametrize(("name", "estimator"), [*((name, "") for name in ROWS), *(("grpo", e) for e in ESTIMATORS)])
def test_extreme_ratios_stay_finite(name, estimator):
    """The policy has moved far from the old one, and the reference with it or not."""
    algo, b = groupwise.algorithm(name, {"kl.estimator": estimator} if estimator else {}), draw(1)
    for dtype, shift in product((torch.float32, torch.float64), (-400.0, -60.0, -50.0, 50.0, 60.0, 400.0)):
        for ref in (b.ref, b.ref + shift):
            live = (b.old + shift).to(dtype).requires_grad_(True)
            more = {"logp_ref": ref.to(dtype), **of_sampler(algo, b.old.to(dtype))}
            out = algo.loss(live, b.old.to(dtype), b.advantage.to(dtype), b.mask, **more)
            out.value.backward()
            assert out.value.isfinite()
            assert live.grad.isfinite().all()


@pytest.mark.parametrize("name", ["gspo", "gspo-token", "sapo", "gmpo"])
def test_on_policy_the_family_has_one_gradient(name, batch):
    """GRPO without its KL, GSPO, GSPO-token, SAPO and GMPO part only once the policy has moved."""
    batch.live = batch.old.clone()
    _, gradient = value_and_gradient(groupwise.algorithm(name), batch)
    _, grpo = value_and_gradient(groupwise.algorithm("grpo", {"kl.beta": 0.0}), batch)
    torch.testing.assert_close(gradient, grpo, rtol=1e-12, atol=1e-15)
    batch.live = batch.old + 0.3 * torch.randn_like(batch.old)
    _, gradient = value_and_gradient(groupwise.algorithm(name), batch)
    _, grpo = value_and_gradient(groupwise.algorithm("grpo", {"kl.beta": 0.0}), batch)
    assert (gradient - grpo).abs().max() > 1e-3


@pytest.mark.parametrize("name", ROWS)
def test_an_all_masked_batch_is_zero(name, batch):
    batch.mask = torch.zeros_like(batch.mask)
    out, gradient = value_and_gradient(groupwise.algorithm(name), batch)
    assert out.value == 0
    assert (gradient == 0).all()


def test_a_missing_column_is_named(batch):
    with pytest.raises(ValueError, match="needs logp_ref"):
        groupwise.algorithm("grpo").loss(batch.live, batch.old, batch.advantage, batch.mask)
    with pytest.raises(ValueError, match="entropy"):
        groupwise.algorithm("dapo", {"entropy_coefficient": 0.1}).loss(
            batch.live, batch.old, batch.advantage, batch.mask
        )
    with pytest.raises(ValueError, match="logp_old has shape"):
        groupwise.algorithm("dapo").loss(batch.live, batch.old[:1], batch.advantage, batch.mask)


def test_entropy_bonus_adds_its_weighted_mean(batch):
    entropy = torch.rand_like(batch.live)
    plain, _ = value_and_gradient(groupwise.algorithm("dapo"), batch)
    out, _ = value_and_gradient(groupwise.algorithm("dapo", {"entropy_coefficient": 0.5}), batch, entropy=entropy)
    assert (plain.value - out.value).item() == pytest.approx(0.5 * entropy[batch.mask].mean().item(), rel=1e-12)
