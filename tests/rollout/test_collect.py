"""Prompts, filters and refill, with the real engine on a tiny random policy."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from typing import Any

import pytest
import torch

from groupwise.algorithms.parts.filters import DropUniform, KeepAll, Signal, signal
from groupwise.core.collate import collate
from groupwise.core.engine import Sampling
from groupwise.core.numbers.measure import Measure
from groupwise.core.numbers.statistics import pass_at_k
from groupwise.core.records import Completion, Group, Prompt
from groupwise.core.samples import Sample
from groupwise.core.stream import Cohort, RolloutResult, StreamState
from groupwise.journal.per_token import PerToken
from groupwise.journal.rollout_rows import rollout_rows
from groupwise.rollout.collect import Prompts
from groupwise.rollout.scoring import Scorer, ScoringRound
from tests.rollout.made import ARITHMETIC, IMPOSSIBLE, ByText, completion, evaluated, keys, make, rollout_of, saved


def test_every_prompt_comes_once_an_epoch_in_an_order_of_the_seed():
    samples = ARITHMETIC.samples("train")[:10]

    def drawn(i: int, seed: int = 5) -> str:
        return Prompts(samples, lambda sample: (1,), seed).draw(i).sample.key

    draws = [drawn(i) for i in range(30)]
    for epoch in (draws[:10], draws[10:20], draws[20:]):
        assert sorted(epoch) == sorted(s.key for s in samples)
    assert draws[:10] != draws[10:20]
    assert [drawn(i, seed=6) for i in range(10)] != draws[:10]


def test_without_a_filter_every_group_trains_in_order(policy):
    rollout = make(policy, KeepAll())
    harvest = rollout.collect(6)
    assert harvest.groups == harvest.generated
    assert (harvest.rounds, harvest.dropped, harvest.fallback, harvest.surplus) == (1, 0, 0, ())
    assert rollout.state.cursor == 6
    assert keys(harvest.groups) == [rollout.prompts.draw(i).sample.key for i in range(6)]


def test_refill_gives_only_mixed_groups_and_nothing_is_lost(policy):
    rollout = make(policy, DropUniform())
    seen: list[str] = []
    for _ in range(5):
        waiting = rollout.state.surplus
        harvest = rollout.collect(5)
        assert len(harvest.groups) == 5
        assert harvest.fallback == 0
        assert all(signal(g) is Signal.MIXED for g in harvest.groups)
        assert harvest.groups[: len(waiting)] == waiting[:5]
        assert len(waiting) + len(harvest.generated) == 5 + harvest.dropped + len(harvest.surplus)
        seen += keys(harvest.groups)
    generated = [rollout.prompts.draw(i).sample.key for i in range(rollout.state.cursor)]
    mixed = [key for key in generated if key in {*seen, *keys(rollout.state.surplus)}]
    assert seen == mixed[: len(seen)], "groups train in the order of their prompts, whatever their length"


def test_refill_goes_on_from_its_state_as_if_it_had_never_stopped(policy):
    rollout = make(policy, DropUniform())
    rollout.collect(5)
    again = make(policy, DropUniform(), state=saved(rollout.state))
    assert again.state.surplus == rollout.state.surplus
    assert again.collect(5).groups == rollout.collect(5).groups


class ByLot:
    """An engine whose completions are right or wrong by the request alone, and as long as `stretch` says."""

    def __init__(self, stretch) -> None:
        self.stretch = stretch

    def generate(self, requests, sampling, on_finish=None):
        found = []
        for request in requests:
            lots = [(request.seed >> i) & 1 for i in range(request.samples)]
            rows = [(3 + lot,) + (9,) * (self.stretch(request.seed, i) % 7) for i, lot in enumerate(lots)]
            found.append(tuple(completion(tokens=row, finish="length" if len(row) > 4 else "stop") for row in rows))
        return found


@pytest.mark.parametrize("mask_truncated", [False, True])
def test_which_groups_train_does_not_depend_on_how_long_completions_are(mask_truncated):
    """Same scores, other lengths: the same prompts in the same order, step after step, surplus included."""

    def told(stretch) -> list[list[str]]:
        begins_with_4 = ByText(lambda sample, text: float(text.startswith("4")))
        filter = DropUniform(mask_truncated=mask_truncated)
        rollout = rollout_of(ByLot(stretch), Sampling().max_new_tokens, None, filter, begins_with_4, samples=3)
        steps = [rollout.collect(5) for _ in range(4)]
        return [keys((*h.groups, *h.surplus)) for h in steps]

    short = told(lambda seed, i: 0)
    assert short == told(lambda seed, i: seed // 64 + i)
    assert short == told(lambda seed, i: 6 * ((seed >> i) & 1))
    assert len({key for step in short for key in step}) > 15


def test_the_budget_bounds_a_hopeless_task_and_the_fallback_is_counted(policy):
    rollout = make(policy, DropUniform(max_rounds=3), IMPOSSIBLE)
    harvest = rollout.collect(4)
    assert harvest.rounds == 3
    assert harvest.fallback == len(harvest.groups) == 4
    assert harvest.dropped == len(harvest.generated) == 4 + 2 * 16, "a refill asks for more the fewer are kept"


def test_pass_at_k_is_the_share_of_subsets_with_a_right_one():
    for n, c in ((5, 0), (5, 2), (6, 1), (4, 4)):
        flags = [i < c for i in range(n)]
        for k in range(1, n + 1):
            subsets = list(itertools.combinations(flags, k))
            assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_evaluations_count_and_their_standard_error_is_over_problems_by_hand(policy):
    problems = ARITHMETIC.samples("heldout")[:7]
    found, again = (evaluated(policy, Scorer(ByText(), policy.decode), problems, 4, Measure()) for _ in range(2))
    assert found == again
    assert (found.problems, found.samples, list(found.pass_at_k)) == (7, 4, [1, 2, 4])
    assert found.pass_at_k[1] == pytest.approx(found.avg_at_k)
    assert found.pass_at_k[1] <= found.pass_at_k[2] <= found.pass_at_k[4]

    def error(count: int, samples: int) -> float:
        first = Scorer(ByText(lambda sample, text: float(sample.key == problems[0].key)), policy.decode)
        return evaluated(policy, first, problems[:count], samples, Measure()).standard_error

    # Shares 1, 0, 0: deviation sqrt((4/9 + 1/9 + 1/9) / 2), over sqrt(3); more samples of a problem tell nothing new.
    assert error(3, 2) == pytest.approx(math.sqrt((4 / 9 + 1 / 9 + 1 / 9) / 2 / 3))
    assert error(3, 2) == error(3, 8)
    assert math.isnan(error(1, 4))


#: Pieces of several characters and of none, as real tokenizers have them: a step may end inside one.
PIECES = ["", "4-4", "+2=", "0", "+2", "=2", "="]


def spell(tokens: tuple[int, ...]) -> str:
    return "".join(PIECES[t] for t in tokens)


def scored(*tokens: int, prompt: str = "3+1-4+2=", reads_steps: bool = True, task=ARITHMETIC) -> Completion:
    given = Prompt(Sample("a", prompt, "2"), (3,))
    cohort = Cohort((given,), (0,), ((completion(tokens=tokens),),))
    return ScoringRound(Scorer(task, spell, reads_steps=reads_steps), [given]).scored(cohort)[0][0]


@pytest.mark.parametrize(
    ("tokens", "steps"),
    [
        ((1, 2, 3, 4, 5, 0), ((1, 1.0), (3, 1.0), (4, 1.0))),  # "4-4" "+2=" "0" "+2" "=2" "": ends inside tokens
        ((0, 1, 4, 0), ((2, 1.0),)),  # tokens without text move nothing
        ((6, 6), ((0, 0.0), (0, 0.0), (1, 0.0))),
        ((0,), ((0, 0.0),)),  # an empty answer is one step that earns nothing
        ((), ()),
    ],
)
def test_a_step_ends_with_the_token_of_its_last_character(tokens, steps):
    assert scored(*tokens).steps == steps


def test_the_last_step_ends_at_the_token_of_the_last_character_for_a_real_tokenizer(policy):
    rollout = make(policy, KeepAll(), ARITHMETIC, reads_steps=True)
    found = [(g.prompt.sample, c) for g in rollout.collect(6).groups for c in g.completions]
    assert any(len(c.steps) > 1 for _, c in found)
    for sample, c in found:
        ends = ARITHMETIC.steps(sample, c.text)
        assert [value for _, value in c.steps] == [value for _, value in ends]
        for (index, _), (end, _) in zip(c.steps, ends, strict=True):
            assert len(policy.decode(c.tokens[: index + 1])) >= end
            assert index == 0 or len(policy.decode(c.tokens[:index])) < end


def test_steps_are_scored_only_where_they_are_read_and_the_task_has_them():
    assert scored(1, 4, reads_steps=False).steps == ()
    assert scored(1, 4, task=ByText()).steps == ()
    assert scored(1, 4, reads_steps=False).score == scored(1, 4).score == 1.0


def test_a_step_that_ends_outside_the_text_is_refused():
    beyond: Any = ByText()
    beyond.steps = lambda sample, text: [(len(text) + 1, 1.0)]
    with pytest.raises(ValueError, match="a step ends at 6 in a completion of 5 characters"):
        scored(1, 4, task=beyond)


def test_steps_survive_the_checkpoint_bit_for_bit_and_stand_in_the_journal():
    prompt = Prompt(Sample("a", "1+1=", "2"), (3,))
    steps = ((0, 0.1), (2, 1 / 3))
    told = Group(prompt, (dataclasses.replace(completion(1.0, tokens=(1, 4, 5)), steps=steps), completion(tokens=(1,))))
    state = StreamState(surplus=(told,))
    assert saved(state).surplus[0].completions[0].steps == steps
    batch = collate([told], pad=0)
    batch = batch.add(reward=torch.zeros(batch.mask.shape), advantage=torch.zeros(batch.mask.shape))
    result = RolloutResult((told,), (told,), 0, 0, (), 1)
    first, second = rollout_rows(1, result, batch, PerToken(batch, 0), lambda tokens: [])
    assert json.loads(json.dumps(first))["steps"] == [[0, 0.1], [2, 1 / 3]]
    assert "steps" not in second
