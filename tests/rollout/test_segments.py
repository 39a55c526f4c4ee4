"""Completions sampled in turns: the same as whole ones under weights that stay, in their order, and never too old."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from groupwise.algorithms.parts.filters import DropUniform, KeepAll
from groupwise.core.engine import Finished, Request, Sampling
from groupwise.core.errors import UsageError
from groupwise.core.records import Prompt, Span
from groupwise.core.samples import Sample
from groupwise.core.stream import Cohort
from groupwise.diagnostics.checks import CheckVerdict, no_older
from groupwise.engines.local.engine import LocalEngine
from groupwise.rollout.segments import Segment, advance, goes_on
from tests.engines.local.made import EOS, build, build_moe
from tests.engines.local.test_stopping import decode
from tests.rollout.made import ByLengths, keys, make, rollout_of, saved

PROMPTS = tuple(Prompt(Sample(str(i), "", ""), tuple(1 + (5 * i + j) % 29 for j in range(1 + 3 * i))) for i in range(4))
SEEDS = (1, 2, 2, 9)
SAMPLES = 5
SAMPLINGS = {
    "plain": Sampling(max_new_tokens=22),
    "top-p": Sampling(max_new_tokens=22, top_p=0.7),
    "late ends": Sampling(max_new_tokens=22, min_new_tokens=9),
    "stop strings": Sampling(max_new_tokens=22, stop=("é", "User:", "ab")),
    "late strings": Sampling(max_new_tokens=22, stop=("e", "g", "User:"), min_new_tokens=7),
    "penalty": Sampling(max_new_tokens=22, repetition_penalty=1.7),
    "greedy": Sampling(max_new_tokens=22, temperature=0.0),
}


def in_turns(engine: LocalEngine, sampling: Sampling, tokens: int | None, hears: Any = None) -> list[Cohort]:
    """One cohort to its end, the version of the weights one higher in each turn."""
    cohorts, turn = [Cohort(PROMPTS, SEEDS)], Segment(SAMPLES, sampling, tokens)
    for version in range(turn.count):
        engine.version = version
        cohorts = advance(engine, cohorts, turn, hears)
    return cohorts


@pytest.mark.parametrize("tokens", [1, 5, 11])
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_under_weights_that_stay_a_completion_in_turns_is_the_whole_one(sampling: Sampling, tokens: int) -> None:
    """Ids, ends and supports; log-probabilities but for the order of sums."""
    engine = LocalEngine(build(), EOS, pad=0, max_rows=7, decode=decode)
    (whole,), (turned,) = in_turns(engine, sampling, None), in_turns(engine, sampling, tokens)
    several = 0
    for one, other in zip(sum(whole.completions, ()), sum(turned.completions, ()), strict=True):
        assert (one.tokens, one.finish, one.stop) == (other.tokens, other.finish, other.stop)
        assert one.logp_engine == pytest.approx(other.logp_engine, abs=1e-5)
        edges = [*range(0, len(other.tokens), tokens), len(other.tokens)]
        spans = itertools.pairwise(edges)
        assert other.spans == tuple(Span(a, b, True, version) for version, (a, b) in enumerate(spans))
        if one.support is not None and other.support is not None:
            assert torch.equal(one.support.ids, other.support.ids)
            assert torch.equal(one.support.start, other.support.start)
        several += len(other.spans) > 1
    assert several >= 5
    assert (sampling.top_p < 1) == any(c.support is not None for group in turned.completions for c in group)


def test_routes_are_those_of_the_draws() -> None:
    engine, sampling = LocalEngine(build_moe(), frozenset({3}), 0, routes=True), SAMPLINGS["plain"]
    (whole,), (turned,) = in_turns(engine, sampling, None), in_turns(engine, sampling, 5)
    for one, other in zip(sum(whole.completions, ()), sum(turned.completions, ()), strict=True):
        assert one.tokens == other.tokens
        assert one.routes is not None
        assert other.routes is not None
        assert torch.equal(one.routes, other.routes)


@pytest.mark.parametrize("tokens", [None, 22, 100])
def test_turns_as_long_as_the_limit_ask_for_what_whole_completions_ask_for(tokens: int | None) -> None:
    requests_seen: list[Request] = []

    class Listening:
        def generate(self, requests: Sequence[Request], sampling: Sampling, on_finish: Any) -> Any:
            requests_seen.extend(requests)
            return engine.generate(requests, sampling, on_finish)

    engine = LocalEngine(build(), EOS, pad=0, decode=decode)
    done = advance(Listening(), [Cohort(PROMPTS, SEEDS)], Segment(SAMPLES, SAMPLINGS["plain"], tokens))  # type: ignore[arg-type]
    requests = [Request(p.tokens, SAMPLES, seed) for p, seed in zip(PROMPTS, SEEDS, strict=True)]
    assert requests_seen == [Request(r.tokens, r.samples, r.seed, 22) for r in requests]
    assert list(done[0].completions) == engine.generate(requests, SAMPLINGS["plain"])


def test_a_listener_hears_of_each_completion_once_whole_and_in_the_turn_of_its_cohorts_end() -> None:
    engine, sampling = LocalEngine(build(), EOS, pad=0, decode=decode), SAMPLINGS["stop strings"]
    turn, heard = Segment(SAMPLES, sampling, 6), []
    cohorts = [Cohort(PROMPTS, SEEDS)]
    for _ in range(turn.count - 1):
        cohorts = advance(engine, [*cohorts, Cohort(PROMPTS, tuple(seed + 7 for seed in SEEDS))], turn)
    done, *_ = advance(engine, cohorts, turn, heard.append)
    expected = [
        Finished(i, j, c.tokens, c.finish) for i, group in enumerate(done.completions) for j, c in enumerate(group)
    ]
    assert sorted(heard) == expected


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request((4, 5), 1, seed=1, drawn=2), "drawn is 2 of 2 tokens"),
        (Request((4, 5), 1, seed=1, drawn=-1), "drawn is -1 of 2 tokens"),
        (Request((4, 5), 1, seed=1, first=-1), "first -1"),
        (Request((4,) * 90, 1, seed=1, drawn=3), "a prompt of 90 tokens and up to 22 new ones do not fit"),
    ],
)
def test_a_request_that_cannot_go_on_is_one_line(request_: Request, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        LocalEngine(build(), EOS, pad=0, decode=decode).generate([request_], SAMPLINGS["plain"])


@pytest.mark.parametrize("filter", [KeepAll(), DropUniform(max_rounds=10), DropUniform(max_rounds=1)], ids=repr)
@pytest.mark.parametrize("tokens", [1, 4, 5, 16])
def test_groups_train_in_the_order_of_their_draws_and_are_never_older_than_the_turns_allow(
    filter: Any, tokens: int
) -> None:
    """Under a filter that drops half of the groups too: nothing is lost, nothing comes twice."""
    engine = ByLengths()
    rollout = rollout_of(engine, 16, tokens, filter)
    turns, generated, trained = math.ceil(16 / tokens), [], []
    for step in range(1, 13):
        result = rollout.collect(6)
        check = no_older(result.generated, newest=step - 1, most=turns - 1)
        assert check.verdict is CheckVerdict.PASS
        assert len(rollout.state.begun) == turns - 1
        assert all(not goes_on(c, 16) for g in result.generated for c in g.completions)
        generated += keys(result.generated)
        trained += keys(result.groups)
        assert len(result.groups) == 6 or filter.max_rounds == 1
        engine.version = step
    whole = rollout_of(ByLengths(), 16, None)
    assert generated == keys(whole.collect(len(generated)).groups)
    assert len(generated) == len(set(generated))
    if isinstance(filter, KeepAll):
        assert trained == generated


def test_a_completion_that_waited_too_long_fails_the_check() -> None:
    engine = ByLengths()
    rollout = rollout_of(engine, 16, 4)
    rollout.collect(6)
    engine.version = 9
    check = no_older(rollout.collect(6).generated, newest=9, most=3)
    assert (check.verdict, check.value, check.limit) == (CheckVerdict.FAIL, 9.0, 3.0)
    assert no_older([], newest=9, most=3).verdict is CheckVerdict.NOT_MEASURED


STEPS, WANTED = 40, 16


def lengths_in_turns(tokens: int, first_to_end: bool) -> list[int]:
    """Of the trained completions of 40 steps of 16 groups of 4; `first_to_end`: a cohort's order is not kept, as where
    the groups that end first train first and the rest is dropped.
    """
    engine = ByLengths()
    rollout = rollout_of(engine, 16, tokens)
    lengths = []
    for step in range(1, STEPS + 1):
        if first_to_end:
            groups = sorted(rollout.collect(2 * WANTED).groups, key=lambda g: max(c.length for c in g.completions))
            groups = groups[:WANTED]
        else:
            groups = rollout.collect(WANTED).groups
        lengths += [c.length for group in groups for c in group.completions]
        engine.version = step
    return lengths


def distance(lengths: Sequence[int], stop: float = 0.15, limit: int = 16) -> float:
    """Chi-square of the lengths against geometric ones cut off at the limit, over its degrees of freedom."""
    seen, total = Counter(lengths), len(lengths)
    chances = {n: stop * (1 - stop) ** (n - 1) for n in range(1, limit)}
    chances[limit] = (1 - stop) ** (limit - 1)
    return sum((seen[n] - total * p) ** 2 / (total * p) for n, p in chances.items()) / (limit - 1)


def test_lengths_are_distributed_as_those_of_whole_completions() -> None:
    """2,560 completions, 15 degrees of freedom: over 2.5 is one in a thousand. The test has the power to see a bias to
    short completions: trained as they end, half of them dropped, they are above 20.
    """
    assert distance(lengths_in_turns(4, first_to_end=False)) < 2.5
    assert distance(lengths_in_turns(4, first_to_end=True)) > 20


def test_what_has_not_ended_is_saved_and_goes_on(policy: Any) -> None:
    """A checkpoint between two steps: the same groups, to the bit."""

    rollout, again = (make(policy, DropUniform(), limit=9, turn_tokens=2) for _ in range(2))
    rollout.collect(5)
    again.state = saved(rollout.state)
    assert str(again.state) == str(rollout.state)  # a score that is not there yet is NaN
    assert any(goes_on(c, 9) for cohort in again.state.begun for group in cohort.completions for c in group)
    for _ in range(3):
        assert rollout.collect(5) == again.collect(5)
