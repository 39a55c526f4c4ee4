"""Which weights get adapters, and which targets are refused, in one line."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from benchmarks.architectures.build import small_model
from transformers import GPT2Config, GPT2LMHeadModel, JambaConfig, JambaForCausalLM, MambaConfig, MambaForCausalLM

from groupwise.core.errors import UsageError
from groupwise.models.adapters.lora import Adapters
from groupwise.models.adapters.settings import (
    AdapterSettings,
    adapted_weights,
    adapter_size,
    in_short,
    passed_by,
    routing_modules,
)
from tests.laws import moe_models

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


def ends(names, layer: int = 0) -> set[str]:
    """Names of one layer's weights, from the part of the layer on."""
    start = f"model.layers.{layer}."
    return {name.removeprefix(start) for name in names if name.startswith(start)}


def test_without_targets_every_linear_layer_but_the_head(policy):
    weights = adapted_weights(policy.model, AdapterSettings(rank=4))
    mlp = {f"mlp.{name}.weight" for name in ("gate_proj", "up_proj", "down_proj")}
    assert ends(weights) == ends(weights, 1) == {f"self_attn.{name}.weight" for name in ATTENTION} | mlp
    assert len(weights) == 14
    assert adapted_weights(policy.model, AdapterSettings()) == {}


@pytest.mark.parametrize("name", sorted(moe_models.BUILD))
def test_experts_are_adapted_and_routers_are_not(name: str):
    model = moe_models.build(name)
    weights = adapted_weights(model, AdapterSettings(rank=4))
    experts = {each for each, weight in weights.items() if weight.dim() == 3}
    assert ends(experts, 1) == {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"}
    assert len(routing_modules(model)) == moe_models.LAYERS
    assert not any(each.startswith(router + ".") for each in weights for router in routing_modules(model))
    assert not any(each.startswith("lm_head") for each in weights)


def test_a_router_that_is_a_linear_layer_beside_the_experts_is_known_without_its_name():
    model = moe_models.build("qwen3_moe")
    for layer in model.model.layers:
        layer.mlp.gate = torch.nn.Linear(32, moe_models.EXPERTS)
    assert routing_modules(model) == tuple(f"model.layers.{i}.mlp.gate" for i in range(moe_models.LAYERS))
    assert not any("mlp.gate." in name for name in adapted_weights(model, AdapterSettings(rank=4)))


class OwnRouter(torch.nn.Linear):
    """A linear layer that is called a router, as some models' are."""


def test_a_layer_that_is_called_a_router_is_one_wherever_it_is(policy):
    policy.model.model.layers[1].mlp.choice = OwnRouter(64, 5)
    assert routing_modules(policy.model) == ("model.layers.1.mlp.choice",)
    assert len(adapted_weights(policy.model, AdapterSettings(rank=4))) == 14


def test_a_target_is_the_end_of_a_layers_name():
    model = moe_models.build("deepseek_v3")
    chosen = adapted_weights(model, AdapterSettings(rank=4, targets=("experts.down_proj", "layers.0.mlp.down_proj")))
    stacks = [f"model.layers.{i}.mlp.experts.down_proj" for i in (1, 2, 3)]
    assert sorted(chosen) == ["model.layers.0.mlp.down_proj.weight", *stacks]


def test_the_layers_of_an_older_kind_are_linear_layers_too():
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=16, n_positions=8))
    weights = adapted_weights(model, AdapterSettings(rank=2))
    assert len(weights) == 4, "the head is tied to the embedding"


def state_space(name: str):
    """A model with a layer of Mamba 1, which multiplies the weight of `dt_proj` itself."""
    sizes: dict[str, Any] = {"vocab_size": 16, "hidden_size": 8, "num_hidden_layers": 2}
    if name == "mamba":
        return MambaForCausalLM(MambaConfig(**sizes, state_size=4))
    experts: dict[str, Any] = {
        "num_experts": 2,
        "expert_layer_offset": 0,
        "expert_layer_period": 1,
        "intermediate_size": 8,
    }
    attention: dict[str, Any] = {
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
    }
    return JambaForCausalLM(JambaConfig(**sizes, **experts, **attention, mamba_d_state=4, mamba_dt_rank=2))


@pytest.mark.parametrize("name", ["mamba", "jamba"])
def test_a_layer_that_the_model_passes_by_gets_no_adapter(name: str):
    torch.manual_seed(0)
    model, ids = state_space(name).eval(), torch.tensor([[2, 3, 5, 7]])
    passed = [each for each, module in model.named_modules() if each.endswith("dt_proj")]
    assert passed == list(passed_by(model))
    with pytest.raises(
        UsageError, match=re.escape(f"'dt_proj' is a layer ({passed[0]}) that {type(model).__name__} passes by")
    ):
        adapted_weights(model, AdapterSettings(rank=4, targets=("dt_proj",)))
    adapters = Adapters(model, AdapterSettings(rank=2), seed=0)
    for matrix in adapters.matrices.values():
        torch.nn.init.normal_(matrix, std=0.3)
    own = model(input_ids=ids).logits
    own.square().sum().backward()
    assert [each for each, matrix in adapters.matrices.items() if matrix.grad is None or not matrix.grad.any()] == []
    adapters.merge()
    torch.testing.assert_close(model(input_ids=ids).logits, own, rtol=1e-5, atol=1e-5)


def test_a_layer_that_multiplies_by_parts_of_its_weight_gets_no_adapter():
    model = small_model("deepseek_v4")
    parts = [name for name, module in model.named_modules() if name.endswith("o_a_proj")]
    assert parts == list(passed_by(model))
    with pytest.raises(
        UsageError, match=r"'o_a_proj' is a layer \(.*\) that DeepseekV4ForCausalLM .* or runs in parts"
    ):
        adapted_weights(model, AdapterSettings(rank=4, targets=("o_a_proj",)))
    Adapters(model, AdapterSettings(rank=2), seed=0)
    assert model(input_ids=torch.arange(4, 24)[None]).logits.isfinite().all()


def test_the_size_is_that_of_the_matrices(policy):
    weights = adapted_weights(policy.model, AdapterSettings(rank=3, targets=("q_proj", "down_proj")))
    assert adapter_size(weights, 3) == 2 * 3 * (64 + 64) + 2 * 3 * (256 + 64)
    moe = moe_models.build("qwen3_moe")
    settings = AdapterSettings(rank=3, targets=("experts.down_proj", "q_proj"))
    assert adapter_size(adapted_weights(moe, settings), 3) == 3 * 8 * 3 * (32 + 16) + 3 * 3 * (32 + 32)
    total = sum(p.numel() for p in moe.parameters())
    assert in_short(moe, settings) == (
        f"3 linear layers, 3 stacks of experts; {3 * 8 * 3 * 48 + 3 * 3 * 64:,} numbers train, the policy's "
        f"{total:,} do not"
    )


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("qproj", "'qproj' matches no linear layer of Qwen3MoeForCausalLM; did you mean 'q_proj'? known: down_proj, "),
        ("proj", "'proj' matches no linear layer"),
        ("q_proj.weight", "'q_proj.weight' matches no linear layer"),
        ("", "'' matches no linear layer"),
        ("embed_tokens", "'embed_tokens' matches no linear layer"),
        ("experts", "'experts' matches no linear layer"),
        ("gate", "'gate' is a router (model.layers.0.mlp.gate), and a router is not adapted: "),
        ("layers.2.mlp.gate", "'layers.2.mlp.gate' is a router (model.layers.2.mlp.gate)"),
        ("lm_head", "'lm_head' is the output head, which is not adapted: "),
    ],
)
def test_a_target_that_cannot_be_adapted_is_refused_in_one_line(target: str, words: str):
    model = moe_models.build("qwen3_moe")
    with pytest.raises(UsageError, match=re.escape(f"adapter.targets: {words}")) as error:
        adapted_weights(model, AdapterSettings(rank=4, targets=("q_proj", target)))
    assert "\n" not in str(error.value)
