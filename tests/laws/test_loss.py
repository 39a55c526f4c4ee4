"""Laws of every catalog row's loss, and closed forms written out from the papers' equations."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

import groupwise
from groupwise.algorithms.laws.draws import draw
from groupwise.algorithms.parts.aggregate import Constant, SequenceMean, TokenMean, TokenSum, Totals, count
from groupwise.algorithms.parts.kl import K1, K2, K3, KL, K3Ratio
from groupwise.algorithms.parts.ratio import SequenceSum
from groupwise.algorithms.settings import CATALOG, ESTIMATORS

ROWS = sorted(CATALOG)
AGGREGATES = [SequenceMean(), TokenMean(), Constant(limit=16), TokenSum()]


def value_and_gradient(algo, b, advantage=None, **columns):
    live = b.live.clone().requires_grad_(True)
    out = algo.loss(live, b.old, b.advantage if advantage is None else advantage, b.mask, logp_ref=b.ref, **columns)
    out.value.backward()
    return out, live.grad


@pytest.mark.parametrize("name", ROWS)
def test_a_row_without_an_advantage_has_no_gradient(name, batch):
    """What lets the learner run such rows forward alone: Algorithm.trained_rows."""
    advantage = batch.advantage.clone()
    advantage[::2] = 0
    _, gradient = value_and_gradient(groupwise.algorithm(name, {"kl.beta": 0.0}), batch, advantage)
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
        again = algo.loss(live, holes["old"], advantage, batch.mask, logp_ref=holes["ref"])
        again.value.backward()
        assert torch.equal(again.value, out.value)
        assert torch.equal(live.grad, gradient)
        for column in (again.share, again.log_ratio, again.kl):
            assert column is None or (column[~batch.mask] == 0).all()


class NaiveRatio:
    """What a user might write: no thought given to masks or limits."""

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
            total = total + algo.objective(w, x, old, batch.advantage[rows], mask, logp_ref=ref).value
        total.backward()
        torch.testing.assert_close(total, out.value.detach(), rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(live.grad, gradient, rtol=1e-12, atol=1e-16)


@pytest.mark.parametrize("name", ROWS)
def test_at_ratio_one_the_gradient_is_the_weighted_advantage(name, batch):
    algo = groupwise.algorithm(name, {"kl.beta": 0.0})
    batch.old = batch.live.clone()
    out, gradient = value_and_gradient(algo, batch)
    weight = algo.aggregate(batch.mask, count(batch.mask))
    if isinstance(algo.ratio, SequenceSum):  # the whole completion is one action: each token moves all of it
        weight = weight * batch.mask.sum(-1, keepdim=True)
    expected = -(weight * batch.advantage[:, None]) * batch.mask
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-15)
    assert torch.equal(out.share, batch.mask.double())


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("shift", [-400.0, -60.0, -50.0, 50.0, 60.0, 400.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_ratios_stay_finite(name, shift, dtype, batch):
    algo = groupwise.algorithm(name)
    live = (batch.old + shift).to(dtype).requires_grad_(True)
    out = algo.loss(live, batch.old.to(dtype), batch.advantage.to(dtype), batch.mask, logp_ref=batch.ref.to(dtype))
    out.value.backward()
    assert out.value.isfinite()
    assert live.grad.isfinite().all()


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shift", [-400.0, -60.0, 60.0, 400.0])
def test_every_kl_of_extreme_ratios_stays_finite(estimator, dtype, shift, batch):
    """The policy has moved far from the old one, and the reference with it or not."""
    algo = groupwise.algorithm("grpo", {"kl.estimator": estimator})
    for ref in (batch.ref, batch.ref + shift):
        live = (batch.old + shift).to(dtype).requires_grad_(True)
        out = algo.loss(live, batch.old.to(dtype), batch.advantage.to(dtype), batch.mask, logp_ref=ref.to(dtype))
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


@pytest.mark.parametrize("spread", [1e-4, 5e-4, 0.5])
@pytest.mark.parametrize("seed", range(5))
def test_gspo_token_is_gspo_while_a_completion_has_one_advantage(seed, spread):
    b = draw(seed, spread)
    one, other = groupwise.algorithm("gspo"), groupwise.algorithm("gspo-token")
    (out, gradient), (again, same) = value_and_gradient(one, b), value_and_gradient(other, b)
    torch.testing.assert_close(again.value, out.value, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(same, gradient, rtol=1e-12, atol=1e-15)
    assert torch.equal(again.share, out.share)
    varied = b.advantage[:, None] + torch.arange(b.mask.shape[1], dtype=torch.float64)
    wide = {"trust.epsilon_low": 0.99, "trust.epsilon_high": 99.0}
    _, gradient = value_and_gradient(groupwise.algorithm("gspo", wide), b, varied)
    _, same = value_and_gradient(groupwise.algorithm("gspo-token", wide), b, varied)
    assert (same - gradient).abs().max() > 1e-3


@pytest.mark.parametrize("name", ROWS)
def test_an_all_masked_batch_is_zero(name, batch):
    batch.mask = torch.zeros_like(batch.mask)
    out, gradient = value_and_gradient(groupwise.algorithm(name), batch)
    assert out.value == 0
    assert (gradient == 0).all()


def test_grpo_is_equation_3(batch):
    """J = 1/G sum_i 1/|o_i| sum_t [min(r A, clip(r) A) - beta (exp(x) - x - 1)], x = log ref - log live."""
    out, gradient = value_and_gradient(groupwise.algorithm("grpo"), batch)
    live = batch.live.clone().requires_grad_(True)
    objective = torch.zeros((), dtype=torch.float64)
    rows = [i for i in range(len(live)) if batch.mask[i].any()]
    for i in rows:
        for t in batch.mask[i].nonzero()[:, 0]:
            r, a = (live[i, t] - batch.old[i, t]).exp(), batch.advantage[i]
            x = batch.ref[i, t] - live[i, t]
            term = min(r * a, r.clamp(0.8, 1.2) * a) - 0.04 * (x.exp() - x - 1)
            objective = objective + term / (len(rows) * batch.mask[i].sum())
    (-objective).backward()
    torch.testing.assert_close(out.value.detach(), -objective.detach(), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(gradient, live.grad, rtol=1e-10, atol=1e-12)


def test_dapo_is_equation_8(batch):
    """J = 1/sum|o_i| sum_i sum_t min(r A, clip(r, 0.8, 1.28) A), no KL."""
    out, gradient = value_and_gradient(groupwise.algorithm("dapo"), batch)
    coefficient = torch.zeros_like(batch.live)
    value = 0.0
    tokens = int(batch.mask.sum())
    for i, t in batch.mask.nonzero().tolist():
        r, a = math.exp(batch.live[i, t] - batch.old[i, t]), float(batch.advantage[i])
        clipped = (a > 0 and r > 1.28) or (a < 0 and r < 0.8)
        value += min(r * a, min(max(r, 0.8), 1.28) * a) / tokens
        coefficient[i, t] = 0.0 if clipped else -r * a / tokens
        assert out.share[i, t] == (0.0 if clipped else 1.0)
    assert out.value.item() == pytest.approx(-value, rel=1e-10)
    torch.testing.assert_close(gradient, coefficient, rtol=1e-10, atol=1e-14)


def test_dilution_of_long_answers():
    """200 and 10 tokens: GRPO gives 1/400 and 1/20 a token, DAPO 1/210 each."""
    mask = torch.arange(200) < torch.tensor([[200], [10]])
    grpo, dapo = SequenceMean()(mask, Totals(2, 210)), TokenMean()(mask, Totals(2, 210))
    assert grpo[0, 0].item() == pytest.approx(1 / 400)
    assert grpo[1, 0].item() == pytest.approx(1 / 20)
    assert dapo[mask].unique().tolist() == pytest.approx([1 / 210])


def test_kl_estimators_on_a_toy_softmax():
    """Value and on-policy gradient of each estimator against the exact KL, by summing over the whole vocabulary."""
    logits = torch.randn(6, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_(True)
    ref = torch.randn(6, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).log_softmax(0)
    live = logits.log_softmax(0)
    p = live.exp().detach()

    def gradient(x):
        return torch.autograd.grad(x, logits, retain_graph=True)[0]

    forward, backward = (live.exp() * (live - ref)).sum(), (ref.exp() * (ref - live)).sum()
    exact, reverse, zero = gradient(forward), gradient(backward), torch.zeros(6, dtype=torch.float64)
    for part, unbiased, expected in (
        (K1(), True, zero),
        (K2(), False, exact),
        (K3(), True, reverse),
        (K3Ratio(), True, exact),
    ):
        estimate = (p * part(live, ref, live - live.detach())).sum()
        assert (abs(estimate.item() - forward.item()) < 1e-12) == unbiased
        torch.testing.assert_close(gradient(estimate), expected, rtol=1e-10, atol=1e-12)
    old = torch.randn(6, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).log_softmax(0)
    off_policy = (old.exp() * K3Ratio()(live, ref, live - old)).sum()
    assert off_policy.item() == pytest.approx(forward.item(), abs=1e-12)
    torch.testing.assert_close(gradient(off_policy), exact, rtol=1e-10, atol=1e-12)


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
