"""The models that are measured, random weights in published shapes, and how much of each is measured."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, Qwen2Config, Qwen2Tokenizer, Qwen3Config

from groupwise.core.files.atomic import whole_file

PAD, END = 0, 1
LETTERS = string.ascii_lowercase


@dataclass(frozen=True)
class Size:
    """A model's shape: `config` makes it of `numbers`, as transformers names them."""

    name: str
    config: Any
    numbers: Mapping[str, int]

    def configuration(self, layers: int | None = None) -> Any:
        """The whole model's, or that of its first `layers` layers."""
        numbers = dict(self.numbers) | ({} if layers is None else {"num_hidden_layers": layers})
        return self.config(
            **numbers,
            max_position_embeddings=8192,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=END,
            pad_token_id=PAD,
        )

    def model(self, device: str, dtype: torch.dtype, layers: int | None = None) -> Any:
        """Random weights, the same at each call."""
        torch.manual_seed(0)
        with torch.device(device):
            return AutoModelForCausalLM.from_config(self.configuration(layers), dtype=dtype).eval()

    def folder(self, models: Path, device: str) -> Path:
        """The model saved with its tokenizer, in bfloat16; made where it is not there yet."""
        target = models / self.name
        if not (target / "done").exists():
            model = self.model(device, torch.bfloat16)
            model.generation_config = GenerationConfig(eos_token_id=END, pad_token_id=PAD)
            model.save_pretrained(target)
            tokenizer(self.numbers["vocab_size"]).save_pretrained(target)
            (target / "done").touch()
        return target


@dataclass(frozen=True)
class Amounts:
    """How much is measured: the whole, or so little that two processor cores do it in minutes.

    copied, product   bytes of the copy, and the side of the square matrices of the product
    sizes             every model that decodes; `trained` are those that train as well
    rows, prompt, new, group   of decoding: completions side by side, tokens of a prompt, new tokens, a group's size
    compiled          models that decode with compiled layers as well
    completions       of the learner: (completions, tokens of each)
    step              of a whole step: (prompts, completions of each, tokens of a completion)
    published         the whole step of a public run, by groupwise alone, of the first trained size
    steps             of a whole step's run: one to warm up, then timed ones
    quickstart, real, faults   settings of the runs, and how many faults are planted
    """

    copied: int
    product: int
    sizes: tuple[Size, ...]
    trained: tuple[Size, ...]
    rows: tuple[int, ...]
    prompt: int
    new: int
    group: int
    compiled: tuple[Size, ...]
    completions: tuple[tuple[int, int], ...]
    step: tuple[int, int, int]
    published: tuple[int, int, int]
    steps: int
    quickstart: Mapping[str, Any]
    real: Mapping[str, Any]
    faults: int
    clean_steps: int


def qwen2(name: str, hidden: int, layers: int, heads: int, kv_heads: int, mlp: int, vocabulary: int = 151_936) -> Size:
    numbers = {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": mlp,
    }
    return Size(name, Qwen2Config, numbers)


def qwen3(
    name: str, hidden: int, layers: int, heads: int, mlp: int, head_dim: int = 128, vocabulary: int = 151_936
) -> Size:
    numbers = {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "head_dim": head_dim,
        "intermediate_size": mlp,
    }
    return Size(name, Qwen3Config, numbers)


#: The shapes of Qwen2.5-0.5B and -1.5B, and of Qwen3-0.6B and -1.7B, by their published configurations.
QWEN25 = (
    qwen2("Qwen2.5-0.5B", hidden=896, layers=24, heads=14, kv_heads=2, mlp=4864),
    qwen2("Qwen2.5-1.5B", hidden=1536, layers=28, heads=12, kv_heads=2, mlp=8960),
)
QWEN3 = (
    qwen3("Qwen3-0.6B", hidden=1024, layers=28, heads=16, mlp=3072),
    qwen3("Qwen3-1.7B", hidden=2048, layers=28, heads=16, mlp=6144),
)
SMALL = (
    qwen2("tiny Qwen2", hidden=64, layers=2, heads=4, kv_heads=2, mlp=192, vocabulary=512),
    qwen3("tiny Qwen3", hidden=64, layers=2, heads=4, mlp=192, head_dim=16, vocabulary=512),
)

WHOLE_AMOUNTS = Amounts(
    copied=4 << 30,
    product=8192,
    sizes=(*QWEN25, *QWEN3),
    trained=QWEN25,
    rows=(64, 256),
    prompt=128,
    new=512,
    group=8,
    compiled=QWEN25[:1],
    completions=((128, 512), (16, 4096)),
    step=(32, 8, 200),
    published=(256, 5, 200),
    steps=3,
    quickstart={},
    real={},
    faults=6,
    clean_steps=40,
)
SMALL_AMOUNTS = Amounts(
    copied=64 << 20,
    product=512,
    sizes=SMALL,
    trained=SMALL,
    rows=(8, 16),
    prompt=8,
    new=16,
    group=4,
    compiled=SMALL[:1],
    completions=((16, 16), (4, 64)),
    step=(4, 4, 12),
    published=(8, 5, 12),
    steps=3,
    quickstart={"steps": 2, "warm_start.steps": 20, "evaluation.problems": 16, "prompts_per_step": 8},
    real={
        "steps": 1,
        "prompts_per_step": 2,
        "samples_per_prompt": 4,
        "evaluation.problems": 2,
        "evaluation.samples": 2,
    },
    faults=1,
    clean_steps=3,
)


def tokenizer(vocabulary: int) -> Any:
    """A letter a token, which prompts are made of, and words for all other ids, which a random policy samples."""
    ids = {"<pad>": PAD, "<end>": END}
    ids |= {letter: number for number, letter in enumerate(LETTERS, len(ids))}
    ids |= {f"w{number}": number for number in range(len(ids), vocabulary)}
    return Qwen2Tokenizer(vocab=ids, merges=[], pad_token="<pad>", eos_token="<end>", unk_token="<pad>")


def problems(folder: Path, count: int, tokens: int) -> Path:
    """`count` prompts of `tokens` letters, a line each, and one to hold out; the same at each call."""
    path = folder / f"prompts-{count}-{tokens}.jsonl"
    if not path.exists():
        rng = random.Random(0)
        lines = [json.dumps({"prompt": "".join(rng.choices(LETTERS, k=tokens))}) for _ in range(count + 1)]
        path.with_suffix(".heldout.jsonl").write_text(lines.pop() + "\n")
        with whole_file(path) as file:
            file.write(("\n".join(lines) + "\n").encode())
    return path
