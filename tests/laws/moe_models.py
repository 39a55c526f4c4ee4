"""Tiny mixture-of-experts models of five architectures, with random weights large enough that routing is uneven."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.tiny_models import SIZES, causal

VOCABULARY, EXPERTS, CHOSEN, LAYERS = SIZES["vocab_size"], 8, 2, 3

_SIZES: dict[str, Any] = {
    "intermediate_size": 32,
    "num_hidden_layers": LAYERS,
    "max_position_embeddings": 128,
    "initializer_range": 0.5,
    "num_experts_per_tok": CHOSEN,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
#: Architecture -> what it has beside these.
BUILD: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"num_experts": EXPERTS, "moe_intermediate_size": 16, "norm_topk_prob": True},
    "mixtral": {"num_local_experts": EXPERTS},
    "olmoe": {"num_experts": EXPERTS, "norm_topk_prob": False},
    # Four layers, the first dense; a choice limited to 2 of 4 groups, by scores with a bias that is not zero.
    "deepseek_v3": {
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
    },
    "gpt_oss": {"num_local_experts": EXPERTS, "sliding_window": 4, "attn_implementation": "eager"},
}


def build(name: str, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """A tiny model with random weights, in eval mode; without touching anyone else's random numbers."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = causal(name, **{**_SIZES, **BUILD[name], **changes})
        for key, buffer in model.named_buffers():
            if key.endswith("e_score_correction_bias"):
                buffer.copy_(0.2 * torch.randn(buffer.shape))
        for key, weight in model.named_parameters():
            if name == "gpt_oss" and key.endswith("bias"):
                torch.nn.init.normal_(weight, std=0.2)
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
