"""Laws of the group advantages."""

from __future__ import annotations

import math

import pytest
import torch

import groupwise
from groupwise.parts.advantage import GroupMean, GroupZScore, LeaveOneOut

ALL = [GroupZScore(), GroupMean(), LeaveOneOut()]


def per_row(part, rewards, group, mask=None):
    rewards = torch.as_tensor(rewards, dtype=torch.float64)
    mask = torch.ones(len(rewards), 1, dtype=torch.bool) if mask is None else torch.as_tensor(mask)[:, None]
    advantage, returns = part(rewards[:, None], None, mask, torch.as_tensor(group), None)
    return advantage[:, 0], returns[:, 0]


@pytest.mark.parametrize("part", ALL, ids=repr)
def test_sums_to_zero_over_the_votes_of_each_group(part, batch):
    rewards = torch.rand(len(batch.group), dtype=torch.float64)
    rewards[3] = math.nan
    votes = batch.mask.any(-1) & ~rewards.isnan()
    advantage, _ = per_row(part, rewards, batch.group, batch.mask.any(-1))
    for g in batch.group.unique():
        assert advantage[(batch.group == g) & votes].sum().abs() < 1e-12
    assert (advantage[~votes] == 0).all()


@pytest.mark.parametrize("part", ALL, ids=repr)
def test_group_ids_may_be_any_integers_in_any_order(part, batch):
    rewards = torch.rand(len(batch.group), dtype=torch.float64)
    plain, _ = per_row(part, rewards, batch.group)
    renamed, _ = per_row(part, rewards, batch.group * -1000 + 7)
    order = torch.randperm(len(rewards), generator=torch.Generator().manual_seed(0))
    shuffled, _ = per_row(part, rewards[order], batch.group[order])
    torch.testing.assert_close(renamed, plain, rtol=0, atol=1e-14)
    torch.testing.assert_close(shuffled, plain[order], rtol=0, atol=1e-14)


def test_z_score_is_the_sample_deviation():
    advantage, returns = per_row(GroupZScore(), [1.0, 0.0, 0.0, 0.0, 5.0, 7.0], [9, 9, 9, 9, -2, -2])
    deviation = math.sqrt((0.75**2 + 3 * 0.25**2) / 3)
    expected = [0.75 / (deviation + 1e-6), *[-0.25 / (deviation + 1e-6)] * 3]
    expected += [-1 / (math.sqrt(2) + 1e-6), 1 / (math.sqrt(2) + 1e-6)]
    torch.testing.assert_close(advantage, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)
    assert returns.tolist() == [1, 0, 0, 0, 5, 7]


@pytest.mark.parametrize("part", ALL, ids=repr)
@pytest.mark.parametrize("rewards", [[0.3] * 8, [0.3] * 7 + [0.30000001192092896], [1.0] * 8])
def test_a_tied_group_is_exactly_zero(part, rewards):
    """Seven 0.3 and one float32(0.3) differ by rounding only: no epsilon may blow that up."""
    advantage, _ = per_row(part, rewards, [0] * 8)
    assert (advantage == 0).all()


@pytest.mark.parametrize("part", ALL, ids=repr)
def test_a_lone_vote_is_exactly_zero(part):
    advantage, _ = per_row(part, [1.0, math.nan, math.nan], [0, 0, 0])
    assert (advantage == 0).all()
    advantage, _ = per_row(part, [1.0, 0.0], [0, 1])
    assert (advantage == 0).all()


def test_a_masked_completion_does_not_vote():
    """[1,1,0,0] with the second masked: 2/3, 0, -1/3, -1/3 before scaling."""
    advantage, _ = per_row(GroupMean(), [1.0, 1.0, 0.0, 0.0], [0] * 4, [True, False, True, True])
    torch.testing.assert_close(advantage, torch.tensor([2 / 3, 0, -1 / 3, -1 / 3], dtype=torch.float64))


def test_a_reward_that_is_nan_does_not_silence_its_group():
    advantage, _ = per_row(GroupMean(), [1.0, 0.0, math.nan], [0, 0, 0])
    assert advantage.tolist() == [0.5, -0.5, 0.0]


def test_group_mean_is_a_fraction_of_leave_one_out():
    rewards, group = torch.rand(10, dtype=torch.float64), [0] * 10
    mean, _ = per_row(GroupMean(), rewards, group)
    others, _ = per_row(LeaveOneOut(), rewards, group)
    torch.testing.assert_close(mean, 0.9 * others)


def test_reward_of_a_completion_is_the_sum_over_its_tokens():
    reward = torch.tensor([[0.5, 9.0, 0.5], [0.0, 0.0, 9.0]], dtype=torch.float64)
    mask = torch.tensor([[True, False, True], [True, True, False]])
    advantage, returns = GroupMean()(reward, None, mask, torch.zeros(2, dtype=torch.long), None)
    assert advantage.tolist() == [[0.5, 0, 0.5], [-0.5, -0.5, 0]]
    assert returns.tolist() == [[1, 0, 1], [0, 0, 0]]


def test_public_surface_takes_rewards_per_completion_and_per_token():
    algo = groupwise.algorithm("grpo")
    rewards, groups = torch.tensor([1.0, 0.0, math.nan]), torch.tensor([5, 5, 5])
    flat = algo.advantages(rewards, groups)
    assert flat.shape == (3,)
    assert flat[2] == 0
    per_token = torch.zeros(3, 4)
    per_token[:, 3] = rewards
    mask = torch.ones(3, 4, dtype=torch.bool)
    assert torch.equal(algo.advantages(per_token, groups, mask)[:, 0], flat)
    assert torch.equal(algo.advantages(rewards, groups, mask), flat)
