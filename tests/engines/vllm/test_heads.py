"""A model with wider heads, the added channels 0, is the same model."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from groupwise.core.errors import UsageError
from groupwise.engines.vllm.heads import WIDTHS, Widening, widening_for

COMMON: dict[str, Any] = {
    "vocab_size": 17,
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,
    "rms_norm_eps": 1e-14,
    "max_position_embeddings": 64,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
CONFIGS = {
    "qwen3": lambda head: Qwen3Config(**COMMON, head_dim=head, tie_word_embeddings=False),
    "qwen3, tied, with biases": lambda head: Qwen3Config(**COMMON, head_dim=head, attention_bias=True),
    "qwen2": lambda head: Qwen2Config(**COMMON, head_dim=head, tie_word_embeddings=False),
    "llama": lambda head: LlamaConfig(
        **COMMON, head_dim=head, rope_parameters={"rope_type": "default", "rope_theta": 9.0}
    ),
    "experts": lambda head: Qwen3MoeConfig(**COMMON, **EXPERTS, head_dim=head),
}


def built(config: Any) -> Any:
    """In float64, with no parameter at its first value of 0 or 1."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, experts_implementation="eager").double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("narrow", [4, 16])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_model_with_wider_heads_says_the_same(config: Any, narrow: int) -> None:
    model = built(config(narrow))
    widening = widening_for(model.config)
    assert widening == Widening(narrow, 32, normed="qwen3" in model.config.model_type)
    wide = built(config(32))
    given = {name: widening(name, parameter.detach()) for name, parameter in model.named_parameters()}
    for name, parameter in wide.named_parameters():
        parameter.data.copy_(given.pop(name))
    assert not given
    ids = torch.randint(17, (3, 20), generator=torch.Generator().manual_seed(1))
    expected = model(ids).logits
    assert expected.std() > 0.1
    rounding = 1e-5 if widening.normed else 1e-12  # transformers computes every norm in float32: here they differ
    torch.testing.assert_close(wide(ids).logits, expected, rtol=0, atol=rounding)


def test_heads_that_are_wide_enough_stay() -> None:
    assert all(widening_for(Qwen3Config(**COMMON, head_dim=width)) is None for width in WIDTHS)
    assert widening_for(LlamaConfig(**{**COMMON, "hidden_size": 128, "head_dim": None})) is None


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (Qwen3Config(**COMMON, head_dim=1022), "this qwen3 has 1022"),
        (
            LlamaConfig(
                **COMMON, head_dim=16, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 100.0}
            ),
            "this llama has 16",
        ),
    ],
)
def test_heads_that_cannot_be_widened_are_refused(config: Any, words: str) -> None:
    with pytest.raises(UsageError, match=f"^engine.name = 'vllm': .*{re.escape(words)}; take engine.name = 'local'$"):
        widening_for(config)
