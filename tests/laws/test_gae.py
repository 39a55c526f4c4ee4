"""Laws of the advantages made token by token: GAE, its two ends, the return-to-go, and their whitening."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import groupwise
from groupwise.algorithms.parts.advantage import Advantage
from groupwise.algorithms.parts.gae import GAE, DecoupledGAE, MonteCarlo, OneStepTD, Return, gae
from groupwise.core.errors import UsageError
from groupwise.core.masked import whiten

RAW: list[Advantage] = [
    GAE(gamma=0.9, lam=0.7, whiten=False),
    OneStepTD(gamma=0.9, whiten=False),
    MonteCarlo(gamma=0.9, whiten=False),
    Return(gamma=0.9),
]
WHITE: list[Advantage] = [
    GAE(gamma=0.9, lam=0.7),
    OneStepTD(gamma=0.9),
    MonteCarlo(gamma=0.9),
    Return(gamma=0.9, whiten=True),
]


def columns(batch, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    rewards = torch.randn(batch.mask.shape, generator=g, dtype=torch.float64)
    return rewards, torch.randn(batch.mask.shape, generator=g, dtype=torch.float64)


def by_hand(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> Tensor:
    """A_t = sum_k (gamma lam)^k delta_{t+k} over each row's list of trained tokens."""
    out = torch.zeros_like(rewards)
    for row in range(len(mask)):
        at = mask[row].nonzero()[:, 0].tolist()
        r, v = [float(rewards[row, t]) for t in at], [*(float(values[row, t]) for t in at), 0.0]
        delta = [r[i] + gamma * v[i + 1] - v[i] for i in range(len(at))]
        for i, t in enumerate(at):
            out[row, t] = math.fsum((gamma * lam) ** k * d for k, d in enumerate(delta[i:]))
    return out


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_the_table_with_a_hole_and_padding():
    """Trained tokens 0, 2, 3 with rewards 1, 0, 2 and values 3, 1, 4; gamma 1/2, lambda 1/2, back to front by hand."""
    nan = math.nan
    rewards, values = torch.tensor([[1.0, nan, 0, 2, nan]]), torch.tensor([[3.0, nan, 1, 4, nan]])
    mask = torch.tensor([[True, False, True, True, False]])
    advantages, returns = gae(rewards, values, mask, gamma=0.5, lam=0.5)
    assert advantages.tolist() == [[1 + 0.5 - 3 + 0.25 * 0.5, 0, 0 + 2 - 1 + 0.25 * -2, 2 - 4, 0]]
    assert returns.tolist() == [[1.625, 0, 1.5, 2, 0]]
    assert advantages.dtype == returns.dtype == torch.float32


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.9, 0.7), (1.0, 1.0), (0.8, 0.0), (0.0, 0.5)])
def test_gae_is_the_sum_of_discounted_deltas(batch, gamma, lam):
    rewards, values = columns(batch)
    advantages, returns = gae(rewards, values, batch.mask, gamma, lam)
    close(advantages, by_hand(rewards, values, batch.mask, gamma, lam))
    close(returns, torch.where(batch.mask, advantages + values, 0.0))


def test_the_ends_of_lambda_are_one_step_td_and_monte_carlo(batch):
    rewards, values = columns(batch)
    for lam, part in ((0.0, OneStepTD(gamma=0.9, whiten=False)), (1.0, MonteCarlo(gamma=0.9, whiten=False))):
        advantage, returns = part(rewards, values, batch.mask, batch.group, None)
        close(advantage, by_hand(rewards, values, batch.mask, 0.9, lam))
        close(returns, torch.where(batch.mask, advantage + values, 0.0))


def test_a_return_discounts_by_trained_tokens_and_reads_no_value(batch):
    rewards, _ = columns(batch)
    advantage, returns = Return(gamma=0.9)(rewards, None, batch.mask, batch.group, None)
    close(advantage, by_hand(rewards, torch.zeros_like(rewards), batch.mask, 0.9, 1.0))
    assert torch.equal(advantage, returns)


@pytest.mark.parametrize(("raw", "white"), list(zip(RAW, WHITE, strict=True)), ids=repr)
def test_whitening_is_of_the_trained_tokens_and_leaves_the_returns(raw, white, batch):
    rewards, values = columns(batch)
    plain, returns = raw(rewards, values, batch.mask, batch.group, None)
    advantage, same = white(rewards, values, batch.mask, batch.group, None)
    assert torch.equal(same, returns)
    trained = advantage[batch.mask]
    assert abs(float(trained.mean())) < 1e-12
    deviation = float(plain[batch.mask].std())
    assert float(trained.var()) == pytest.approx(deviation**2 / (deviation**2 + 1e-8), abs=1e-12)
    close(trained * math.sqrt(deviation**2 + 1e-8), plain[batch.mask] - plain[batch.mask].mean())


def test_whitening_one_trained_token_leaves_it_as_it_is():
    x, mask = torch.tensor([[math.nan, 3.0], [7.0, math.nan]]), torch.tensor([[False, True], [False, False]])
    assert whiten(x, mask).tolist() == [[0, 3], [0, 0]]
    assert whiten(x, torch.zeros_like(mask)).tolist() == [[0, 0], [0, 0]]


def test_whitening_equal_tokens_gives_zero_and_not_nan():
    assert whiten(torch.full((2, 3), 5.0), torch.ones(2, 3, dtype=torch.bool)).tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("part", [GAE(), OneStepTD(), MonteCarlo()], ids=repr)
def test_a_critic_that_is_missing_is_said(part):
    assert part.reads_value
    with pytest.raises(ValueError, match="critic's values"):
        part(torch.zeros(1, 1), None, torch.ones(1, 1, dtype=torch.bool), torch.zeros(1, dtype=torch.long), None)


def test_columns_of_unequal_shape_are_refused():
    with pytest.raises(ValueError, match=r"one shape \[N,T\], not \(2, 3\), \(2, 1\), \(2, 3\)"):
        gae(torch.zeros(2, 3), torch.zeros(2, 1), torch.ones(2, 3, dtype=torch.bool))


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (GAE, {"gamma": 1.1}),
        (GAE, {"lam": -0.1}),
        (OneStepTD, {"gamma": 2.0}),
        (MonteCarlo, {"gamma": math.nan}),
        (Return, {"gamma": -1.0}),
    ],
)
def test_a_discount_outside_its_range_is_refused(kind, fields):
    with pytest.raises(ValueError, match=f"^{next(iter(fields))} = .*from 0 to 1$"):
        kind(**fields)


def test_over_turns_it_is_gae_of_the_turns_as_actions(batch):
    """Written out with lists: delta over turns, the value where a turn begins, the rewards of its tokens together."""
    g = torch.Generator().manual_seed(2)
    rewards, values = (torch.randn(batch.mask.shape, generator=g, dtype=torch.float64) for _ in range(2))
    gamma, lam = 0.9, 0.7
    advantage, returns = GAE(gamma, lam, whiten=False, level="turn")(rewards, values, batch.mask, batch.group, None)
    longest = 0
    for i, own in enumerate(batch.mask.tolist()):
        turns: list[list[int]] = []
        for t in (t for t, trained in enumerate(own) if trained):
            if t and own[t - 1]:
                turns[-1].append(t)
            else:
                turns.append([t])
        longest = max(longest, len(turns))
        earned = [math.fsum(float(rewards[i, t]) for t in turn) for turn in turns]
        value = [float(values[i, turn[0]]) for turn in turns] + [0.0]
        delta = [r + gamma * value[k + 1] - value[k] for k, r in enumerate(earned)]
        expected, target = torch.zeros_like(rewards[i]), torch.zeros_like(rewards[i])
        for k, turn in enumerate(turns):
            expected[turn] = math.fsum((gamma * lam) ** (m - k) * delta[m] for m in range(k, len(turns)))
            target[turn] = expected[turn] + value[k]
        close(advantage[i], expected)
        close(returns[i], target)
    assert longest > 1


def test_over_turns_of_one_token_it_is_gae_over_tokens_and_no_other_level_exists():
    mask = torch.tensor([[True, False, True, False, False, True, False]])
    g = torch.Generator().manual_seed(2)
    rewards, values = (torch.randn(mask.shape, generator=g, dtype=torch.float64) for _ in range(2))
    one, other = (GAE(0.9, 0.5, level=level)(rewards, values, mask, mask[:, 0], None) for level in ("turn", "token"))
    close(one[0], other[0])
    close(one[1], other[1])
    with pytest.raises(UsageError, match=r'algorithm\.advantage\.level = \'word\': must be "token" or "turn"'):
        groupwise.algorithm("ppo", {"advantage.level": "word"})


@pytest.mark.parametrize(("lam", "lam_value"), [(0.0, 1.0), (0.95, 1.0), (0.7, 0.3)])
def test_decoupled_gae_takes_advantages_by_one_lam_and_returns_by_another(batch, lam, lam_value):
    rewards, values = columns(batch)
    given = (rewards, values, batch.mask, batch.group, None)
    advantage, returns = DecoupledGAE(0.9, lam, lam_value, whiten=False)(*given)
    torch.testing.assert_close(advantage, GAE(0.9, lam, whiten=False)(*given)[0], rtol=0, atol=0)
    torch.testing.assert_close(returns, GAE(0.9, lam_value, whiten=False)(*given)[1], rtol=0, atol=0)


@pytest.mark.parametrize("alpha", [0.05, 0.4, 3.0])
def test_a_lam_of_the_length_is_gae_of_each_row_with_its_own(batch, alpha):
    rewards, values = columns(batch)
    advantage, _ = DecoupledGAE(0.9, alpha=alpha, whiten=False)(rewards, values, batch.mask, batch.group, None)
    for i, length in enumerate(batch.mask.sum(1).tolist()):
        lam = max(0.0, 1 - 1 / (alpha * length)) if length else 0.0
        row = slice(i, i + 1)
        alone, _ = gae(rewards[row], values[row], batch.mask[row], 0.9, lam)
        torch.testing.assert_close(advantage[row], alone, rtol=1e-12, atol=1e-14)
