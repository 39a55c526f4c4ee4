"""The engine against the model's plain forward, and its promises: who draws what, when it ends, under which weights."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from groupwise.core.engine import Request, Sampling
from groupwise.core.errors import RunError, UsageError
from groupwise.core.records import Completion
from groupwise.engines.local.engine import LocalEngine
from tests.engines.local.made import (
    EOS,
    REQUESTS,
    SIZES,
    VOCABULARY,
    assert_alike,
    assert_plain,
    build,
    is_recorded,
    plain_logp,
)


@pytest.fixture(scope="module")
def qwen() -> Any:
    return build()


def test_an_engine_without_rows_is_refused(qwen: Any) -> None:
    with pytest.raises(UsageError, match="max_rows is 0; it must be 1 or more"):
        LocalEngine(qwen, frozenset({1}), 0, max_rows=0)


def tokens_of(groups: list[tuple[Completion, ...]]) -> list[list[tuple[int, ...]]]:
    return [[c.tokens for c in group] for group in groups]


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
@pytest.mark.parametrize(("top_p", "top_k"), [(1.0, 0), (0.9, 0), (1.0, 20), (0.9, 20)])
def test_logp_is_the_plain_forwards(qwen: Any, temperature: float, top_p: float, top_k: int) -> None:
    how = Sampling(temperature=temperature, top_p=top_p, top_k=top_k, max_new_tokens=16)
    groups = assert_plain(qwen, LocalEngine(qwen, EOS, pad=0), REQUESTS, how)
    assert all((done.support is not None) == how.truncates for group in groups for done in group)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_other_models_run_through_the_same_interface(name: str, attention: str) -> None:
    model = build(name)
    model.set_attn_implementation(attention)
    engine = LocalEngine(model, EOS, pad=0, max_rows=5)
    for requests in (REQUESTS, REQUESTS[:1]):
        assert_plain(model, engine, requests, Sampling(max_new_tokens=12))
    assert all(map(is_recorded, engine._step._forward.values()))


def test_a_model_whose_values_steer_its_forward_is_not_replayed_from_a_recording() -> None:
    torch.manual_seed(4)
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    model = LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=rope)).eval()  # type: ignore[arg-type]
    engine = LocalEngine(model, EOS, pad=0)
    assert_plain(model, engine, [Request((5, 6), 1, seed=3)], Sampling(max_new_tokens=8))
    assert not any(map(is_recorded, engine._step._forward.values()))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("length", [4, 129])
def test_prompts_of_one_length_and_of_several_go_through_the_model(length: int, attention: str) -> None:
    torch.manual_seed(4)
    model = Qwen3ForCausalLM(Qwen3Config(**{**SIZES, "max_position_embeddings": 200}, head_dim=8)).eval()
    model.set_attn_implementation(attention)
    texts = [tuple((7 * i + j) % VOCABULARY for j in range(length - i)) for i in (0, 0, 3)]
    requests = [Request(text, 2, seed) for seed, text in enumerate(texts)]
    for asked in (requests[:1], requests):
        assert_plain(model, LocalEngine(model, EOS, pad=0), asked, Sampling(max_new_tokens=6))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_prompts_have_the_models_own_attention(dtype: torch.dtype) -> None:
    model: Any = build().to(dtype)
    engine, prompt = LocalEngine(model, EOS, pad=0), tuple(range(4, 24))
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([prompt]), logits_to_keep=1).logits[:, -1]
        assert torch.equal(engine._prefill([prompt]).logits, expected)


def test_kept_holds_the_sampled_token_and_one_set_per_token(qwen: Any) -> None:
    groups = LocalEngine(qwen, EOS, pad=0, max_rows=4).generate(
        REQUESTS, Sampling(top_p=0.8, top_k=6, max_new_tokens=16)
    )
    for done in (c for group in groups for c in group):
        assert done.support is not None
        assert done.support.ids.dtype == torch.int32
        assert done.support.start.dtype == torch.int64
        assert not done.support.ids.is_inference()
        start = done.support.start.tolist()
        assert start[0] == 0
        assert len(start) == len(done.tokens) + 1
        for t, token in enumerate(done.tokens):
            ids = done.support.ids[start[t] : start[t + 1]].tolist()
            assert token in ids
            assert 1 <= len(ids) <= 6


def test_greedy_takes_the_most_likely_token_with_logp_0(qwen: Any) -> None:
    [group] = LocalEngine(qwen, frozenset(), pad=0).generate(REQUESTS[:1], Sampling(temperature=0, max_new_tokens=6))
    assert len({c.tokens for c in group}) == 1
    prompt, done = REQUESTS[0].tokens, group[0]
    with torch.no_grad():
        logits = qwen(input_ids=torch.tensor([prompt + done.tokens])).logits[0, len(prompt) - 1 : -1]
    assert done.tokens == tuple(logits.argmax(-1).tolist())
    assert done.logp_engine == (0.0,) * 6


NUCLEUS = Sampling(top_p=0.95, max_new_tokens=20)
COME_AND_GO = [Request(tuple(range(1, 2 + (i * 5) % 13)), 1, i, 1 + (7 * i) % 40) for i in range(50)]
CROWD = [Request(tuple(range(1, 2 + i % 9)), 2, 50 + i) for i in range(9)] + REQUESTS
# One finished row beside 32 live ones is not worth moving rows for: it stays a while, and is harmless.
PAST_THE_END = [Request((5,) * 90, 1, 0, 6), *(Request((4 + i % 3,), 1, i, 30) for i in range(32))]
PAST_THE_LIMIT = [Request((5,), 1, 0, 40), *(Request((4 + i % 3,), 1, i, 1 + 39 * (i >= 32)) for i in range(64))]


@pytest.mark.parametrize(
    ("name", "requests", "max_rows", "how", "ends"),
    [
        *(pytest.param("qwen3", REQUESTS, rows, NUCLEUS, EOS, id=f"{rows} rows") for rows in (1, 2, 3, 7, 64)),
        *(pytest.param(name, COME_AND_GO, 33, NUCLEUS, EOS, id=f"come and go, {name}") for name in ("qwen3", "gpt2")),
        pytest.param("qwen3", CROWD, 20, Sampling(max_new_tokens=20), EOS, id="a crowd"),
        pytest.param("gpt2", PAST_THE_END, 33, Sampling(), frozenset[int](), id="past the last position"),
        pytest.param("gpt2", PAST_THE_LIMIT, 33, Sampling(), frozenset[int](), id="past the longest limit"),
    ],
)
def test_a_completion_does_not_depend_on_what_is_sampled_beside_it(
    name: str, requests: list[Request], max_rows: int, how: Sampling, ends: frozenset[int]
) -> None:
    model = build(name)
    engine, alone = LocalEngine(model, ends, pad=0, max_rows=max_rows), LocalEngine(model, ends, pad=0)
    for request, group in zip(requests, engine.generate(requests, how), strict=True):
        for one, other in zip(group, alone.generate([request], how)[0], strict=True):
            assert_alike(one, other)


def test_what_a_finished_row_draws_before_it_leaves_is_not_its_own(qwen: Any) -> None:
    requests = [Request(tuple(range(1, 2 + i % 9)), 4, seed=i) for i in range(100)]
    groups = LocalEngine(qwen, EOS, pad=0).generate(requests, Sampling(max_new_tokens=40))
    assert all(not EOS & set(done.tokens[:-1]) for group in groups for done in group)


def test_finished_rows_cost_next_to_nothing(qwen: Any) -> None:
    engine = LocalEngine(qwen, frozenset(), pad=0)
    stepped, step = 0, engine._step

    def counted(tokens: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        nonlocal stepped
        stepped += len(tokens)
        return step(tokens, *rest)

    engine._step = counted  # type: ignore[assignment]
    limits = [1 + i // 2 for i in range(80)]
    engine.generate([Request((5,), 1, i, limit) for i, limit in enumerate(limits)], Sampling())
    assert stepped < 1.1 * sum(limits)


def test_completions_of_a_group_differ_and_the_seed_decides(qwen: Any) -> None:
    engine = LocalEngine(qwen, frozenset(), pad=0)

    def sampled(seed: int, samples: int = 4) -> list[tuple[int, ...]]:
        [group] = engine.generate([Request((5, 6), samples, seed)], Sampling(max_new_tokens=12))
        return [c.tokens for c in group]

    assert sampled(1) == sampled(1)
    assert sampled(1, samples=7)[:4] == sampled(1)
    assert len({*sampled(1), *sampled(2)}) == 8


@pytest.mark.parametrize("max_rows", [3, 512])
def test_limits_are_exact(qwen: Any, max_rows: int) -> None:
    limits = [1, 40, 2, 17, 90, 3, 1]
    requests = [Request((5,) * (1 + i % 3), 2, i, limit) for i, limit in enumerate(limits)]
    groups = LocalEngine(qwen, frozenset(), pad=0, max_rows=max_rows).generate(requests, Sampling(max_new_tokens=1))
    assert [[len(c.tokens) for c in g] for g in groups] == [[limit, limit] for limit in limits]
    assert {c.finish for g in groups for c in g} == {"length"}


def test_each_end_id_ends_a_completion_and_is_part_of_it(qwen: Any) -> None:
    engine = LocalEngine(qwen, EOS, pad=0, max_rows=32)
    groups = engine.generate(
        [Request((5, 6), 40, seed) for seed in range(5)], Sampling(temperature=1.3, max_new_tokens=15)
    )
    lasts = set()
    for done in (c for g in groups for c in g):
        assert not EOS & set(done.tokens[:-1])
        assert (done.finish == "stop") == (done.tokens[-1] in EOS)
        assert done.finish == "stop" or len(done.tokens) == 15
        lasts.add(done.tokens[-1] if done.finish == "stop" else None)
    assert lasts == {3, 7, None}


def test_loading_weights_changes_what_is_sampled_and_its_version(qwen: Any) -> None:
    engine = LocalEngine(qwen, frozenset(), pad=0)
    how = Sampling(max_new_tokens=10)
    before = engine.generate(REQUESTS, how)
    assert {c.version for g in before for c in g} == {0}
    other = copy.deepcopy(qwen)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.5)
    engine.load_weights(other.named_parameters(), version=3)
    after = engine.generate(REQUESTS, how)
    assert engine.version == 3
    assert {c.version for g in after for c in g} == {3}
    assert tokens_of(after) != tokens_of(before)
    expected = plain_logp(other, REQUESTS[0].tokens, after[0][0], 1.0)
    assert after[0][0].logp_engine == pytest.approx(expected.tolist(), abs=1e-5)
    engine.load_weights(qwen.named_parameters(), version=4)
    assert tokens_of(engine.generate(REQUESTS, how)) == tokens_of(before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.norm.weight": None}, r"missing: model\.norm\.weight$"),
        ({"model.rorm.weight": torch.zeros(32)}, r"unexpected: model\.rorm\.weight$"),
        ({"model.norm.weight": torch.zeros(2, 3)}, r"of another shape: model\.norm\.weight \(2, 3\) for \(32,\)$"),
    ],
    ids=["missing", "unexpected", "shape"],
)
def test_weights_that_do_not_match_are_refused_whole(qwen: Any, change: dict[str, Any], message: str) -> None:
    engine = LocalEngine(qwen, frozenset(), pad=0)
    before = engine.generate(REQUESTS, Sampling(max_new_tokens=10))
    weights = {name: torch.zeros_like(p) for name, p in qwen.named_parameters()} | change
    with pytest.raises(RunError, match=message):
        engine.load_weights([(name, w) for name, w in weights.items() if w is not None], version=9)
    assert engine.version == 0
    assert tokens_of(engine.generate(REQUESTS, Sampling(max_new_tokens=10))) == tokens_of(before)


def test_the_learners_model_shares_no_memory_and_is_left_as_it_was() -> None:
    model = build().train()
    engine = LocalEngine(model, frozenset(), pad=0)
    before = engine.generate(REQUESTS, Sampling(max_new_tokens=8))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert tokens_of(engine.generate(REQUESTS, Sampling(max_new_tokens=8))) == tokens_of(before)
    assert model.training
    assert model.config._attn_implementation == "sdpa"
    assert all(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("how", [Sampling(max_new_tokens=8), Sampling(min_p=0.1, logit_bias={4: 1.0})], ids=repr)
def test_bad_logits_stop_the_run_in_one_line(qwen: Any, how: Sampling) -> None:
    engine = LocalEngine(qwen, frozenset(), pad=0)
    weights = {name: p.detach().clone() for name, p in qwen.named_parameters()}
    weights["model.norm.weight"][0] = math.nan
    engine.load_weights(weights.items(), version=5)
    with pytest.raises(RunError, match=r"NaN or infinite.*version 5") as caught:
        engine.generate(REQUESTS, how)
    assert "\n" not in str(caught.value)
    engine.load_weights(qwen.named_parameters(), version=6)
    engine.generate(REQUESTS, how)


def test_bad_logits_of_a_single_row_are_seen_among_sound_ones() -> None:
    engine = LocalEngine(build("llama"), frozenset(), pad=0)
    weights = {name: p.detach().clone() for name, p in engine._model.named_parameters()}
    weights["model.embed_tokens.weight"][4] = math.nan
    engine.load_weights(weights.items(), version=1)
    engine.generate([Request((5,), 3, 0, 1)], Sampling())
    with pytest.raises(RunError, match="NaN or infinite"):
        engine.generate([Request((5,), 3, 0, 1), Request((4,), 1, 0, 1), Request((6,), 3, 0, 1)], Sampling())


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request((), 1, 0), "prompt is empty"),
        (
            Request((5,) * 90, 1, 0),
            "prompt of 90 tokens and up to 8 new ones do not fit the model's 96 positions.*at most 6",
        ),
        (Request((5, 30), 1, 0), "ids outside of 0 to 29"),
        (Request((5,), 0, 0), "samples is 0"),
        (Request((5,), 1, 0, max_new_tokens=0), "max_new_tokens 0"),
    ],
    ids=["empty", "long", "id", "samples", "limit"],
)
def test_requests_that_cannot_be_served_are_refused(qwen: Any, request_: Request, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        LocalEngine(qwen, EOS, pad=0).generate([REQUESTS[0], request_], Sampling(max_new_tokens=8))


def test_the_last_position_can_be_used() -> None:
    engine = LocalEngine(build("gpt2"), frozenset(), pad=0)
    requests = [Request((5,) * 50, 1, 0, 46), Request((5,) * 95, 3, 1, 1), Request((5,) * 90, 3, 1, 6)]
    groups = engine.generate(requests, Sampling())
    assert [len(g[0].tokens) for g in groups] == [46, 1, 6]


def test_no_requests_no_completions(qwen: Any) -> None:
    assert LocalEngine(qwen, EOS, pad=0).generate([], Sampling()) == []


def test_memory_kept_between_calls_holds_nothing_of_the_last_one(qwen: Any) -> None:
    engine, how = LocalEngine(qwen, EOS, pad=0), Sampling(max_new_tokens=20)
    first = engine.generate(REQUESTS, how)
    engine.generate([Request(tuple(range(8, 28)), 9, seed=5, max_new_tokens=60)], how)
    assert engine.generate(REQUESTS, how) == first


def test_a_prompt_goes_through_the_model_once(qwen: Any) -> None:
    engine = LocalEngine(qwen, frozenset(), pad=0, max_rows=3)
    seen: list[tuple[int, ...]] = []
    prefill = engine._prefill

    def counted(prompts: Any, held: Any) -> Any:
        seen.extend(prompts)
        return prefill(prompts, held)

    engine._prefill = counted  # type: ignore[method-assign]
    engine.generate([Request((5, 6), 8, 0), Request((7,), 2, 1), Request((8, 9), 3, 1)], Sampling(max_new_tokens=4))
    assert seen == [(5, 6), (7,), (8, 9)]


@pytest.mark.parametrize("max_rows", [4, 512])
def test_finished_completions_are_told_once_each_as_they_end_up(qwen, max_rows):
    """Whatever is told early is what generate returns, also where rows are dropped and places taken."""
    heard = []
    how = Sampling(top_p=0.9, max_new_tokens=16)
    groups = LocalEngine(qwen, EOS, pad=0, max_rows=max_rows).generate(REQUESTS, how, heard.append)
    told = {(f.request, f.sample): (f.tokens, f.finish) for f in heard}
    assert len(told) == len(heard) == sum(r.samples for r in REQUESTS)
    assert told == {(i, j): (c.tokens, c.finish) for i, g in enumerate(groups) for j, c in enumerate(g)}


def test_short_completions_are_told_while_long_ones_go_on(qwen):
    steps = []
    engine = LocalEngine(qwen, frozenset(), pad=0)
    inner = engine._decode
    engine._decode = lambda tokens, scheduler: steps.append(scheduler.count) or inner(tokens, scheduler)
    when = {}
    limits = [2] * 8 + [24]
    engine.generate(
        [Request((5,), 1, i, limit) for i, limit in enumerate(limits)],
        Sampling(),
        lambda f: when.setdefault(f.request, len(steps)),
    )
    assert max(when[i] for i in range(8)) < 4 < when[8]
