"""Rows in a line, each prefix once and no padding: the same numbers and the same gradient as rows by themselves."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import groupwise
from groupwise.core.prefixes import prefix_microbatches, prefix_order
from groupwise.core.records import Batch
from groupwise.models.forward import logprobs
from groupwise.models.forward.layout import packed, padded
from groupwise.models.forward.logprobs import token_logprobs
from groupwise.models.forward.packed_attention import attend_packed, packed_attention, runs_packed
from groupwise.models.moe.settings import ReplayFrom, RoutingSettings, routers_to_record
from groupwise.training.learner import Learner, LearnerSettings
from tests.laws import moe_models
from tests.tiny_models import causal

MODELS = {
    "llama": lambda: causal("llama"),
    "mistral, window 5": lambda: causal("mistral", sliding_window=5),
    "gpt2": lambda: causal("gpt2"),
    "qwen3-moe": lambda: moe_models.build("qwen3_moe", experts_implementation="eager"),
    "deepseek-v3": lambda: moe_models.build("deepseek_v3", experts_implementation="eager"),
}


class InDouble(TorchFunctionMode):
    """What asks for float32 gets float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.float:
            return args[0].double()
        wide = {name: torch.float64 if x is torch.float32 else x for name, x in (kwargs or {}).items()}
        return func(*(torch.float64 if x is torch.float32 else x for x in args), **wide)


def in_double(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with InDouble():
        return forward(*args, **kwargs)


def model_of(name: str) -> Any:
    """In float64 throughout: norms, routers and rotary angles of transformers compute in float32 of themselves."""
    torch.manual_seed(0)
    model = MODELS[name]().double()
    for module in model.modules():
        if re.search("Norm|Router|Rotary", type(module).__name__):
            module.forward = partial(in_double, module.forward)
    return model


def make_batch(seed: int = 0, alike: bool = True) -> Batch:
    """Six groups of four, prompts of 3 to 9 tokens, completions of 1 to 12; two groups have equal scores.

    Where `alike`, all prompts begin with two tokens, and of each group the second completion begins as the first, and
    the fourth is the third or begins it.
    """
    g = torch.Generator().manual_seed(seed)
    group = torch.arange(24) // 4
    prompt = torch.randint(3, 10, (6,), generator=g)[group]
    length = prompt + torch.randint(1, 13, (24,), generator=g)
    columns, width = torch.arange(int(length.max())), int(length.max())
    prompts = torch.randint(3, 32, (6, width), generator=g)[group]
    if alike:
        prompts[:, :2] = prompts[0, :2].clone()
    own = torch.randint(3, 32, (24, width), generator=g)
    tokens = torch.where(columns < prompt[:, None], prompts, own)
    if alike:
        tokens[1::4] = tokens[0::4].where(columns < prompt[1::4, None] + 3, tokens[1::4])
        tokens[3::4] = tokens[2::4]
    mask = (columns >= prompt[:, None]) & (columns < length[:, None])
    mask[5] = False
    old = -2 * torch.rand(24, width, generator=g, dtype=torch.float64)
    return Batch(
        tokens=tokens.where(columns < length[:, None], 0),
        mask=mask,
        length=length,
        group=group,
        score=torch.rand(24, generator=g, dtype=torch.float64).round() * (group % 3 > 0),
        version=torch.zeros(24, dtype=torch.long),
        logp_engine=old.float(),
        logp_old=old,
        logp_ref=old + 0.1,
    )


def make_learner(model: Any, budget: int = 10**6, **changes: Any) -> Learner:
    routing = changes.pop("routing", RoutingSettings())
    settings = LearnerSettings(tokens_per_microbatch=budget, **changes)
    return Learner(model, None, settings, 0.8, 1, routing, routers_to_record(model.base_model, routing))


def gradient(learner: Learner, algo: Any, batch: Batch) -> tuple[float, Tensor, Any]:
    learner.model.zero_grad(set_to_none=True)
    loss, seen = learner.gradients(batch, algo)
    return loss, torch.cat([p.grad.flatten() for p in learner.model.parameters() if p.grad is not None]), seen


def require_same(found: tuple[float, Tensor, Any], plain: tuple[float, Tensor, Any]) -> None:
    assert found[0] == pytest.approx(plain[0], rel=1e-9)
    assert (found[1] - plain[1]).norm() / plain[1].norm() < 1e-9
    torch.testing.assert_close(found[2].logp_live, plain[2].logp_live, rtol=1e-9, atol=1e-9)
    for column in ("entropy", "share"):  # kept in float32
        torch.testing.assert_close(getattr(found[2], column), getattr(plain[2], column), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("algorithm", ["grpo", "dapo"])
def test_the_gradient_in_a_line_is_that_of_padded_rows(name: str, algorithm: str) -> None:
    """With a KL term, and with groups that train nothing; whole, cut into microbatches, and recomputed."""
    model, algo = model_of(name), groupwise.algorithm(algorithm)
    batch = algo.weigh(algo.credit(make_batch()))
    plain = gradient(make_learner(model, shared_prefixes=False), algo, batch)
    assert plain[1].norm() > 1e-3
    for budget in (10**6, 60, 1):
        learner = make_learner(model, budget)
        assert learner.packs
        require_same(gradient(learner, algo, batch), plain)
    require_same(gradient(make_learner(model, 60, recompute=True), algo, batch), plain)


@pytest.mark.parametrize("replay", [ReplayFrom.LEARNER, ReplayFrom.ENGINE])
def test_the_gradient_in_a_line_on_replayed_routes_with_the_routers_losses(replay: ReplayFrom) -> None:
    model, algo = model_of("qwen3-moe"), groupwise.algorithm("dapo")
    routing = RoutingSettings(replay=replay, load_balance=0.3, z_loss=0.2)
    bare = dataclasses.replace(make_batch(), logp_old=None)
    other = make_learner(model, routing=RoutingSettings(replay=ReplayFrom.LEARNER)).annotate(bare, old=True, ref=False)
    batch = dataclasses.replace(bare, routes_engine=other.routes)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1), dtype=weight.dtype)
    found = {}
    for shared in (False, True):
        learner = make_learner(model, 60, shared_prefixes=shared, routing=routing)
        annotated = learner.annotate(batch, old=True, ref=False)
        found[shared] = gradient(learner, algo, algo.weigh(algo.credit(annotated))), annotated
    for column in ("routes", "routes_own"):
        ours, plain = (getattr(found[shared][1], column) or () for shared in (True, False))
        assert len(ours) == len(plain)
        assert all(torch.equal(a, b) for a, b in zip(ours, plain, strict=True))
    require_same(found[True][0], found[False][0])


def test_rows_whose_prompts_took_other_experts_do_not_share_them() -> None:
    """Replayed from an engine that ran each completion by itself: every row computes on its own routes."""
    model = model_of("qwen3-moe")
    learner = make_learner(model, routing=RoutingSettings(replay=ReplayFrom.ENGINE))
    batch = dataclasses.replace(make_batch(), logp_old=None)
    g = torch.Generator().manual_seed(2)
    routes = tuple(
        torch.rand(n - 1, 3, 8, generator=g).argsort(-1)[..., :2].to(torch.uint8) for n in batch.length.tolist()
    )
    done = learner.annotate(dataclasses.replace(batch, routes_engine=routes), old=True, ref=False)
    plain = make_learner(model, shared_prefixes=False, routing=learner.routing)
    expected = plain.annotate(dataclasses.replace(batch, routes_engine=routes), old=True, ref=False)
    torch.testing.assert_close(done.logp_old, expected.logp_old, rtol=1e-9, atol=1e-9)


def prefixes(tokens: Tensor, length: Tensor) -> set[tuple[int, ...]]:
    rows = zip(tokens.tolist(), length.tolist(), strict=True)
    return {tuple(row[:stop]) for row, n in rows for stop in range(1, n)}


def test_nothing_is_padded_and_a_prefix_is_run_once() -> None:
    batch = make_batch()
    line = packed(batch.tokens, batch.length)
    assert line.ids.shape == (1, len(prefixes(batch.tokens, batch.length)))
    assert line.tokens < int((batch.length - 1).sum()) - 80
    rows = padded(batch.tokens, batch.length)
    assert torch.equal(line.run, rows.run)
    assert torch.equal(line.ids.flatten()[line.place[line.run]], rows.ids.flatten()[rows.place[rows.run]])
    assert torch.equal(line.positions.flatten()[line.place[line.run]], rows.positions.flatten()[rows.place[rows.run]])
    assert line.tokens == line.ids.numel() == len(line.place[line.run].unique())


def test_what_a_row_shares_with_any_row_before_it_it_shares_with_the_one_just_before() -> None:
    batch = make_batch()
    order, shared = prefix_order(batch.tokens, batch.length)
    rows = [batch.tokens[i, : batch.length[i]].tolist() for i in order]
    for i, common in enumerate(shared.tolist()):
        starts = {tuple(row[:n]) for row in rows[:i] for n in range(len(row) + 1)}
        assert common == max((n for n in range(len(rows[i]) + 1) if tuple(rows[i][:n]) in starts), default=0)


def test_microbatches_hold_every_row_once_within_the_budget_and_the_first_is_the_largest() -> None:
    batch = make_batch()
    for budget in (1, 25, 60, 10**6):
        parts = prefix_microbatches(batch.tokens, batch.length, budget)
        assert sorted(torch.cat(parts).tolist()) == list(range(24))
        sizes = [len(prefixes(batch.tokens[part], batch.length[part])) for part in parts]
        assert sizes == sorted(sizes, reverse=True)
        assert all(size <= budget or len(part) == 1 for size, part in zip(sizes, parts, strict=True))


def test_a_prediction_that_rows_have_in_common_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, counts = make_batch(), list[int]()

    def counting(head: Any, states: Tensor, targets: Tensor, *rest: Any, **named: Any) -> Any:
        counts.append(len(targets))
        return token_logprobs(head, states, targets, *rest, **named)

    monkeypatch.setattr(logprobs, "token_logprobs", counting)
    learner = make_learner(model_of("llama"))
    learner.logprobs(learner.model, batch)
    rows = zip(batch.tokens.tolist(), batch.mask.tolist(), strict=True)
    assert counts == [len({tuple(row[: t + 1]) for row, inside in rows for t in range(len(row)) if inside[t]})]


def test_a_row_without_a_gradient_is_not_run_backward() -> None:
    """Tokens that gradients flow through: those of the groups with a signal, each prefix once; nothing else."""
    model, algo = model_of("llama"), groupwise.algorithm("dapo")
    batch = algo.weigh(algo.credit(make_batch()))
    trained = algo.trained_rows(batch)
    assert 0 < int(trained.sum()) < 24
    through: list[int] = []
    layer: Any = model.base_model.layers[0]
    handle = layer.register_full_backward_hook(lambda module, given, out: through.append(out[0].shape[1]))
    gradient(make_learner(model), algo, batch)
    handle.remove()
    rows = trained.nonzero()[:, 0]
    one = packed(batch.tokens[rows], batch.length[rows])
    assert sum(through) == one.tokens


def test_an_update_of_rows_without_any_gradient_has_a_gradient_of_zero() -> None:
    """Momentum moves the weights then, as it does where the zeros are computed; one row is run, and no other."""
    model, algo = model_of("llama"), groupwise.algorithm("dapo")
    through: list[int] = []
    layer: Any = model.base_model.layers[0]
    layer.register_forward_hook(lambda module, given, out: through.append(out.shape[:-1].numel()))
    for mask in (make_batch().mask, torch.zeros_like(make_batch().mask)):
        batch = dataclasses.replace(make_batch(), score=torch.ones(24, dtype=torch.float64), mask=mask)
        learner = make_learner(model)
        through.clear()
        loss, grad, seen = gradient(learner, algo, algo.weigh(algo.credit(batch)))
        assert len(grad) == sum(p.numel() for p in model.parameters())
        assert not grad.any()
        assert (loss, seen) == (0.0, None)
        assert through == [int(batch.length.min()) - 1], "of its last token nothing is predicted"


def test_dropout_reaches_attention_in_a_line() -> None:
    """A model that drops out where it must not is seen by the checks in a line as in rows."""
    torch.manual_seed(0)
    model = causal("gpt2", num_hidden_layers=1, resid_pdrop=0.0).train()
    model.transformer.drop.p = 0.0
    batch = make_batch()
    line = packed(batch.tokens, batch.length)
    with torch.no_grad(), attend_packed(model.base_model):
        first, second = (
            model.base_model(input_ids=line.ids, position_ids=line.positions, use_cache=False, line=line.line)[0]
            for _ in range(2)
        )
    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    "build",
    [
        lambda: causal("gemma2", attn_logit_softcapping=2.0, query_pre_attn_scalar=8),
        lambda: moe_models.build("gpt_oss"),
    ],
    ids=["softcapping", "sinks"],
)
def test_a_model_whose_attention_is_another_runs_in_rows(build: Any) -> None:
    torch.manual_seed(0)
    model = build()
    assert not runs_packed(model.base_model)
    before = model.config._attn_implementation
    with pytest.raises(NotImplementedError), attend_packed(model.base_model):
        packed_attention(model, torch.zeros(1, 1, 1, 8), torch.zeros(1, 1, 1, 8), torch.zeros(1, 1, 1, 8), None)
    assert model.config._attn_implementation == before
