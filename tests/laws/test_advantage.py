"""Laws of the group advantages."""

from __future__ import annotations

import math

import pytest
import torch

import groupwise
from groupwise.algorithms.parts.advantage import GroupMean, GroupZScore, LeaveOneOut, ProcessZScore

ALL = [GroupZScore(), GroupMean(), LeaveOneOut()]


def per_row(part, rewards, group, mask=None):
    rewards = torch.as_tensor(rewards, dtype=torch.float64)
    mask = torch.ones(len(rewards), 1, dtype=torch.bool) if mask is None else torch.as_tensor(mask)[:, None]
    advantage, returns = part(rewards[:, None], None, mask, torch.as_tensor(group), None)
    return advantage[:, 0], returns[:, 0]


def steps_of(batch, seed=0):
    """Rewards and step ends [N,T] for a drawn batch: from no to several steps a completion, some of them masked."""
    g = torch.Generator().manual_seed(seed)
    rewards = torch.randn(batch.mask.shape, generator=g, dtype=torch.float64)
    return rewards, torch.rand(batch.mask.shape, generator=g) < 0.4


@pytest.mark.parametrize("part", ALL, ids=repr)
def test_sums_to_zero_over_the_votes_of_each_group(part, batch):
    rewards = torch.rand(len(batch.group), dtype=torch.float64)
    rewards[3] = math.nan
    votes = batch.mask.any(-1) & ~rewards.isnan()
    advantage, _ = per_row(part, rewards, batch.group, batch.mask.any(-1))
    for g in batch.group.unique():
        assert advantage[(batch.group == g) & votes].sum().abs() < 1e-12
    assert (advantage[~votes] == 0).all()


def test_a_masked_completion_does_not_vote():
    """[1,1,0,0] with the second masked: 2/3, 0, -1/3, -1/3 before scaling."""
    advantage, _ = per_row(GroupMean(), [1.0, 1.0, 0.0, 0.0], [0] * 4, [True, False, True, True])
    torch.testing.assert_close(advantage, torch.tensor([2 / 3, 0, -1 / 3, -1 / 3], dtype=torch.float64))


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


def process_by_hand(rewards, mask, group, ends, epsilon):
    """Lists of step rewards of each completion, pooled by group, then summed from each token to the end."""
    found = torch.zeros_like(rewards)
    for name in set(group.tolist()):
        rows = [n for n in range(len(group)) if int(group[n]) == name]
        steps = {n: [t for t in range(mask.shape[1]) if mask[n, t] and ends[n, t]] for n in rows}
        pool = [float(rewards[n, t]) for n in rows for t in steps[n]]
        if len(pool) < 2 or max(pool) - min(pool) <= 1e-6:
            continue
        mean = math.fsum(pool) / len(pool)
        deviation = math.sqrt(math.fsum((r - mean) ** 2 for r in pool) / (len(pool) - 1)) + epsilon
        for n in rows:
            for t in range(mask.shape[1]):
                later = [(float(rewards[n, j]) - mean) / deviation for j in steps[n] if j >= t]
                found[n, t] = math.fsum(later) if mask[n, t] else 0.0
    return found


@pytest.mark.parametrize("epsilon", [0.0, 1e-6, 0.5])
def test_process_supervision_is_the_papers_sum_over_later_steps(batch, epsilon):
    rewards, ends = steps_of(batch)
    rewards[rewards.abs() < 0.3] = 0.0  # a step's score of 0 is a score
    advantage, _ = ProcessZScore(epsilon)(rewards, None, batch.mask, batch.group, ends)
    expected = process_by_hand(rewards, batch.mask, batch.group, ends, epsilon)
    torch.testing.assert_close(advantage, expected, rtol=0, atol=1e-12)
    assert expected.abs().max() > 0.5


def test_process_supervision_of_tied_or_single_steps_is_exactly_zero():
    mask, ends = torch.ones(4, 3, dtype=torch.bool), torch.zeros(4, 3, dtype=torch.bool)
    reward = torch.full((4, 3), 9.0, dtype=torch.float64)
    ends[0, [0, 2]], ends[1, 1], ends[2, 1] = True, True, True
    reward[0, [0, 2]], reward[1, 1] = torch.tensor([0.3, 0.30000001192092896], dtype=torch.float64), 0.3
    advantage, _ = ProcessZScore(epsilon=0.0)(reward, None, mask, torch.tensor([0, 0, 1, 1]), ends)
    assert (advantage == 0).all()


def test_process_supervision_of_one_last_step_each_is_the_z_score():
    rewards = torch.tensor([1.0, 0.0, 0.0, 0.5], dtype=torch.float64)
    mask, ends = torch.ones(4, 3, dtype=torch.bool), torch.zeros(4, 3, dtype=torch.bool)
    ends[:, 2] = True
    per_token = torch.where(ends, rewards[:, None], 0.0)
    group = torch.zeros(4, dtype=torch.long)
    found, _ = ProcessZScore()(per_token, None, mask, group, ends)
    torch.testing.assert_close(found, GroupZScore()(per_token, None, mask, group, None)[0], rtol=0, atol=1e-12)


def test_process_supervision_without_step_ends_is_refused():
    with pytest.raises(ValueError, match="step ends"):
        ProcessZScore()(torch.zeros(1, 1), None, torch.ones(1, 1).bool(), torch.zeros(1, dtype=torch.long), None)
