"""Kinds of models that hold more than text, and what single kinds need beside the sizes of all."""

from collections.abc import Mapping
from typing import Any

#: Kinds whose folders hold more than a text model, which is what is trained.
WHOLE = (
    "gemma3 gemma3n gemma4 qwen2_vl qwen2_5_vl qwen3_vl qwen3_vl_moe qwen3_5 qwen3_5_moe mistral3 llama4 "
    "llava llava_next llava_onevision internvl smolvlm idefics2 idefics3 paligemma aya_vision cohere2_vision "
    "lfm2_vl glm4v glm4v_moe qwen4_exp cohere_compass gemma4_unified dots3_note ernie4_5_vl_moe exaone4_5 "
    "mllama"
)

#: Kinds that transformers counts among causal language models and that are parts of others, by what they are.
OTHERS: Mapping[str, str] = {
    "decoder of an encoder-decoder model": "bart bigbird_pegasus blenderbot blenderbot-small marian mbart mvp "
    "pegasus plbart prophetnet trocr whisper",
    "bidirectional encoder": "bert bert-generation big_bird camembert data2vec-text electra ernie "
    "megatron-bert rembert roberta roberta-prelayernorm roc_bert roformer xlm xlm-roberta xlm-roberta-xl xlnet xmod",
    "audio or image model": "git got_ocr2 moshi moss_transcribe_diarize musicgen musicgen_melody",
    "draft model for another model": "gemma4_assistant gemma4_unified_assistant",
}

_MIXED = ["linear_attention", "full_attention"]
_HALVES = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
#: Later layers take keys and values of earlier ones.
_SHARED = {"layer_types": _HALVES, "num_hidden_layers": 4, "num_kv_shared_layers": 2}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0, "mrope_section": [2, 1, 1]}
_TURNED = {"rope_parameters": _ROPE}

#: Kind -> fields of its configuration, or of a part of it, beside the sizes of all.
CHANGES: Mapping[str, Mapping[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "blt": {"encoder_hash_byte_group_vocab": 64},
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {"sliding_attention": _ROPE, "full_attention": _ROPE},
    },
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2, "clip_qkv": 8.0}},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1},
    "dots3_note_text": {
        "num_key_value_heads": 4,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 4,
        "swa_q_lora_rank": 8,
        "swa_kv_lora_rank": 8,
        "swa_head_dim": 16,
        "swa_qk_nope_head_dim": 8,
        "swa_v_head_dim": 8,
    },
    "emu3": {"vocabulary_map": {"<image>": 271, "<|extra_200|>": 270, "<|visual token 000000|>": 269}},
    "ernie4_5_vl_moe_text": {
        "moe_intermediate_size": [16, 16],
        "rope_parameters": {**_ROPE, "mrope_section": [1, 1, 2]},
    },
    "gemma3n_text": {"activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0], **_SHARED},
    "gemma4_text": {"global_head_dim": 16, **_SHARED},
    "gemma4_unified_text": {"global_head_dim": 16, **_SHARED},
    "minicpm3": {"dim_model_base": 64},
    "glm4v_text": _TURNED,
    "glm4v_moe_text": _TURNED,
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"layer_types": _MIXED},
    "hrm_text": {"H_cycles": 1, "L_cycles": 1},
    "laguna": {"layer_types": _HALVES[:2], "mlp_layer_types": ["dense", "sparse"]},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"head_dim": 16},
    "mellum": {"layer_types": _HALVES[:2], "mlp_layer_types": ["dense", "sparse"]},
    "minimax_m3_vl_text": {
        "layer_types": ["full_attention", "minimax_m3_sparse"],
        "index_n_heads": 4,
        "mlp_layer_types": ["dense", "sparse"],
    },
    "qwen2": {"use_sliding_window": True, "max_window_layers": 1},
    "qwen2_vl_text": _TURNED,
    "qwen2_5_vl_text": _TURNED,
    "qwen4_exp_text": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 16,
        "indexer_compress_ratio": 4,
    },
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {"is_decoder": True, "attn_layers": ["local", "lsh"], "axial_pos_embds": False},
    "xlstm": {"hidden_size": 128, "embedding_dim": 128, "chunk_size": 64},
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
        "num_hidden_layers": 4,
    },
    "zaya": {"num_experts_per_tok": 1, "layer_types": ["hybrid_sliding", "hybrid"], "sliding_window": 8},
}
