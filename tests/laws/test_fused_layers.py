"""Norms and gated MLPs with a backward of their own: the numbers and the gradients of the model's own layers."""

from __future__ import annotations

import copy
import dataclasses
import re
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

import groupwise
from groupwise.models import precision
from groupwise.models.adapters.lora import Adapters
from groupwise.models.adapters.settings import AdapterSettings
from groupwise.models.forward import fused_layers
from groupwise.models.forward.fused_layers import FusedLayers, GatedDown, GatedProduct, Linear, RMSNorm
from groupwise.models.precision import operand
from groupwise.planning.activations import LiveBytes
from groupwise.training.learner import Learner, LearnerSettings
from tests.laws import moe_models
from tests.laws.test_layout import gradient, in_double, make_batch, require_same
from tests.tiny_models import SIZES, causal

MODELS = {
    "llama": lambda: causal("llama"),
    "llama with biases": lambda: causal("llama", mlp_bias=True),
    "qwen3": lambda: causal("qwen3"),
    "gemma2": lambda: causal("gemma2", hidden_activation="silu"),
    "qwen3-moe": lambda: moe_models.build("qwen3_moe", experts_implementation="eager"),
}
#: What a layer has of each: norms before attention and MLP (and of queries and keys, or behind both), and an MLP.
PARTS = {"llama": 2 * 3 + 1, "llama with biases": 2 * 3 + 1, "qwen3": 2 * 5 + 1, "gemma2": 2 * 5 + 1}
#: The unit roundoff of bfloat16: 8 significant bits.
U = 2.0**-8


def double(shape: tuple[int, ...], seed: int) -> Tensor:
    noise = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=noise, dtype=torch.float64).requires_grad_()


def model_of(name: str) -> Any:
    torch.manual_seed(0)
    model = MODELS[name]()
    with torch.no_grad():  # norms that are all ones would hide a weight that is left out
        for weight in model.parameters():
            if weight.dim() == 1:
                weight += 0.3 * torch.randn_like(weight)
    return model


def parts_of(*models: Any) -> list[nn.Module]:
    """Those that are always replaced: linear layers are so where a device has no instructions for bfloat16."""
    return [part for part, _ in FusedLayers(*models).parts if not isinstance(part, nn.Linear)]


def learner_of(model: Any, fused: FusedLayers, **settings: Any) -> Learner:
    learner = Learner(model, None, LearnerSettings(**settings), 0.8, 1)
    learner.fused = fused
    return learner


def weighed(algo: Any, **batch: Any) -> Any:
    return algo.weigh(algo.credit(make_batch(**batch)))


def test_a_norm_by_hand() -> None:
    """The mean square of (3, 4) is 12.5, so that they become 3 and 4 over its root, times their weights."""
    x, weight = torch.tensor([[3.0, 4.0]], dtype=torch.float64), torch.tensor([1.0, 2.0], dtype=torch.float64)
    expected = torch.tensor([[3.0, 8.0]], dtype=torch.float64) / 12.5**0.5
    torch.testing.assert_close(RMSNorm.apply(x, weight, 0.0), expected, rtol=1e-12, atol=0)
    tiny = RMSNorm.apply(x * 1e-4, weight, 1e-6)
    torch.testing.assert_close(tiny, expected * (12.5e-8 / (12.5e-8 + 1e-6)) ** 0.5, rtol=1e-12, atol=0)


def test_gradients_are_those_of_finite_differences() -> None:
    x, norm = double((2, 3, 5), 0), double((5,), 1)
    gate, up, weight, bias = double((2, 3, 5), 2), double((2, 3, 5), 3), double((4, 5), 4), double((4,), 5)
    assert torch.autograd.gradcheck(lambda x, w: RMSNorm.apply(x, w, 0.1), (x, norm))
    assert torch.autograd.gradcheck(GatedProduct.apply, (gate, up))
    assert torch.autograd.gradcheck(GatedDown.apply, (gate, up, weight, bias))
    assert torch.autograd.gradcheck(lambda g, u, w: GatedDown.apply(g, u, w, None), (gate, up, weight.detach()))


@pytest.mark.parametrize("name", MODELS)
def test_a_models_gradient_is_its_own_in_float64(name: str) -> None:
    """Whole, and with activations computed again; transformers' norms held in float64, which they leave themselves."""
    model = model_of(name)
    fused, parts = FusedLayers(model), parts_of(model)
    assert len(parts) == PARTS.get(name, len(parts))
    assert parts
    for module in model.double().modules():
        if re.search("Norm|Router|Rotary", type(module).__name__):
            module.forward = partial(in_double, module.forward)
    algo = groupwise.algorithm("grpo")
    own = gradient(learner_of(model, FusedLayers()), algo, weighed(algo))
    assert own[1].norm() > 1e-3
    require_same(gradient(learner_of(model, fused), algo, weighed(algo)), own)
    if name != "gemma2":  # whose attention is not a softmax over keys alone: it runs in rows
        require_same(
            gradient(learner_of(model, fused, recompute=True, tokens_per_microbatch=60), algo, weighed(algo)), own
        )


@pytest.mark.parametrize("form", [{}, {"shared_prefixes": False}, {"recompute": True}, {"held_logits": 0}])
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_the_gradient_in_bf16_is_off_by_no_more_than_its_roundings(name: str, form: dict[str, Any]) -> None:
    """Each rounding is off by at most U of a number. On the way from a token to the loss and back stand, in each of the
    two layers, at most ten (inputs and outputs of products, norms, the gated product), and three at the head."""
    model, algo = model_of(name), groupwise.algorithm("grpo", {"kl.beta": 0.0})
    batch = dataclasses.replace(weighed(algo), logp_old=None)  # every ratio is 1, so that none magnifies a rounding
    exact = gradient(learner_of(model, FusedLayers()), algo, batch)[1]
    for fused in (FusedLayers(), FusedLayers(model)):
        found = gradient(learner_of(model, fused, precision="bf16", **form), algo, batch)[1]
        assert 0 < (found - exact).norm() / exact.norm() < 2 * (2 * 10 + 3) * U


def test_adapters_learn_the_same() -> None:
    model = model_of("llama")
    adapters = Adapters(model, AdapterSettings(rank=4), 0)
    with torch.no_grad():
        for matrix in adapters.matrices.values():
            matrix += 0.1 * torch.randn_like(matrix)
    algo = groupwise.algorithm("grpo")
    own, ours = (
        gradient(learner_of(model, fused), algo, weighed(algo)) for fused in (FusedLayers(), FusedLayers(model))
    )
    assert own[1].norm() > 1e-3
    assert (ours[1] - own[1]).norm() / own[1].norm() < 1e-5


def test_less_is_held() -> None:
    model = model_of("llama")
    ids = torch.zeros(8, 40, dtype=torch.long)
    held = {}
    for fused in (FusedLayers(), FusedLayers(model)):
        with fused.running(), LiveBytes() as live:
            out = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        held[bool(fused.parts)] = live.now
        del out
    layer, tokens = model.config, ids.numel()
    # Of a layer: silu and the product, and for each norm its input in another type and over its size.
    saved = layer.num_hidden_layers * tokens * 4 * (2 * layer.intermediate_size + 2 * layer.hidden_size)
    assert held[False] - held[True] >= saved


def test_only_what_gives_the_same_is_replaced() -> None:
    class Scaled(LlamaRMSNorm):
        def forward(self, hidden_states: Tensor) -> Tensor:
            return 1.001 * super().forward(hidden_states)

    class Gated(LlamaRMSNorm):
        def forward(self, hidden_states: Tensor, gate: Tensor | None = None) -> Tensor:
            return super().forward(hidden_states if gate is None else hidden_states * gate)

    class Between(LlamaMLP):
        def forward(self, x: Tensor) -> Tensor:
            return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x).tanh())

    config = LlamaConfig(**SIZES)
    others = [
        Scaled(8),
        Gated(8),
        Between(config),
        LlamaMLP(LlamaConfig(**SIZES, hidden_act="gelu")),
        nn.LayerNorm(8),
        causal("gpt2", num_hidden_layers=1),
    ]
    assert parts_of(*others) == []
    assert len(parts_of(LlamaRMSNorm(8), LlamaMLP(config))) == 2


def test_a_model_is_as_it_was_afterwards() -> None:
    model = model_of("llama")
    norm, stream = model.base_model.norm, torch.get_rng_state()
    fused = FusedLayers(model)
    assert torch.equal(torch.get_rng_state(), stream)
    ids = torch.arange(12)[None]
    own = model(input_ids=ids).logits
    norm.forward = before = partial(type(norm).forward, norm)  # a forward that something else has put there
    with fused.running():
        assert norm.forward is not before
    assert norm.forward is before
    del norm.forward
    assert torch.equal(model(input_ids=ids).logits, own)
    assert not any("forward" in vars(module) for module in copy.deepcopy(model).modules())


@pytest.mark.parametrize("name", ["llama", "llama with biases", "qwen3"])
def test_without_instructions_for_bf16_the_roundings_are_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operands rounded and multiplied in float32: off from torch's own bfloat16 by less than that is from float32."""
    model, algo = model_of(name), groupwise.algorithm("grpo", {"kl.beta": 0.0})
    batch = dataclasses.replace(weighed(algo, alike=False), logp_old=None)
    exact = gradient(learner_of(model, FusedLayers()), algo, batch)
    found = {}
    for has in (True, False):
        for module in (fused_layers, precision):
            monkeypatch.setattr(module, "multiplies_bf16", lambda kind, has=has: has)
        found[has] = gradient(learner_of(model, FusedLayers(model), precision="bf16"), algo, batch)
    off, between = (found[True][1] - exact[1]).norm(), (found[False][1] - found[True][1]).norm()
    assert 0 < between < off / 2


def test_a_product_of_rounded_numbers_is_bf16s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """One column of 1 + 2^-7 and one of 1 + 2^-8, which bfloat16 has not: the second is rounded before the product."""
    monkeypatch.setattr(precision, "multiplies_bf16", lambda kind: False)
    x, weight = torch.tensor([[1 + 2.0**-7, 1 + 2.0**-8]]), torch.tensor([[1.0, 1.0]], requires_grad=True)
    assert operand(x, torch.bfloat16).tolist() == [[1 + 2.0**-7, 1.0]]
    assert operand(x, torch.bfloat16).dtype is torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        y = Linear.apply(x, weight, None)
    assert (y.dtype, y.item()) == (torch.bfloat16, 2.0)  # 2 + 2^-7 lies between 2 and 2 + 2^-6, and 2 is the even one
    y.sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [[1 + 2.0**-7, 1.0]]
    assert weight.grad.dtype is torch.float32
