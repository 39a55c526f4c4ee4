"""A tiny mixture-of-experts policy in a folder, over the arithmetic alphabet: the random models of the laws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import GenerationConfig

from groupwise.models.load import save_policy
from groupwise.models.tiny import EOS_ID, PAD_ID, TinySpec
from tests.laws import moe_models


def save_moe(folder: Path, architecture: str = "qwen3_moe", **changes: Any) -> Path:
    """`changes` are of its configuration; uneven routing, and distributions that are not peaked."""
    tokenizer = TinySpec().tokenizer("0123456789+-=")
    ids = {"vocab_size": len(tokenizer), "pad_token_id": PAD_ID, "bos_token_id": None, "eos_token_id": EOS_ID}
    model = moe_models.build(architecture, seed=3, **{"initializer_range": 0.3, **ids, **changes})
    model.generation_config = GenerationConfig(eos_token_id=EOS_ID, pad_token_id=PAD_ID)
    save_policy(model, tokenizer, folder)
    return folder
