"""A frozen base in 4 bits: bits of rounded weights give them again, and the model is the one with rounded weights."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from groupwise.config.recipe import load
from groupwise.config.validate import require_rankable
from groupwise.core.errors import UsageError
from groupwise.models.adapters.lora import Adapters
from groupwise.models.adapters.packed import PackedLinear, pack, round_base, unpack
from groupwise.models.adapters.settings import AdapterSettings, adapted_weights
from groupwise.models.load import Policy
from groupwise.planning.shard_groups import groups_of, held_bytes
from tests.laws import moe_models
from tests.models.adapters.test_lora import ids, logits
from tests.tiny_models import causal

pytest.importorskip("bitsandbytes")
NF4 = AdapterSettings(rank=4, base="nf4")


def rounded(model: Any) -> Any:
    model = copy.deepcopy(model)
    round_base(model, NF4)
    return model


def adapted(model: Any, packs: bool) -> Adapters:
    """Adapters away from zero."""
    adapters, numbers = Adapters(copy.deepcopy(model), NF4, 0, packs), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for matrix in adapters.matrices.values():
            matrix.copy_(0.1 * torch.randn(matrix.shape, generator=numbers))
    return adapters


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in model.named_parameters()}


@pytest.mark.parametrize("size", [(7, 10), (48, 64), (3, 130)])
def test_bits_of_a_rounded_weight_are_it_to_the_bit_and_near_what_it_was(size: tuple[int, int]):
    torch.manual_seed(0)
    linear = nn.Linear(size[1], size[0])
    once = PackedLinear(linear)
    again = copy.deepcopy(linear)
    again.weight = nn.Parameter(once.unpacked())
    assert torch.equal(PackedLinear(again).unpacked(), once.unpacked())
    off = (once.unpacked() - linear.weight).abs().max() / linear.weight.abs().max()
    assert 0.01 < off < 0.16  # half of the widest gap between two levels


@pytest.mark.parametrize("bf16", [False, True])
def test_a_packed_layer_is_the_layer_with_the_rounded_weight_forward_and_backward(bf16: bool):
    torch.manual_seed(0)
    packed = PackedLinear(nn.Linear(64, 48).requires_grad_(False))
    whole = unpack(nn.Sequential(packed))[0]
    found = []
    for layer in (packed, whole):
        x = torch.randn(5, 64, generator=torch.Generator().manual_seed(1), requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            y = layer(x)
        y.float().square().sum().backward()
        found.append((y, x.grad))
    for one, other in zip(*found, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one.float(), other.float(), rtol=0.02 if bf16 else 1e-5, atol=0.02 if bf16 else 1e-5)


@pytest.mark.parametrize("architecture", ["qwen3", "qwen2", "llama"])
def test_a_packed_policy_with_adapters_is_the_rounded_one_with_them(architecture: str):
    torch.manual_seed(0)
    base = rounded(causal(architecture))
    packed, whole = (adapted(base, packs) for packs in (True, False))
    for adapters in (packed, whole):
        logits(adapters._model, ids()).square().mean().backward()
    assert packed.base_digest == whole.base_digest
    torch.testing.assert_close(*(logits(each._model, ids()) for each in (packed, whole)), rtol=1e-4, atol=1e-5)
    for name, matrix in packed.matrices.items():
        torch.testing.assert_close(matrix.grad, whole.matrices[name].grad, rtol=1e-3, atol=1e-6)
    with packed.off():
        torch.testing.assert_close(logits(packed._model, ids()), logits(base, ids()), rtol=1e-4, atol=1e-5)
    merged, expected = dict(packed.merged()), dict(whole.merged())
    assert merged.keys() == weights(base).keys()
    assert all(torch.equal(merged[name], expected[name]) for name in merged)


def test_a_packed_policy_holds_four_and_a_half_bits_a_weight_and_a_plan_counts_as_many(policy: Policy):
    adapters = adapted(rounded(policy.model), packs=True)
    layers = [layer for layer in adapters._model.modules() if isinstance(layer, PackedLinear)]
    numbers = sum(layer.in_features * layer.out_features for layer in layers)
    held = sum(x.nbytes for layer in layers for x in (layer.weight, layer.scales))
    assert len(layers) == len(adapted_weights(policy.model, NF4))
    assert held * 8 / numbers == pytest.approx(4.5, rel=0.01)
    every = sum(p.nbytes for p in adapters._model.parameters())
    assert held_bytes(groups_of(adapters._model).every, 1) == every


def test_a_packed_policy_is_of_one_process():
    recipe = load("quickstart", {"adapter.rank": 4, "adapter.base": "nf4"})
    require_rankable(recipe)
    words = "^learner.ranks = 2 with adapter.base: weights in 4 bits are not sharded: set it to 'same', or learner"
    with pytest.raises(UsageError, match=words):
        require_rankable(recipe.replace(device="cpu", learner=recipe.learner.replace(ranks=2)))


def test_only_linear_layers_are_packed():
    model = moe_models.build("qwen3_moe")
    with pytest.raises(UsageError, match=r"^adapter.base = 'nf4': .*experts.* is of no linear layer, and only such"):
        pack(model, NF4)
    few = AdapterSettings(rank=4, base="nf4", targets=("q_proj",))
    pack(model, few)
    assert {name.rpartition(".")[2] for name, m in model.named_modules() if isinstance(m, PackedLinear)} == {"q_proj"}
    before = weights(copy.deepcopy(model))
    pack(model, AdapterSettings(base="nf4"))  # there are no adapters, and so no frozen base
    assert weights(model).keys() == before.keys()
