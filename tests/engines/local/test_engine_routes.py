"""The experts that the local engine says were chosen: shapes, slots, what it costs, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from groupwise.core.engine import Request, Sampling
from groupwise.core.errors import UsageError
from groupwise.core.records import Completion
from groupwise.engines.local.engine import LocalEngine
from groupwise.models.moe.record import record_routes
from tests.engines.local import made
from tests.engines.local.made import CHOSEN, EXPERTS, LAYERS, build_moe, each, is_recorded

EOS = frozenset({3})
REQUESTS = [*made.REQUESTS, Request((4,), samples=1, seed=7, max_new_tokens=1)]
Pairs = list[tuple[Request, Completion]]


@pytest.fixture(scope="module")
def moe() -> Any:
    return build_moe()


def sampled(model: Any, requests: list[Request], limit: int = 16, **engine: Any) -> Pairs:
    how = Sampling(max_new_tokens=limit)
    return each(requests, LocalEngine(model, EOS, 0, **engine).generate(requests, how))


def assert_own_routes(model: nn.Module, pairs: Pairs) -> torch.Tensor:
    """Routes are those [tokens - 1,L,K] of one forward over the whole sequence; return those of all."""
    for request, done in pairs:
        with torch.no_grad(), record_routes(model) as routes:
            model(input_ids=torch.tensor([request.tokens + done.tokens[:-1]]))
        assert done.routes is not None
        assert torch.equal(done.routes, routes.tensor[0])
    return torch.cat([done.routes for _, done in pairs if done.routes is not None])


def test_every_token_that_was_run_has_its_experts(moe: Any) -> None:
    pairs = sampled(moe, REQUESTS, routes=True)
    assert len(pairs) == 10
    used = assert_own_routes(moe, pairs)
    for request, done in pairs:
        assert done.routes is not None
        assert done.routes.dtype == torch.uint8
        assert done.routes.shape == (len(request.tokens) + len(done.tokens) - 1, LAYERS, CHOSEN)
        assert not done.routes.is_inference()
        assert done.routes.untyped_storage().nbytes() == done.routes.numel(), "a slice would keep the whole memory"
    assert all(len(used[:, layer].unique()) >= EXPERTS - 2 for layer in range(LAYERS)), "too even a model to tell"


@pytest.mark.parametrize("max_rows", [1, 2, 3, 5, 33])
def test_rows_that_come_and_go_keep_their_own(moe: Any, max_rows: int) -> None:
    limits = [1 + (7 * i) % 30 for i in range(36)]
    requests = [
        Request(tuple(range(1, 2 + (i * 5) % 13)), 1 + i % 3 // 2, i, limit)
        for i, limit in enumerate(limits if max_rows > 2 else limits[:9])
    ]
    assert_own_routes(moe, sampled(moe, requests, max_rows=max_rows, routes=True))


def test_a_call_does_not_remember_the_one_before(moe: Any) -> None:
    engine, how = LocalEngine(moe, EOS, 0, max_rows=4, routes=True), Sampling(max_new_tokens=16)
    first = [c for group in engine.generate(REQUESTS, how) for c in group]
    engine.generate([Request(tuple(range(8, 28)), 9, seed=5, max_new_tokens=60)], how)
    again = [c for group in engine.generate(REQUESTS, how) for c in group]
    for a, b in zip(first, again, strict=True):
        assert (a.tokens, a.logp_engine) == (b.tokens, b.logp_engine)
        assert a.routes is not None
        assert b.routes is not None
        assert torch.equal(a.routes, b.routes)


def test_asking_changes_no_bit_of_what_is_sampled(moe: Any) -> None:
    asked, not_asked = (sampled(moe, REQUESTS, max_rows=5, routes=routes) for routes in (True, False))
    assert [(c.tokens, c.logp_engine) for _, c in asked] == [(c.tokens, c.logp_engine) for _, c in not_asked]
    assert all(c.routes is None for _, c in not_asked)


def test_loaded_weights_choose(moe: Any) -> None:
    engine = LocalEngine(moe, EOS, 0, routes=True)
    assert engine.routes
    engine.generate(REQUESTS, Sampling(max_new_tokens=8))
    other = build_moe(router_aux_loss_coef=0.0)
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            parameter.copy_(parameter.flip(0) if name.endswith("gate.weight") else parameter)
    engine.load_weights(other.named_parameters(), version=1)
    assert_own_routes(other, each(REQUESTS, engine.generate(REQUESTS, Sampling(max_new_tokens=8))))


def test_more_than_256_experts_need_a_wider_type() -> None:
    model = build_moe(experts=300)
    found = assert_own_routes(model, sampled(model, REQUESTS, routes=True))
    assert found.dtype == torch.int16
    assert int(found.max()) > 255


def test_layers_without_experts_have_no_routes() -> None:
    model = build_moe(mlp_only_layers=[1])
    assert assert_own_routes(model, sampled(model, REQUESTS, routes=True)).shape[1] == LAYERS - 1


@pytest.mark.parametrize("experts", ["eager", "batched_mm", "grouped_mm"])
def test_the_step_is_recorded_whatever_the_learner_uses(experts: str) -> None:
    model = build_moe()
    model.set_experts_implementation(experts)
    for routes in (False, True):
        engine = LocalEngine(model, EOS, 0, max_rows=5, routes=routes)
        engine.generate(REQUESTS, Sampling(max_new_tokens=8))
        assert len(engine._step._forward) == 2
        assert all(map(is_recorded, engine._step._forward.values()))
        assert engine._model.config._experts_implementation == "grouped_mm", "a fifth as fast, or not recorded"
    assert model.config._experts_implementation == experts


def test_experts_that_cannot_be_recorded_still_say_their_routes(moe: Any) -> None:
    engine = LocalEngine(moe, EOS, 0, max_rows=5, routes=True)
    engine._model.set_experts_implementation("eager")
    groups = engine.generate(REQUESTS, Sampling(max_new_tokens=12))
    assert not any(map(is_recorded, engine._step._forward.values()))
    assert_own_routes(moe, each(REQUESTS, groups))


def test_a_router_whose_answer_holds_no_choice_is_refused_before_anything_is_sampled() -> None:
    model = build_moe()
    for module in model.modules():
        if type(module).__name__.endswith("TopKRouter"):
            module.forward = lambda hidden: hidden.new_zeros(len(hidden), EXPERTS)  # type: ignore[method-assign]
    with pytest.raises(UsageError, match="does not return the 2 experts of each token"):
        LocalEngine(model, EOS, 0, routes=True)


def test_nothing_stays_behind_on_the_routers(moe: Any) -> None:
    engine = LocalEngine(moe, EOS, 0, routes=True)
    engine.generate(REQUESTS, Sampling(max_new_tokens=4))
    assert not any(module._forward_hooks for model in (moe, engine._model) for module in model.modules())


def test_a_dense_model_has_no_routes_to_ask_for() -> None:
    dense = made.build()
    with pytest.raises(UsageError, match="has no routers") as caught:
        LocalEngine(dense, EOS, 0, routes=True)
    assert "\n" not in str(caught.value)
    assert not LocalEngine(dense, EOS, 0).routes
