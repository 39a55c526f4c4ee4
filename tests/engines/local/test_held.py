"""What the local engine holds between turns of an episode: the same answers as without, for the new tokens' work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from groupwise.core.engine import Finished, Request, Sampling
from groupwise.core.errors import UsageError
from groupwise.core.records import Completion
from groupwise.engines.local.engine import LocalEngine
from tests.engines.local import made as dense
from tests.engines.local.test_stopping import decode

EOS = frozenset({3, 7})
# Of very different lengths, so that new tokens are padded, held ones too, and rows end and are dropped at odd times.
PROMPTS = [(5, 9, 11, 2, 8, 20, 14), (4,), (12, 13, 2, 29), (6, 6, 1), (9,) * 17, (21, 4, 8), (2, 10, 22, 23, 24)]
Played = list[tuple[Request, Completion]]


def observation(episode: int, turn: int) -> tuple[int, ...]:
    """1 to 6 ids of the environment's."""
    return tuple(8 + (3 * episode + 5 * turn + i) % 20 for i in range(1 + (episode + turn) % 6))


def turns_of(engine: LocalEngine, sampling: Sampling, holds: bool, turns: int = 4, samples: int = 1) -> Played:
    """Episodes of `turns` turns: a new one begins in each turn, and goes on from the first completion of its last."""
    history, before = list(PROMPTS), [0] * len(PROMPTS)
    played: Played = []
    for turn in range(turns):
        requests = [
            Request(tokens, samples, seed=episode, first=8 * turn, hold=holds, held=holds * held)
            for episode, (tokens, held) in enumerate(zip(history, before, strict=True))
        ][: len(PROMPTS) - turns + 1 + turn]
        done = [group[-1] for group in engine.generate(requests, sampling)]
        played += zip(requests, done, strict=True)
        for episode, (request, completion) in enumerate(zip(requests, done, strict=True)):
            before[episode] = len(request.tokens) + len(completion.tokens)
            history[episode] = request.tokens + completion.tokens + observation(episode, turn)
    return played


def assert_same(one: Played, other: Played, atol: float = 1e-5) -> None:
    for (request, mine), (_, theirs) in zip(one, other, strict=True):
        assert (mine.tokens, mine.finish, mine.stop) == (theirs.tokens, theirs.finish, theirs.stop), request
        ours, expected = (torch.tensor(done.logp_engine) for done in (mine, theirs))
        torch.testing.assert_close(ours, expected, atol=atol, rtol=0)
        assert (mine.routes is None) == (theirs.routes is None)
        assert mine.routes is None or theirs.routes is None or mine.routes.equal(theirs.routes)


def new_tokens(played: Played) -> int:
    """What must be run of one-sample episodes if nothing is run twice: all but the last token of each."""
    last = {request.seed: (request, done) for request, done in played}
    return sum(len(request.tokens) + len(done.tokens) - 1 for request, done in last.values())


HOW = {
    "whole vocabulary": Sampling(max_new_tokens=6),
    "one token a turn": Sampling(max_new_tokens=1),
    "top-p": Sampling(max_new_tokens=6, top_p=0.8),
    "stop strings": Sampling(max_new_tokens=9, stop=("e", "\n")),
    "repetition penalty": Sampling(max_new_tokens=6, repetition_penalty=1.5),
    "least tokens": Sampling(max_new_tokens=6, min_new_tokens=4),
}
MODELS: dict[str, Callable[[], Any]] = {
    **{name: lambda name=name: dense.build(name) for name in ("llama", "gpt2")},
    "experts": dense.build_moe,
}


@pytest.fixture(scope="module")
def engine() -> LocalEngine:
    return LocalEngine(dense.build(), EOS, pad=0, max_rows=3, decode=decode)


@pytest.mark.parametrize("how", HOW)
def test_holding_changes_no_answer(engine: LocalEngine, how: str) -> None:
    begin = engine.tokens_run
    held = turns_of(engine, HOW[how], holds=True)
    between = engine.tokens_run
    resent = turns_of(engine, HOW[how], holds=False)
    assert_same(held, resent)
    assert between - begin == new_tokens(held)
    assert engine.tokens_run - between == sum(len(r.tokens) + len(done.tokens) - 1 for r, done in resent)


@pytest.mark.parametrize("name", MODELS)
def test_holding_changes_no_answer_of_any_model(name: str) -> None:
    routes = name == "experts"
    engine = LocalEngine(MODELS[name](), EOS, pad=0, routes=routes)
    held, resent = (turns_of(engine, HOW["whole vocabulary"], holds) for holds in (True, False))
    assert_same(held, resent)
    assert all((done.routes is not None) == routes for _, done in held)


def test_groups_go_on_from_one_completion(engine: LocalEngine) -> None:
    """Of five completions three fit into the engine's rows, so that the others begin later, after the same tokens."""
    held, resent = (turns_of(engine, HOW["top-p"], holds, samples=5) for holds in (True, False))
    assert_same(held, resent)


def test_half_precision_holds_what_it_would_compute() -> None:
    held = turns_of(LocalEngine(dense.build(), EOS, 0, precision="bf16"), HOW["whole vocabulary"], holds=True)
    other, same = LocalEngine(dense.build(), EOS, 0, precision="bf16"), 0
    for request, mine in held:
        ((theirs,),) = other.generate([replace(request, hold=False, held=0)], HOW["one token a turn"])
        same += mine.tokens[0] == theirs.tokens[0]
        assert mine.tokens[0] != theirs.tokens[0] or abs(mine.logp_engine[0] - theirs.logp_engine[0]) < 0.05
    assert same >= 0.9 * len(held)


def test_a_completion_that_is_cut_short_goes_on_from_what_is_held() -> None:
    engine, resending = (LocalEngine(dense.build(), frozenset(), pad=0) for _ in range(2))
    ((begun,),) = engine.generate([Request(PROMPTS[0], 1, seed=3, hold=True)], Sampling(max_new_tokens=5))
    run = engine.tokens_run
    tokens = PROMPTS[0] + begun.tokens
    request = Request(tokens, 1, seed=3, drawn=5, hold=True, held=len(tokens))
    mine, theirs = (e.generate([request], Sampling(max_new_tokens=5))[0][0] for e in (engine, resending))
    assert_same([(request, mine)], [(request, theirs)])
    assert engine.tokens_run - run == 5  # the last one drawn before, and all but the last drawn now
    tokens += (*mine.tokens, 11)
    engine.generate([Request(tokens, 1, seed=3, held=len(tokens) - 1)], Sampling(max_new_tokens=1))
    assert engine.tokens_run - run == 5 + 2  # and the last one drawn, with the one behind it


def test_eight_turns_run_each_token_once() -> None:
    """A prompt of 4, then 3 sampled and 2 observed tokens a turn: 4 + 8 * 5 - 2 and but for the last sampled one."""
    engine = LocalEngine(dense.build(), frozenset(), pad=0)
    tokens, held = (5, 9, 2, 14), 0
    for turn in range(8):
        request = Request(tokens, 1, seed=0, first=turn, hold=turn < 7, held=held)
        ((done,),) = engine.generate([request], Sampling(max_new_tokens=3))
        held = len(tokens) + 3
        tokens += (*done.tokens, 11, 12)
    assert engine.tokens_run == 4 + 8 * 5 - 2 - 1
    assert len(engine._held) == 0


def test_what_a_finished_row_runs_past_its_end_is_not_counted() -> None:
    """Of forty rows, a few that are finished run on until they are enough to be dropped."""
    engine = LocalEngine(dense.build(), frozenset(), pad=0)
    requests = [Request((4, seed % 30), 1, seed, max_new_tokens=1 + min(seed, 13)) for seed in range(40)]
    requests = [replace(request, hold=request.seed % 4 == 0) for request in requests]
    engine.generate(requests, Sampling())
    assert engine.tokens_run == 2 * 30 + sum(min(seed, 13) for seed in range(40))  # thirty prompts
    assert len(engine._held) == 10


def goes_on(engine: LocalEngine, between: Callable[[Request], Request]) -> tuple[int, Completion, Request]:
    """A turn that is held, and the next, changed by `between`: the tokens run for it, its answer, and its request."""
    ((first,),) = engine.generate([Request(PROMPTS[0], 1, seed=1, hold=True)], Sampling(max_new_tokens=4))
    tokens = PROMPTS[0] + first.tokens + (11, 12)
    request = between(Request(tokens, 1, seed=2, held=len(tokens) - 2))
    run = engine.tokens_run
    ((done,),) = engine.generate([request], Sampling(max_new_tokens=1))
    return engine.tokens_run - run, done, request


def test_what_is_held_is_dropped() -> None:
    """By the next call, by new weights, and by close; and where the ids are others, it is not used."""
    engine = LocalEngine(dense.build(), frozenset(), pad=0)
    whole = len(PROMPTS[0]) + 4 + 2

    def another_call(request: Request) -> Request:
        assert len(engine._held) == 1
        engine.generate([Request((1,), 1, seed=0)], Sampling(max_new_tokens=1))
        return request

    def call_without_requests(request: Request) -> Request:
        assert engine.generate([], Sampling()) == []
        assert len(engine._held) == 0
        return request

    def weights(request: Request) -> Request:
        engine.load_weights({name: 1.01 * w for name, w in dense.build().named_parameters()}.items(), version=5)
        return request

    def failure(request: Request) -> Request:
        def fail(done: Finished) -> None:
            raise ValueError

        with pytest.raises(ValueError):
            engine.generate([Request((1,), 1, seed=0)], Sampling(max_new_tokens=1), fail)
        return request

    def other_ids(request: Request) -> Request:
        return replace(request, tokens=(request.tokens[0] + 1, *request.tokens[1:]))

    def not_held(request: Request) -> Request:
        return replace(request, held=0)

    def wrong_count(request: Request) -> Request:
        return replace(request, held=request.held - 1)

    assert goes_on(engine, lambda request: request)[0] == 3
    for between in (another_call, call_without_requests, failure, weights, other_ids, not_held, wrong_count):
        run, done, request = goes_on(engine, between)
        ((expected,),) = engine.generate([replace(request, held=0)], Sampling(max_new_tokens=1))
        assert (run, done.tokens, done.logp_engine) == (whole, expected.tokens, expected.logp_engine), between
    goes_on(engine, lambda request: replace(request, hold=True))
    assert len(engine._held) == 1
    engine.close()
    assert len(engine._held) == 0


def test_what_is_held_takes_its_own_tokens_memory_and_no_more() -> None:
    """tokens x layers x 2 x key-value heads x head size x 4 bytes, beside a prompt that is far longer too."""
    engine = LocalEngine(dense.build(), frozenset(), pad=0)
    prompts = [(5, 9) * 35, (4,), (12, 13, 2), (6, 6, 1), (21, 4, 8)]
    requests = [Request(prompt, 1, seed=0, hold=True) for prompt in prompts]
    engine.generate(requests, Sampling(max_new_tokens=4))
    memory = [m for request in requests for m in held_memory(engine, request)]
    storages = {m.untyped_storage().data_ptr(): m.untyped_storage().nbytes() for m in memory}
    assert sum(storages.values()) == sum(len(prompt) + 3 for prompt in prompts) * 2 * 2 * 2 * 8 * 4


def held_memory(engine: LocalEngine, request: Request) -> tuple[torch.Tensor, ...]:
    """Keys and values of what is held of a request's only completion."""
    (sequence,) = [held for tokens, held in engine._held.items() if tokens[: len(request.tokens)] == request.tokens]
    return sequence.memory


@pytest.mark.parametrize("held", [-1, 4])
def test_more_than_the_prompt_cannot_be_held(held: int) -> None:
    with pytest.raises(UsageError, match=f"request 0: held is {held} of 3 tokens"):
        LocalEngine(dense.build(), EOS, 0).generate([Request((1, 2, 4), 1, 0, held=held)], Sampling())
