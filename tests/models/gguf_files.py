"""A tiny model of the Llama architecture as a GGUF file, laid out as llama.cpp lays out what it converts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from groupwise.models.tiny import CHATML

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("Ġ Ġ", "Ċ Ċ", "Ġ t", "i m", "e s")
TOKENS = (*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES))
#: Parameter -> tensor, in a layer and outside.
IN_LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}


def tiny_llama() -> Any:
    """Two layers, two query heads a key head, weights that are far from those of the beginning of a training."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    return LlamaForCausalLM(config).eval()


def stored_name(name: str) -> str:
    """The tensor's name of a parameter's."""
    name = name.removesuffix(".weight")
    if name in OUTSIDE:
        return f"{OUTSIDE[name]}.weight"
    _, _, layer, inside = name.split(".", 3)
    return f"blk.{layer}.{IN_LAYER[inside]}.weight"


def in_pairs(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of queries or keys with the two channels of an angle beside each other."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write_gguf(
    path: Path,
    model: Any,
    quantised: str = "F32",
    architecture: str = "llama",
    end: int = 2,
    without: Sequence[str] = (),
    extra: Sequence[str] = (),
) -> Path:
    """The model's file: products of the MLP in the format `quantised`, all else float32."""
    import gguf

    config, kind = model.config, gguf.GGMLQuantizationType[quantised]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("Tiny Llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(16)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(list(TOKENS))
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL)))
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(end)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(end)
    writer.add_chat_template(CHATML)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" or stored_name(name) in without:
            continue
        weight, count = tensor.numpy(), heads.get(name.split(".")[-2])
        weight = np.ascontiguousarray(weight if count is None else in_pairs(weight, count))
        if "mlp" in name and quantised != "F32":
            writer.add_tensor(stored_name(name), gguf.quantize(weight, kind), raw_dtype=kind)
        else:
            writer.add_tensor(stored_name(name), weight)
    for name in extra:
        writer.add_tensor(name, np.ones(8, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
