"""Laws of credit that knows the turns of an episode."""

from __future__ import annotations

import math

import pytest
import torch

import groupwise
from groupwise.algorithms.parts.advantage import GroupZScore, LeaveOneOut
from groupwise.algorithms.parts.shaping import OutcomeReward, Steps
from groupwise.algorithms.parts.turns import StateGroups, TurnToGo
from groupwise.core.collate import collate
from groupwise.core.errors import UsageError
from groupwise.core.records import Completion, Group
from tests.laws.episodes import episodes
from tests.laws.test_advantage import steps_of

F64 = torch.float64


def spoken(mask, ends):
    """Of each row the turns: lists of trained tokens, each closed by a step end or by the row's end."""
    rows = []
    for own, end in zip(mask.tolist(), ends.tolist(), strict=True):
        turns, turn = [], []
        for t in (t for t, trained in enumerate(own) if trained):
            turn.append(t)
            if end[t]:
                turns.append(turn)
                turn = []
        rows.append([*turns, turn] if turn else turns)
    return rows


def by_hand(reward, mask, group, ends, gamma):
    """Turn-to-go with lists: what each turn brings to the end, minus the mean of the others that have the turn."""
    rows, answer = spoken(mask, ends), torch.zeros_like(reward)
    brings = [[math.fsum(float(reward[i, t]) for t in turn) for turn in turns] for i, turns in enumerate(rows)]
    to_go = [
        [math.fsum(gamma ** (k - j) * row[k] for k in range(j, len(row))) for j in range(len(row))] for row in brings
    ]
    for i, turns in enumerate(rows):
        members = [j for j in range(len(rows)) if j != i and group[j] == group[i]]
        if not any(rows[j] for j in members):
            continue
        for k, turn in enumerate(turns):
            others = [to_go[j][k] for j in members if k < len(rows[j])]
            answer[i, turn] = to_go[i][k] - (math.fsum(others) / len(others) if others else 0.0)
    return answer


@pytest.mark.parametrize("gamma", [1.0, 0.5, 0.0])
def test_turn_to_go_is_what_comes_minus_the_mean_of_the_others_that_are_alive(batch, gamma):
    reward, ends = steps_of(batch)
    advantage, returns = TurnToGo(gamma)(reward, None, batch.mask, batch.group, ends)
    expected = by_hand(reward, batch.mask, batch.group, ends, gamma)
    torch.testing.assert_close(advantage, expected, rtol=0, atol=1e-12)
    assert expected.abs().max() > 0.5
    first = batch.mask & (batch.mask.cumsum(-1) == 1)
    if gamma == 1:
        total = torch.where(batch.mask, reward, 0.0).sum(-1)[:, None].expand_as(reward)
        torch.testing.assert_close(returns[first], total[first])


def test_with_one_turn_each_turn_to_go_is_the_leave_one_out_advantage(batch):
    reward, _ = steps_of(batch)
    reward[batch.group == 1] = 0.1  # of unequal lengths, so no tie of sums
    for rewards in (reward, reward.abs().ceil() * (batch.mask.cumsum(-1) == 1)):
        ends = batch.mask & (batch.mask.flip(-1).cumsum(-1).flip(-1) == 1)
        for given in (ends, torch.zeros_like(ends)):
            to_go = TurnToGo()(rewards, None, batch.mask, batch.group, given)
            torch.testing.assert_close(
                to_go, LeaveOneOut()(rewards, None, batch.mask, batch.group, None), rtol=0, atol=1e-13
            )


def test_the_last_one_alive_has_no_baseline_and_one_without_a_number_is_in_none():
    ends = torch.tensor([[True, True], [True, False], [True, True]])
    reward = torch.tensor([[1.0, 4.0], [2.0, 0.0], [math.nan, 50.0]], dtype=F64)
    advantage, returns = TurnToGo()(reward, None, ends, torch.zeros(3, dtype=torch.long), ends)
    assert advantage.tolist() == [[3, 4], [-3, 0], [0, 0]]
    assert returns.tolist() == [[5, 4], [2, 0], [0, 0]]


def test_without_step_ends_turn_to_go_says_what_it_needs():
    with pytest.raises(ValueError, match="use a task that plays turns"):
        TurnToGo()(torch.zeros(1, 1), None, torch.ones(1, 1, dtype=torch.bool), torch.zeros(1, dtype=torch.long), None)


def test_chosen_alone_it_reads_the_rewards_of_turns():
    row = groupwise.algorithm("grpo", {"advantage.kind": "turn-to-go"})
    assert row.shaping == Steps()
    assert row.needs_steps
    assert groupwise.algorithm(
        "grpo", {"advantage.kind": "turn-to-go", "shaping.step_scale": 0.5}
    ).shaping == OutcomeReward(step_scale=0.5)
    assert groupwise.algorithm("ppo", {"advantage.kind": "turn-to-go"}).shaping == OutcomeReward(step_scale=1.0)
    assert groupwise.algorithm("grpo").shaping == OutcomeReward()


def test_a_gradient_that_all_tokens_share_is_refused_and_the_remedy_runs_with_the_kl_in_the_reward():
    with pytest.raises(UsageError, match=r"algorithm\.advantage\.kind \(TurnToGo.*ratio\.level = \"turn\""):
        groupwise.algorithm("rloo", {"advantage.kind": "turn-to-go"})
    with pytest.raises(UsageError, match=r"trust\.kind \(Geometric"):
        groupwise.algorithm("gmpo", {"advantage.kind": "turn-to-go"})
    row = groupwise.algorithm("rloo", {"advantage.kind": "turn-to-go", "ratio.level": "token"})
    assert row.kl.in_reward


def z(pool: list[float], x: float, epsilon: float) -> float:
    """The z-score of one of a pool; 0 where there is nothing to compare."""
    if len(pool) < 2 or max(pool) - min(pool) <= 1e-6:
        return 0.0
    mean = math.fsum(pool) / len(pool)
    return (x - mean) / (math.sqrt(math.fsum((y - mean) ** 2 for y in pool) / (len(pool) - 1)) + epsilon)


@pytest.mark.parametrize(("omega", "gamma"), [(1.0, 0.95), (0.5, 1.0)])
def test_gigpo_is_the_episodes_z_score_and_that_of_turns_in_the_same_state(batch, omega, gamma):
    reward, ends = steps_of(batch)
    state = torch.randint(0, 3, reward.shape, generator=torch.Generator().manual_seed(3))
    rows, group = spoken(batch.mask, ends), batch.group.tolist()
    brings = [[math.fsum(float(reward[i, t]) for t in turn) for turn in row] for i, row in enumerate(rows)]
    to_go = [[math.fsum(gamma**k * r for k, r in enumerate(row[j:])) for j in range(len(row))] for row in brings]
    named = [[int(state[i, turn[-1]]) if ends[i, turn[-1]] else 0 for turn in row] for i, row in enumerate(rows)]
    expected = torch.zeros_like(reward)
    for i, row in enumerate(rows):
        members = [j for j in range(len(rows)) if group[j] == group[i] and rows[j]]
        for k, turn in enumerate(row):
            same = [to_go[j][m] for j in members for m in range(len(rows[j])) if named[j][m] == named[i][k]]
            by_state = z(same, to_go[i][k], 1e-6) if named[i][k] else 0.0
            expected[i, turn] = (
                z([math.fsum(brings[j]) for j in members], math.fsum(brings[i]), 1e-6) + omega * by_state
            )
    part = StateGroups(omega=omega, gamma=gamma)
    advantage, _ = part(reward, None, batch.mask, batch.group, ends, state)
    torch.testing.assert_close(advantage, expected, rtol=0, atol=1e-11)
    alone, _ = part(reward, None, batch.mask, batch.group, ends, torch.zeros_like(state))
    whole, _ = GroupZScore()(reward, None, batch.mask, batch.group, None)
    torch.testing.assert_close(alone, whole, rtol=0, atol=1e-12)
    assert (advantage - whole).abs().max() > 0.1


def test_states_are_numbers_of_their_group_where_turns_end():
    groups = episodes(1, 1)
    batch = collate(groups, pad=0)
    seen: dict[int, tuple[int, str]] = {}
    rows = [(g, group.prompt, c) for g, group in enumerate(groups) for c in group.completions]
    for i, (g, prompt, completion) in enumerate(rows):
        expected = {len(prompt.tokens) + turn.stop - 1: turn.state for turn in completion.turns if turn.state}
        assert set(batch.step_state[i].nonzero()[:, 0].tolist()) == set(expected)
        for at, state in expected.items():
            assert seen.setdefault(int(batch.step_state[i, at]), (g, state)) == (g, state)
    assert len(set(seen.values())) == len(seen) > 3
    assert set(seen) == set(range(1, len(seen) + 1))
    plain = Completion.of_one_turn((9,), (-1.0,), "stop", 0, score=1.0)
    without = [Group(groups[0].prompt, (plain,))]
    assert collate(without, pad=0).step_state is None
    assert collate(without, pad=0, states=True).step_state.tolist() == [[0] * (1 + len(groups[0].prompt.tokens))]


def test_without_states_gigpo_says_what_it_needs():
    one = torch.ones(1, 1, dtype=torch.bool)
    with pytest.raises(ValueError, match="use a task that plays turns"):
        StateGroups()(torch.zeros(1, 1), None, one, torch.zeros(1, dtype=torch.long), one)
