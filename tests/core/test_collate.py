"""Groups to batch to minibatches: nothing lost, nothing moved."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from groupwise.algorithms.parts.shaping import OutcomeReward, Steps
from groupwise.core.collate import collate, minibatches
from groupwise.core.numbers.seeds import derive, stream
from groupwise.core.records import Batch, Completion, Group, Prompt, Support
from groupwise.core.samples import Sample
from groupwise.loop import passes


def groups() -> list[Group]:
    made = []
    for g in range(5):
        prompt = Prompt(Sample(str(g), "p", "a"), tuple(range(2, 4 + g)))
        completions = tuple(
            Completion.of_one_turn((9,) * n, (-0.5 * i,) * n, "stop", i, score=float(i))
            for i, n in enumerate([1 + (g + i) % 4 for i in range(3)])
        )
        made.append(Group(prompt, completions))
    return made


def test_rows_are_prompt_then_completion():
    batch = collate(groups(), pad=0)
    for row, (g, c) in enumerate([(group, c) for group in groups() for c in group.completions]):
        whole = g.prompt.tokens + c.tokens
        assert batch.tokens[row, : len(whole)].tolist() == list(whole)
        assert (batch.tokens[row, len(whole) :] == 0).all()
        assert batch.mask[row].nonzero()[:, 0].tolist() == list(range(len(g.prompt.tokens), len(whole)))
        assert batch.logp_engine[row][batch.mask[row]].tolist() == list(c.logp_engine)
        assert int(batch.length[row]) == len(whole)
        assert (int(batch.group[row]), float(batch.score[row]), int(batch.version[row])) == (
            row // 3,
            c.score,
            c.version,
        )


def test_a_completion_without_a_score_stays_as_a_row_that_does_not_train():
    one = groups()[0]
    lost = Completion.of_one_turn((9, 9), (-1.0, -1.0), "length", 0, score=math.nan)
    batch = collate([Group(one.prompt, (*one.completions, lost))], pad=0)
    assert not batch.mask[3].any()
    assert len(batch) == 4


def stepped() -> list[Group]:
    """Two completions with two steps and none, behind a prompt of three tokens; the second was cut off."""
    prompt = Prompt(Sample("s", "p", "a"), (2, 3, 4))
    first = Completion.of_one_turn((9,) * 4, (-1.0,) * 4, "stop", 0, score=1.0, steps=((1, 0.0), (3, 0.5)))
    return [Group(prompt, (first, Completion.of_one_turn((9, 9), (-1.0, -1.0), "length", 0, score=0.0)))]


def test_steps_stand_at_their_tokens_and_a_score_of_zero_is_a_step_too():
    batch = collate(stepped(), pad=0)
    assert batch.need("step_end").nonzero().tolist() == [[0, 4], [0, 6]]
    assert batch.need("step_score")[0].tolist() == [0, 0, 0, 0, 0, 0, 0.5]
    assert batch.need("step_score").dtype == torch.float64
    assert not batch.need("step_score")[1].any()
    assert torch.equal(batch.rows([1, 0]).need("step_end"), batch.need("step_end")[[1, 0]])


def test_step_columns_are_there_where_there_are_steps_or_they_are_asked_for():
    assert collate(groups(), pad=0).step_end is None
    assert collate(groups(), pad=0).step_score is None
    asked = collate(groups(), pad=0, steps=True)
    assert not asked.need("step_end").any()
    assert asked.need("step_score").shape == asked.tokens.shape


def test_steps_that_end_in_one_token_are_added():
    (group,) = stepped()
    twice = dataclasses.replace(group.completions[0], steps=((1, 0.5), (1, 0.25), (3, 1.0)))
    batch = collate([Group(group.prompt, (twice,))], pad=0)
    assert batch.need("step_score")[0].tolist() == [0, 0, 0, 0, 0.75, 0, 1]


def test_a_cut_off_completion_trains_unless_it_is_masked():
    cut = collate(stepped(), pad=0, mask_truncated=True)
    assert cut.mask.any(-1).tolist() == [True, False]
    assert collate(stepped(), pad=0).mask.any(-1).tolist() == [True, True]
    assert torch.equal(cut.mask[0], collate(stepped(), pad=0).mask[0])
    assert torch.equal(cut.tokens, collate(stepped(), pad=0).tokens)


def test_step_rewards_stand_at_step_ends_alone():
    batch = collate(stepped(), pad=0)
    assert Steps(scale=2.0)(batch).tolist() == [[0, 0, 0, 0, 0, 0, 1], [0] * 7]
    assert Steps.reads_steps
    with pytest.raises(ValueError, match="step scores"):
        Steps()(collate(groups(), pad=0))


def test_step_scores_are_added_to_the_outcome_where_there_are_any():
    batch = collate(stepped(), pad=0)
    spoilt = Batch(**{**vars(batch), "step_score": torch.where(batch.need("step_end"), batch.step_score, torch.nan)})
    assert OutcomeReward(step_scale=3.0)(spoilt)[0].tolist() == [0, 0, 0, 0, 0, 0, 1 + 1.5]
    unread = Batch(**{**vars(batch), "step_score": torch.full_like(batch.need("step_score"), math.nan)})
    assert OutcomeReward()(unread)[0].tolist() == [0, 0, 0, 0, 0, 0, 1]
    assert torch.equal(
        OutcomeReward(step_scale=3.0)(collate(groups(), pad=0)), OutcomeReward()(collate(groups(), pad=0))
    )
    assert (OutcomeReward().reads_steps, OutcomeReward(step_scale=3.0).reads_steps) == (False, True)


@pytest.mark.parametrize("count", [1, 2, 4, 5, 9])
def test_minibatches_are_disjoint_whole_groups(count):
    batch = collate(groups(), pad=0)
    parts = list(minibatches(batch, count, stream(0, "x")))
    assert len(parts) == min(count, 5)
    found = [set(p.group.tolist()) for p in parts]
    assert sorted(g for part in found for g in part) == list(range(5))
    assert max(map(len, found)) - min(map(len, found)) <= 1
    assert sum(len(p) for p in parts) == len(batch)
    assert all(p.tokens.shape[1] == int(p.length.max()) for p in parts)
    again = list(minibatches(batch, count, stream(0, "x")))
    assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(parts, again, strict=True))


def test_every_pass_of_every_step_has_an_order_of_its_own_and_the_same_again():
    batch = collate(groups(), pad=0)

    def orders(seed: int, step: int) -> list[tuple[int, ...]]:
        settings: Any = SimpleNamespace(seed=seed, passes_per_batch=2, updates_per_batch=5)
        found = [int(part.group[0]) for part in passes(batch, settings, step)]
        return [tuple(found[:5]), tuple(found[5:])]

    told = [order for seed, step in ((0, 1), (0, 2), (1, 1)) for order in orders(seed, step)]
    assert all(sorted(order) == list(range(5)) for order in told)
    assert len(set(told)) == len(told)
    assert orders(0, 1) == told[:2]


def test_a_column_has_one_writer():
    batch = collate(groups(), pad=0)
    first = batch.add(reward=torch.zeros(batch.tokens.shape))
    with pytest.raises(ValueError, match="column reward has been written already"):
        first.add(reward=torch.ones(batch.tokens.shape))
    assert batch.reward is None


def test_rows_take_every_column_along():
    batch = collate(groups(), pad=0)
    support = tuple(Support(torch.tensor([i]), torch.tensor([0, 1])) for i in range(len(batch)))
    batch = Batch(**{**vars(batch), "support": support}).add(reward=torch.rand(batch.tokens.shape))
    some = batch.rows([4, 1])
    assert some.support is not None
    assert [int(s.ids) for s in some.support if s is not None] == [4, 1]
    assert torch.equal(some.reward, batch.reward[[4, 1], : some.tokens.shape[1]])
    assert some.group.tolist() == [1, 0]


def test_streams_depend_on_their_names_alone():
    assert derive(1, "a", 2) == derive(1, "a", 2)
    assert len({derive(1, "a"), derive(1, "b"), derive(2, "a"), derive(1, "a", 0), derive("1a")}) == 5
    assert torch.rand(3, generator=stream(7, "x")).tolist() == torch.rand(3, generator=stream(7, "x")).tolist()
