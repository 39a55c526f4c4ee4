"""Tiny random models of any architecture of transformers."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM

#: Two layers over 32 ids, with weights large enough that distributions are uneven.
SIZES: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "initializer_range": 0.4,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
}


def causal(architecture: str, **changes: Any) -> Any:
    """A causal model of these sizes and changes, which takes its weights from torch's generator."""
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(architecture, **{**SIZES, **changes})).eval()
