"""LoRA's laws: y = W x + alpha/r B A x, off to the bit, merged to rounding, and only A and B change."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from groupwise.models.adapters.lora import Adapters
from groupwise.models.adapters.settings import AdapterSettings
from groupwise.models.forward.heads import halves
from groupwise.models.load import digest
from groupwise.models.moe.record import record_routes
from groupwise.models.moe.replay import replay_routes
from tests.laws import moe_models

MODELS = ["dense", "qwen3_moe", "gpt_oss"]
RANK, ALPHA = 4, 6.0


@pytest.fixture
def build(policy) -> Callable[..., Any]:
    """A model of that name, the same each time; `dense` is the tiny policy's."""

    def model(name: str, dtype: torch.dtype = torch.float32) -> Any:
        if name == "dense":
            return copy.deepcopy(policy.model).to(dtype)
        exact = {"experts_implementation": "eager"} if dtype == torch.float64 else {}
        return moe_models.build(name, dtype=dtype, **exact)

    return model


def adapt(model: Any, seed: int = 0, size: float = 0.1, **settings: Any) -> Adapters:
    """Adapters away from zero: B is random too, as after many updates."""
    adapters = Adapters(model, AdapterSettings(**{"rank": RANK, "alpha": ALPHA, **settings}), seed)
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, matrix in adapters.matrices.items():
            if name.endswith("lora_B"):
                matrix.copy_(size * torch.randn(matrix.shape, generator=g, dtype=matrix.dtype))
    return adapters


def logits(model: Any, ids: Tensor) -> Tensor:
    """By the two halves, as the learner runs a model."""
    backbone, head = halves(model)
    return head(backbone(input_ids=ids, use_cache=False).last_hidden_state)


def ids(seed: int = 0) -> Tensor:
    return torch.randint(2, 15, (3, 17), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
@pytest.mark.parametrize("name", ["dense", *sorted(moe_models.BUILD)])
def test_merged_weights_in_an_ordinary_model_are_the_adapters_forward(name, build):
    model, plain = build(name, torch.float64), build(name, torch.float64)
    before, names = logits(model, ids()), [key for key, _ in model.named_parameters()]
    adapters = adapt(model)
    merged = dict(adapters.merged())
    assert list(merged) == names, "under the names that they had, as an engine's copy of the model has them"
    plain.load_state_dict(merged, strict=False)
    adapted = logits(model, ids())
    assert (adapted - before).abs().max() > 0.1
    torch.testing.assert_close(logits(plain, ids()), adapted, rtol=1e-9, atol=1e-9)
    assert {key for key, weight in merged.items() if weight is not adapters.base[key] and "proj" in key}


@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
def test_off_is_the_base_to_the_bit_and_on_again_is_on(name, build):
    model = build(name)
    before, weights, modules = logits(model, ids()), digest(model), halves(model)
    adapters = adapt(model)
    assert adapters.base_digest == weights
    assert halves(model) == modules, "the parts of the model are where they were"
    on = logits(model, ids())
    assert not torch.equal(on, before)
    with adapters.off():
        assert torch.equal(logits(model, ids()), before)
    assert torch.equal(logits(model, ids()), on)
    with pytest.raises(KeyError), adapters.off():
        raise KeyError
    assert torch.equal(logits(model, ids()), on), "whatever happened inside"


@pytest.mark.parametrize("name", ["dense", "qwen3_moe", "gpt_oss"])
def test_only_the_matrices_have_a_gradient_and_the_base_stays_to_the_bit(name, build):
    model = build(name)
    before = {key: weight.detach().clone() for key, weight in model.named_parameters()}
    adapters = adapt(model)
    with adapters.off():
        pass
    matrices = adapters.matrices
    assert {id(p) for p in model.parameters() if p.requires_grad} == {id(matrix) for matrix in matrices.values()}
    optimizer = torch.optim.AdamW(matrices.values(), lr=0.1)
    logits(model, ids()).log_softmax(-1)[..., 3].sum().backward()
    assert all(p.grad is None for p in adapters.base.values())
    assert all(matrix.grad is not None and matrix.grad.any() for matrix in matrices.values())
    optimizer.step()
    assert all(torch.equal(adapters.base[key], weight) for key, weight in before.items())


@pytest.mark.parametrize("name", ["dense", "deepseek_v3"])
def test_the_gradient_is_that_of_the_merged_weight_by_the_chain_rule(name, build):
    """dA = alpha/r B^T dW and dB = alpha/r dW A^T, of each expert too."""
    model, plain = build(name, torch.float64), build(name, torch.float64)
    adapters = adapt(model)
    plain.load_state_dict(dict(adapters.merged()), strict=False)
    for each in (model, plain):
        logits(each, ids()).log_softmax(-1)[..., 3].sum().backward()
    matrices, gradients = adapters.matrices, {key: p.grad for key, p in plain.named_parameters()}
    for key in {key.rpartition(".")[0] for key in matrices}:
        a, b, dw = matrices[f"{key}.lora_A"], matrices[f"{key}.lora_B"], gradients[key]
        da, db = a.grad, b.grad
        if dw.dim() == 3:  # rows of A lie expert by expert, columns of B rank by rank
            count = dw.shape[0]
            a, da = (x.view(count, RANK, -1) for x in (a, da))
            b, db = (x.view(x.shape[0], RANK, count).permute(2, 0, 1) for x in (b, db))
        torch.testing.assert_close(da, ALPHA / RANK * b.mT @ dw, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(db, ALPHA / RANK * dw @ a.mT, rtol=1e-9, atol=1e-9)


@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
def test_merged_in_place_it_is_an_ordinary_model_again(name, build):
    model, plain = build(name), build(name)
    adapters = adapt(model)
    plain.load_state_dict(dict(adapters.merged()), strict=False)
    adapters.merge()
    assert [(key, type(m)) for key, m in model.named_modules()] == [(key, type(m)) for key, m in plain.named_modules()]
    assert digest(model) == digest(plain)
    assert torch.equal(logits(model, ids()), logits(plain, ids()))


@torch.no_grad()
@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss"])
def test_routes_are_recorded_and_replayed_through_adapted_experts(name, build):
    """The routers are those of before; the experts that they choose differ, as what reaches them does."""
    model, plain = build(name, torch.float64), build(name, torch.float64)
    with record_routes(model.base_model) as base:
        logits(model, ids())
    adapters = adapt(model, size=0.5)
    with record_routes(model.base_model) as routes:
        logits(model, ids())
    assert not torch.equal(routes.tensor, base.tensor)
    plain.load_state_dict(dict(adapters.merged()), strict=False)
    with replay_routes(model.base_model, base):
        replayed = logits(model, ids())
    with replay_routes(plain.base_model, base):
        torch.testing.assert_close(logits(plain, ids()), replayed, rtol=1e-9, atol=1e-9)


def test_the_start_is_the_base_and_a_function_of_the_seed(build):
    """A is random, B is zero; no stream of the caller's moves."""
    model = build("dense")
    before, state = logits(model, ids()).detach(), torch.get_rng_state()
    adapters = Adapters(model, AdapterSettings(rank=RANK), seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(logits(model, ids()).detach(), before)
    for name, matrix in adapters.matrices.items():
        assert matrix.any() == name.endswith("lora_A")
    same, other = (Adapters(build("dense"), AdapterSettings(rank=RANK), seed).matrices for seed in (1, 2))
    assert all(torch.equal(matrix, same[name]) for name, matrix in adapters.matrices.items())
    assert not any(torch.equal(m, other[name]) for name, m in adapters.matrices.items() if name.endswith("lora_A"))


def test_only_targets_are_adapted_and_their_matrices_are_loaded_by_name(build):
    adapters = adapt(build("dense"), targets=("v_proj",))
    names = {f"model.layers.{i}.self_attn.v_proj.weight.lora_{part}" for i in (0, 1) for part in "AB"}
    assert adapters.matrices.keys() == names
    with pytest.raises(ValueError, match="of other layers than the model has"):
        adapt(build("dense"), targets=("q_proj",)).load(adapters.matrices)
    other = adapt(build("dense"), seed=5, targets=("v_proj",))
    other.load({name: matrix.detach() for name, matrix in adapters.matrices.items()})
    assert all(torch.equal(matrix, adapters.matrices[name]) for name, matrix in other.matrices.items())


@pytest.mark.parametrize("value", [7, float("nan"), float("inf")])
def test_matrices_of_integers_or_not_finite_are_refused_and_nothing_is_changed(build, value):
    adapters = adapt(build("dense"), targets=("v_proj",))
    before = {name: matrix.detach().clone() for name, matrix in adapters.matrices.items()}
    wrong = {**before, next(iter(before)): torch.full_like(next(iter(before.values())), value)}
    if value == 7:
        wrong = {name: matrix.int() for name, matrix in wrong.items()}
    with pytest.raises(ValueError, match="hold integers, NaN or infinity"):
        adapters.load(wrong)
    assert all(torch.equal(matrix, before[name]) for name, matrix in adapters.matrices.items())
