"""Prompts, filters and refill, with the real engine on a tiny random policy."""

from __future__ import annotations

import itertools
import math

import pytest

from groupwise.checkpoint import stream_from_json, stream_to_json
from groupwise.engines.base import Sampling
from groupwise.engines.local import LocalEngine
from groupwise.parts.filters import DropUniform, KeepAll, Signal, signal
from groupwise.records import Completion, Group, Prompt, Sample
from groupwise.rollout import Prompts, Rollout, evaluate, pass_at_k
from groupwise.tasks.arithmetic import Arithmetic

ARITHMETIC = Arithmetic(operands=(2, 3), largest=4)


class EvenLength:
    """Right when the completion has an even number of characters: half of a random policy's groups are mixed."""

    alphabet = ARITHMETIC.alphabet

    def samples(self, split):
        return ARITHMETIC.samples(split)

    def score(self, sample, completion):
        return float(len(completion) % 2 == 0)


def make(policy, filter, task=None, state=None, samples=4) -> Rollout:
    engine = LocalEngine(policy.model, policy.eos, policy.pad)
    prompts = Prompts(ARITHMETIC.samples("train"), policy.encode, seed=1)
    sampling = Sampling(temperature=1.5, max_new_tokens=6)
    return Rollout(engine, task or EvenLength(), prompts, policy.decode, sampling, samples, filter, state)


def group(*scores: float) -> Group:
    prompt = Prompt(Sample("a", "1+1=", "2"), (3,))
    return Group(prompt, tuple(Completion((4,), (-0.1,), "stop", 0, score=s) for s in scores))


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ((1, 0), Signal.MIXED),
        ((1, 1), Signal.ALL_RIGHT),
        ((0, 0.4), Signal.ALL_WRONG),
        ((1, math.nan), Signal.ALL_RIGHT),
        ((math.nan, math.nan), Signal.UNSCORED),
    ],
)
def test_signal_is_about_correctness(scores, expected):
    assert signal(group(*scores)) is expected
    assert DropUniform()(group(*scores)).keep == (expected is Signal.MIXED)
    assert KeepAll()(group(*scores)).keep


def test_every_prompt_comes_once_an_epoch_in_an_order_of_the_seed(policy):
    samples = ARITHMETIC.samples("train")[:10]
    draws = [Prompts(samples, policy.encode, seed=5).draw(i).sample.key for i in range(30)]
    for epoch in (draws[:10], draws[10:20], draws[20:]):
        assert sorted(epoch) == sorted(s.key for s in samples)
    assert draws[:10] != draws[10:20]
    assert Prompts(samples, policy.encode, seed=5).draw(17).sample.key == draws[17]
    assert [Prompts(samples, policy.encode, seed=6).draw(i).sample.key for i in range(10)] != draws[:10]


def test_without_a_filter_every_group_trains_in_order(policy):
    rollout = make(policy, KeepAll())
    harvest = rollout.collect(6)
    assert harvest.groups == harvest.generated
    assert (harvest.rounds, harvest.dropped, harvest.fallback, harvest.surplus) == (1, 0, 0, ())
    assert rollout.state.cursor == 6
    assert [g.prompt.sample.key for g in harvest.groups] == [rollout.prompts.draw(i).sample.key for i in range(6)]


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
        seen += [g.prompt.sample.key for g in harvest.groups]
    generated = [rollout.prompts.draw(i).sample.key for i in range(rollout.state.cursor)]
    mixed = [key for key in generated if key in set(seen) | {g.prompt.sample.key for g in rollout.state.surplus}]
    assert seen == mixed[: len(seen)], "groups train in the order of their prompts, whatever their length"


def test_refill_goes_on_from_its_state_as_if_it_had_never_stopped(policy):
    rollout = make(policy, DropUniform())
    rollout.collect(5)
    again = make(policy, DropUniform(), state=stream_from_json(stream_to_json(rollout.state)))
    assert again.state.surplus == rollout.state.surplus
    assert again.collect(5).groups == rollout.collect(5).groups


class Impossible(EvenLength):
    def score(self, sample, completion):
        return 0.0


def test_the_budget_bounds_a_hopeless_task_and_the_fallback_is_counted(policy):
    rollout = make(policy, DropUniform(max_rounds=3), Impossible())
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


def test_evaluation_counts_by_hand(policy):
    engine = LocalEngine(policy.model, policy.eos, policy.pad)
    problems = ARITHMETIC.samples("heldout")[:7]
    sampling = Sampling(temperature=1.5, max_new_tokens=6)
    found = evaluate(engine, EvenLength(), problems, policy.encode, policy.decode, 4, sampling, seed=3)
    again = evaluate(engine, EvenLength(), problems, policy.encode, policy.decode, 4, sampling, seed=3)
    assert found == again
    assert list(found.pass_at_k) == [1, 2, 4]
    assert found.pass_at_k[1] == pytest.approx(found.avg_at_k)
    assert found.pass_at_k[1] <= found.pass_at_k[2] <= found.pass_at_k[4]
    assert (found.problems, found.samples) == (7, 4)
