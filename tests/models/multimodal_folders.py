"""Small multimodal folders, as classes of transformers save them and as hubs have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from groupwise.models.load import Policy
from groupwise.models.tiny import TinySpec
from tests.tiny_models import SIZES

TOWER: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
TEXT = {**SIZES, "max_position_embeddings": 128}
MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
QWEN_TOWER = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 2,
    "out_hidden_size": 32,
    "patch_size": 14,
}
QWEN_IDS = {"image_token_id": 28, "video_token_id": 29, "vision_start_token_id": 30, "vision_end_token_id": 31}
#: Keys of a configuration: Gemma 3 has windows, a tied head and its own names in files; Qwen 2.5 VL has no class of
#: transformers for its text alone, and positions in three parts; the text of Mistral 3 is an older class.
KINDS: dict[str, dict[str, Any]] = {
    "Gemma3": {
        "text_config": {
            **TEXT,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"],
            "num_key_value_heads": 4,
        },
        "vision_config": TOWER,
        "mm_tokens_per_image": 4,
        "image_token_index": 29,
        "boi_token_index": 30,
        "eoi_token_index": 31,
    },
    "Qwen2_5_VL": {
        "text_config": {**TEXT, "rope_parameters": MROPE},
        "vision_config": {**QWEN_TOWER, "window_size": 28, "fullatt_block_indexes": [0]},
        "tie_word_embeddings": False,
        **QWEN_IDS,
    },
    "Mistral3": {
        "text_config": {**TEXT, "model_type": "mistral", "sliding_window": None},
        "vision_config": {**TOWER, "model_type": "pixtral"},
        "image_token_index": 29,
        "tie_word_embeddings": False,
    },
    "Qwen3_5": {
        "text_config": {
            **TEXT,
            "num_hidden_layers": 2,
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "rope_parameters": {**MROPE, "partial_rotary_factor": 1.0},
        },
        "vision_config": {**QWEN_TOWER, "num_position_embeddings": 16},
        "tie_word_embeddings": True,
        **QWEN_IDS,
    },
    "Llama4": {
        "text_config": {**TEXT, "num_local_experts": 2, "intermediate_size_mlp": 48, "attention_chunk_size": 64},
        "vision_config": {
            **TOWER,
            "intermediate_size": 64,
            "projector_input_dim": 32,
            "projector_output_dim": 32,
            "vision_output_dim": 32,
        },
        "tie_word_embeddings": False,
    },
}


def multimodal(kind: str) -> Any:
    """A model whose weights are all off their start."""
    config = getattr(transformers, f"{kind}Config")(**KINDS[kind])
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(3)
        model = whole_class_of(kind)(config)
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    model.generation_config = transformers.GenerationConfig(eos_token_id=1, pad_token_id=0)
    return model.eval()


def whole_class_of(kind: str) -> Any:
    return getattr(transformers, f"{kind}ForConditionalGeneration")


def saved(folder: Path, kind: str) -> Path:
    """A folder as the class itself saves it."""
    multimodal(kind).save_pretrained(folder)
    TinySpec().tokenizer("0123456789+-=").save_pretrained(folder)
    return folder


def published(folder: Path, kind: str) -> Path:
    """A folder in bfloat16 and two files, with names as the class has them in memory, a head and an embedding that are
    one both in them, and a processor.
    """
    model = multimodal(kind)
    model.save_pretrained(folder, state_dict={})
    (folder / "model.safetensors").unlink(missing_ok=True)
    TinySpec().tokenizer("0123456789+-=").save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text('{"image_processor_type": "Some"}')
    weights = {name: weight.to(torch.bfloat16) for name, weight in model.state_dict().items()}
    names = sorted(weights)
    places = {name: f"model-0000{number % 2 + 1}-of-00002.safetensors" for number, name in enumerate(names)}
    for file in set(places.values()):
        held = {name: weights[name].clone().contiguous() for name in names if places[name] == file}
        save_file(held, folder / file, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(path)
    return tensors


def changed(policy: Policy) -> Policy:
    """The policy after an update, of sorts."""
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.25)
    return policy
