"""Several rewards: added before group normalisation, or each normalised by itself and added after."""

from __future__ import annotations

import math

import pytest
import torch

import groupwise
from groupwise.core.collate import collate
from groupwise.core.records import Completion, Group, Prompt
from groupwise.core.samples import Cause, Sample, ScoreResult
from groupwise.rewards.functions.adapters import score_result, score_results
from groupwise.rollout.scoring import LEARNED, TASK, RewardWeights, with_learned

GROUP_ROWS = ["grpo", "dr-grpo", "gspo", "rloo", "reinforce++-baseline"]
NAMES = ("task", "form")


def batch_of(parts, rewards: RewardWeights):
    groups = []
    for g in range(2):
        rows = []
        for values in parts[4 * g : 4 * g + 4]:
            told = {name: value for name, value in zip(NAMES, values, strict=True) if value is not None}
            done = Completion.of_one_turn((5, 6, 7), (-0.1,) * 3, "stop", 0, score=told.get("task", math.nan))
            rows.append(
                Completion(**{**vars(done), "reward_scores": tuple(told.items()), "combined": rewards.combine(told)})
            )
        groups.append(Group(Prompt(Sample(str(g), "1+1=", "2"), (3, 4)), tuple(rows)))
    return collate(groups, pad=0, reward_names=NAMES)


def credited(name: str, parts, weights, each: bool):
    row = groupwise.algorithm(name, {"kl.place": "loss"} if name == "rloo" else {})
    batch = batch_of(parts, RewardWeights(dict(zip(NAMES, weights, strict=True)), each=each))
    old = torch.zeros(batch.mask.shape)
    return row.credit(batch.add(logp_old=old, logp_ref=old), weights if each else None).need("advantage")


@pytest.fixture
def scores() -> list[list[float]]:
    generator = torch.Generator().manual_seed(4)
    return torch.rand(8, 2, generator=generator, dtype=torch.float64).tolist()


@pytest.mark.parametrize("name", GROUP_ROWS)
def test_one_reward_is_the_same_before_and_after(name, scores):
    torch.testing.assert_close(
        credited(name, scores, (1.0, 0.0), each=True), credited(name, scores, (1.0, 0.0), each=False)
    )


@pytest.mark.parametrize("name", GROUP_ROWS)
def test_after_is_the_weighted_sum_of_each_by_itself(name, scores):
    first = credited(name, scores, (1.0, 0.0), each=True)
    second = credited(name, scores, (0.0, 1.0), each=True)
    torch.testing.assert_close(credited(name, scores, (2.0, 0.3), each=True), 2.0 * first + 0.3 * second)


def test_after_a_reward_of_small_spread_weighs_as_much_as_one_of_large(scores):
    """The z-score forgets a reward's scale where it is taken of each; of the sum it follows the largest spread."""
    shrunk = [[task, 1e-3 * form] for task, form in scores]
    for each, same in ((True, True), (False, False)):
        a, b = credited("grpo", scores, (1.0, 1.0), each), credited("grpo", shrunk, (1.0, 1.0), each)
        assert torch.allclose(a, b, atol=2e-2) is same


@pytest.mark.parametrize("each", [True, False])
def test_advantages_still_sum_to_nothing_in_a_group(each, scores):
    advantage = credited("grpo", scores, (1.0, 0.5), each)[:, 2]
    assert advantage[:4].sum().abs() < 1e-12
    assert advantage[4:].sum().abs() < 1e-12


@pytest.mark.parametrize("each", [True, False])
def test_a_completion_that_lacks_one_score_neither_votes_nor_trains(each, scores):
    scores[1][1] = math.nan
    mine = credited("grpo", scores, (1.0, 0.5), each)
    assert (mine[1] == 0).all()
    assert mine[:4].isfinite().all()
    scores[1] = [7.0, math.nan]
    torch.testing.assert_close(credited("grpo", scores, (1.0, 0.5), each), mine)


@pytest.mark.parametrize("name", GROUP_ROWS)
@pytest.mark.parametrize("each", [True, False])
def test_a_reward_that_does_not_vote_leaves_a_row_to_the_others(each, name, scores):
    """On the first problem only the second reward votes, on the second problem both do."""
    own = [[None, form] if i < 4 else [task, form] for i, (task, form) in enumerate(scores)]
    mine, both = (credited(name, rows, (2.0, 0.5), each) for rows in (own, scores))
    if name != "reinforce++-baseline":  # its whitening looks over the batch
        torch.testing.assert_close(mine[:4], credited(name, scores, (0.0, 0.5), each)[:4])
        torch.testing.assert_close(mine[4:], both[4:])
    assert mine.isfinite().all()
    assert (mine[:4, 2] != 0).all()


def test_after_normalisation_a_row_without_a_vote_is_not_compared_by_that_reward(scores):
    own = [[None if i == 1 else task, form] for i, (task, form) in enumerate(scores)]
    advantage = credited("grpo", own, (1.0, 0.0), each=True)[:4, 2]
    assert advantage[1] == 0
    assert (advantage[[0, 2, 3]] != 0).all()
    torch.testing.assert_close(advantage.sum(), torch.zeros((), dtype=advantage.dtype), atol=1e-6, rtol=0)


@pytest.mark.parametrize("each", [True, False])
def test_a_row_that_no_reward_votes_on_trains_nothing_and_moves_nothing(each, scores):
    silent = [[None, None] if i == 1 else row for i, row in enumerate(scores)]
    left = credited("grpo", silent, (1.0, 0.5), each)
    assert (left[1] == 0).all()
    torch.testing.assert_close(left[[0, 2, 3], 2].sum(), torch.zeros((), dtype=left.dtype), atol=1e-6, rtol=0)
    torch.testing.assert_close(left[4:], credited("grpo", scores, (1.0, 0.5), each)[4:])


def test_the_reward_of_the_record_is_the_weighted_sum(scores):
    batch = batch_of(scores, RewardWeights({"task": 2.0, "form": -1.0}))
    expected = torch.tensor([2 * task - form for task, form in scores], dtype=torch.float64)
    torch.testing.assert_close(batch.score, expected)


def test_rows_keep_the_rewards_whole():
    batch = batch_of([[float(i), 10.0 * i] for i in range(8)], RewardWeights({"task": 1.0}))
    cut = batch.rows([6, 1], width=1)
    assert cut.need("reward_scores").tolist() == [[6.0, 60.0], [1.0, 10.0]]


def test_a_learned_score_joins_the_others_or_stands_alone():
    done = Completion.of_one_turn((5,), (-0.1,), "stop", 0, score=1.0, reward_scores=(("task", 1.0),))
    alone = with_learned(done, 0.25, RewardWeights())
    assert (alone.trains_on, alone.combined) == (0.25, None)
    joined = with_learned(done, 0.25, RewardWeights({TASK: 1.0, LEARNED: 2.0}))
    assert joined.trains_on == 1.5
    assert dict(joined.reward_scores) == {"task": 1.0, "learned": 0.25}


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        (1, None),
        (True, None),
        (torch.tensor(0.5), None),
        (math.nan, Cause.NAN),
        (math.inf, Cause.NAN),
        ("1.0", Cause.WRONG_TYPE),
        (b"1", Cause.WRONG_TYPE),
        ([1.0], Cause.WRONG_TYPE),
        (1j, Cause.WRONG_TYPE),
        (10**400, Cause.WRONG_TYPE),
    ],
)
def test_what_is_no_finite_number_is_no_score(value, cause):
    told = score_result(value)
    assert told.cause is cause
    assert math.isnan(told.value) == (cause is not None)


def test_a_list_of_another_length_scores_nobody():
    assert [m.cause for m in score_results([1.0, 2.0], 3)] == [Cause.WRONG_LENGTH] * 3
    assert [m.cause for m in score_results("abc", 3)] == [Cause.WRONG_TYPE] * 3
    assert score_results((1.0, 2.0), 2) == [ScoreResult(1.0), ScoreResult(2.0)]
