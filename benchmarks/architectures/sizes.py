"""Sizes of small models, by the names that configurations have for them, and what single architectures need beside."""

from collections.abc import Mapping
from typing import Any

#: Ids of the tokenizer with one token a byte, its chat marks, and twelve behind them that no text has.
VOCABULARY = 272
#: Positions of prompt and answer together.
POSITIONS = 512
#: Tokens of a window or a chunk of attention.
WINDOW = 8
EXPERTS, CHOSEN = 4, 2

_WIDTHS = {
    # As many as DeepSeek V3.2 has. An indexer adds up its heads' scores, which are 0 where negative: of a few heads all
    # may be, and which of several tokens with 0 are among the top k depends on the padding, in the model's own forward.
    64: "mamba_d_ssm index_n_heads",
    32: "hidden_size n_embd d_model emb_dim embed_dim embedding_size input_embedding_size output_embedding_size "
    "word_embed_proj_dim lru_width backbone_hidden_size embedding_dim out_hidden_size output_dim "
    "projection_dim vision_output_dim text_hidden_size merger_hidden_size projector_hidden_size "
    "vision_feature_dim adapter_in_dim adapter_input_size adapter_out_dim projector_input_dim "
    "projector_output_dim alignment_intermediate_size",
    48: "intermediate_size n_inner ffn_dim d_inner dff dim_ff decoder_ffn_dim encoder_ffn_dim ffn_hidden_size "
    "feed_forward_size dense_intermediate_size intermediate_size_mlp prefix_dense_intermediate_size",
    16: "mamba_d_head mamba_head_dim moe_intermediate_size shared_intermediate_size "
    "shared_expert_intermediate_size expert_ffn_hidden_size shared_experts_intermediate_size "
    "moe_shared_expert_intermediate_size router_hidden_size hidden_size_per_layer_input "
    "pronunciation_embed_dim shape_embed_dim index_topk prompt_mid_dim",
    8: "head_dim kv_channels d_head dim_head attention_head_dim linear_key_head_dim linear_value_head_dim "
    "linear_head_dim mamba_d_state state_size ssm_state_size v_head_dim qk_rope_head_dim qk_nope_head_dim "
    "kv_lora_rank q_lora_rank index_head_dim swa_head_dim global_head_dim rotary_dim laurel_rank "
    "attention_head_size o_lora_rank gated_norm_rank adapter_rank hc_lowrank indexer_head_dim time_step_rank "
    "mamba_dt_rank d_rel num_centroids",
    4: "num_attention_heads n_head n_heads num_heads decoder_attention_heads encoder_attention_heads "
    "attention_heads num_decoder_attention_heads num_encoder_attention_heads mamba_n_heads mamba_num_heads "
    "linear_num_value_heads linear_num_heads swa_num_attention_heads indexer_n_heads "
    "n_mamba_heads",
    2: "num_key_value_heads num_kv_heads swa_num_key_value_heads linear_num_key_heads num_global_key_value_heads "
    "mamba_n_groups n_groups mamba_ngroups o_groups indexer_kv_heads hc_mult hc_count cross_attn_k",
}
_EXPERTS = {
    EXPERTS: "num_experts num_local_experts n_routed_experts moe_num_experts",
    CHOSEN: "num_experts_per_tok moe_topk moe_k top_k_experts moe_top_k",
}
_COUNTS = {
    2: "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers num_decoder_layers "
    "num_encoder_layers depth num_blocks",
    1: "first_k_dense_replace num_dense_layers moe_layer_start_index n_shared_experts num_shared_experts n_group "
    "topk_group attn_layer_offset expert_layer_offset num_image_with_embedding num_random_blocks "
    "moe_num_shared_experts zero_expert_num",
}
_LENGTHS = {
    POSITIONS: "max_position_embeddings n_positions n_ctx max_seq_len context_length",
    WINDOW: "sliding_window sliding_window_size attention_window_size window_size attention_chunk_size "
    "local_attention local_attention_window_len mamba_chunk_size chunk_size keep_window_size rel_extent "
    "block_size index_block_size",
    2: "attn_layer_period expert_layer_period",
    0: "num_mtp_layers num_nextn_predict_layers pad_token_id",
    1: "eos_token_id decoder_start_token_id",
}
_SIGHT = {
    28: "image_size",
    14: "patch_size",
    2: "spatial_merge_size",
    1: "temporal_patch_size",
}
_IDS = (
    "image_token_id video_token_id audio_token_id vision_start_token_id vision_end_token_id boi_token_id eoi_token_id "
    "boa_token_id eoa_token_id image_token_index boi_token_index eoi_token_index eoa_token_index video_token_index"
)


def _by_name(*tables: Mapping[int, str]) -> dict[str, int]:
    return {name: size for table in tables for size, names in table.items() for name in names.split()}


#: Field of a configuration -> its size in a small one, where the class's own is a number.
SIZES: Mapping[str, Any] = {
    **_by_name(_WIDTHS, _EXPERTS, _COUNTS, _LENGTHS, _SIGHT),
    "vocab_size": VOCABULARY,
    "vocab_size_per_layer_input": VOCABULARY,
    "unpadded_vocab_size": VOCABULARY,
    "bos_token_id": None,
    "initializer_range": 0.1,
    "use_mamba_kernels": False,
    "type_vocab_size": 2,
    "mm_tokens_per_image": 4,
    **{name: VOCABULARY - 1 - number for number, name in enumerate(dict.fromkeys(_IDS.split()))},
}  #: Sizes of latent attention, in which every head has keys of its own.
LATENT = {"num_key_value_heads": 4}
#: Fields that are set if the class leaves them to be found from others, too.
EVEN_IF_NONE = (
    "num_key_value_heads head_dim eos_token_id pad_token_id bos_token_id num_experts_per_tok linear_num_key_heads "
    "linear_num_value_heads linear_key_head_dim linear_value_head_dim"
)
