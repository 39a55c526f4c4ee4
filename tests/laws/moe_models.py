"""Tiny mixture-of-experts models of five architectures, with random weights large enough that routing is uneven."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    OlmoeConfig,
    OlmoeForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

VOCABULARY, EXPERTS, CHOSEN, LAYERS = 32, 8, 2, 3

_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "initializer_range": 0.5,
    "num_experts_per_tok": CHOSEN,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def _qwen3_moe(**changes: Any) -> Any:
    own = {"num_experts": EXPERTS, "moe_intermediate_size": 16, "norm_topk_prob": True}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**{**_COMMON, **own, **changes}))


def _mixtral(**changes: Any) -> Any:
    return MixtralForCausalLM(MixtralConfig(**{**_COMMON, "num_local_experts": EXPERTS, **changes}))


def _olmoe(**changes: Any) -> Any:
    return OlmoeForCausalLM(OlmoeConfig(**{**_COMMON, "num_experts": EXPERTS, "norm_topk_prob": False, **changes}))


def _deepseek_v3(**changes: Any) -> Any:
    """Four layers, the first dense; a choice limited to 2 of 4 groups, by scores with a bias that is not zero."""
    own = {
        "num_hidden_layers": LAYERS + 1,
        "first_k_dense_replace": 1,
        "num_key_value_heads": 4,
        "n_routed_experts": EXPERTS,
        "n_group": 4,
        "topk_group": 2,
        "moe_intermediate_size": 16,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
    }
    model = DeepseekV3ForCausalLM(DeepseekV3Config(**{**_COMMON, **own, **changes}))
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(0.2 * torch.randn(buffer.shape))
    return model


def _gpt_oss(**changes: Any) -> Any:
    own = {"num_local_experts": EXPERTS, "sliding_window": 4, "attn_implementation": "eager"}
    model = GptOssForCausalLM(GptOssConfig(**{**_COMMON, **own, **changes}))
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(weight, std=0.2)
    return model


#: Architecture -> a builder; keyword arguments change its configuration.
BUILD: dict[str, Callable[..., Any]] = {
    "qwen3_moe": _qwen3_moe,
    "mixtral": _mixtral,
    "olmoe": _olmoe,
    "deepseek_v3": _deepseek_v3,
    "gpt_oss": _gpt_oss,
}


def build(name: str, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """A tiny model with random weights, in eval mode; without touching anyone else's random numbers."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = BUILD[name](**changes)
    return model.to(dtype).eval()


def text(seed: int, rows: int, width: int) -> Tensor:
    """[rows,width] random ids, none of them a special one."""
    g = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (rows, width), generator=g)


def checkpoint_activations(model: Any) -> None:
    """Activation checkpointing on; transformers renamed the switch."""
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable({"use_reentrant": False})
    else:
        model.gradient_checkpointing_enable({"use_reentrant": False})
