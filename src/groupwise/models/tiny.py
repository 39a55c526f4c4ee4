"""Tiny models from a spec: a Hugging Face folder with random weights and a small tokenizer, built in a second.

After that nothing knows that the model is tiny: it loads with AutoModelForCausalLM and AutoTokenizer like any other.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from groupwise.core.errors import UsageError
from groupwise.models.load import save_policy

PAD, EOS = "<pad>", "<eos>"
PAD_ID, EOS_ID = 0, 1
TURN_START, TURN_END = "<|im_start|>", "<|im_end|>"

#: ChatML, as many models write it: a turn a message, and the start of an answer as the generation prompt.
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@dataclass(frozen=True)
class TinySpec:
    """A dense Qwen3 of a few layers.

    layers, width, mlp_width   blocks; residual and feed-forward channels
    heads, kv_heads, head_dim  query heads, key-value heads, channels of each
    rope_theta                 base of the rotary angles; small, because the sequences are short
    initializer_range          standard deviation of the random weights; at 0.02 a narrow model starts slowly
    max_length                 positions, prompt and completion together
    """

    layers: int = 2
    width: int = 64
    mlp_width: int = 256
    heads: int = 4
    kv_heads: int = 4
    head_dim: int = 16
    rope_theta: float = 100.0
    initializer_range: float = 0.1
    max_length: int = 256

    def __post_init__(self) -> None:
        for name in ("layers", "width", "mlp_width", "heads", "kv_heads", "head_dim", "max_length"):
            if getattr(self, name) < 1:
                raise UsageError(f"model.{name} must be at least 1, not {getattr(self, name)}")
        if self.heads % self.kv_heads:
            raise UsageError(f"model.heads must be a multiple of model.kv_heads, not {self.heads} and {self.kv_heads}")
        if self.head_dim % 2:
            raise UsageError(f"model.head_dim must be even (rotary angles turn pairs), not {self.head_dim}")

    def build(self, alphabet: str, folder: Path, seed: int) -> None:
        """Write model, generation settings and tokenizer into `folder`; the same seed gives the same bits."""
        tokenizer = self.tokenizer(alphabet)
        with torch.random.fork_rng(devices=[]):  # the caller's random stream stays where it is
            torch.manual_seed(seed)
            model = self._model(tokenizer)
        own_end = tokenizer.eos_token_id
        ends = EOS_ID if own_end == EOS_ID else [own_end, EOS_ID]
        model.generation_config = GenerationConfig(eos_token_id=ends, pad_token_id=PAD_ID)
        save_policy(model, tokenizer, folder)

    def tokenizer(self, alphabet: str) -> PreTrainedTokenizerFast:
        """Make one token a character, first `<pad>` and `<eos>`; one outside the alphabet is an error, never a guess.

        Raises UsageError if the task's text has no alphabet to take them from.
        """
        if not alphabet:
            raise UsageError(
                "a tiny model with one token a character needs a task with a fixed alphabet, and this task's text may "
                "hold any character; use model = 'tiny-bytes' or 'tiny-chat'"
            )
        vocabulary = {text: i for i, text in enumerate([PAD, EOS, *dict.fromkeys(alphabet)])}
        tokenizer = Tokenizer(models.WordLevel(vocabulary))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        tokenizer.decoder = decoders.Fuse()  # join the characters; the default would put spaces between them
        return self._fast(tokenizer, EOS)

    def _fast(self, tokenizer: Tokenizer, eos: str) -> PreTrainedTokenizerFast:
        return PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            eos_token=eos,
            pad_token=PAD,
            clean_up_tokenization_spaces=False,
            model_max_length=self.max_length,
        )

    def _model(self, tokenizer: PreTrainedTokenizerFast) -> Any:
        return Qwen3ForCausalLM(Qwen3Config(**self._settings(tokenizer), intermediate_size=self.mlp_width))

    def _settings(self, tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
        """Return the configuration of every architecture of the family, less its feed-forward part."""
        return {
            "vocab_size": len(tokenizer),
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": self.max_length,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "initializer_range": self.initializer_range,
            "tie_word_embeddings": False,
            "bos_token_id": None,
            "eos_token_id": EOS_ID,
            "pad_token_id": PAD_ID,
        }


@dataclass(frozen=True)
class ByteSpec(TinySpec):
    """A tiny model that reads and writes any text, one token a byte of its UTF-8, and has room for long texts.

    chat   with a ChatML template, whose end of turn ends an answer too
    """

    rope_theta: float = 10000.0
    max_length: int = 2048
    chat: bool = False

    def tokenizer(self, alphabet: str) -> PreTrainedTokenizerFast:
        """Make one token a byte, whatever the task's alphabet: any text goes in and comes back. First `<pad>` and
        `<eos>`; with `chat` the two marks of a turn come last, its end being the tokenizer's eos.
        """
        marks = [TURN_START, TURN_END] if self.chat else []
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())  # a set: sorted, the ids are the same in every process
        vocabulary = {text: i for i, text in enumerate([PAD, EOS, *letters, *marks])}
        tokenizer = Tokenizer(models.BPE(vocabulary, []))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens([PAD, EOS, *marks])
        fast = self._fast(tokenizer, TURN_END if self.chat else EOS)
        fast.chat_template = CHATML if self.chat else None
        return fast


@dataclass(frozen=True)
class MoeSpec(TinySpec):
    """A tiny mixture of experts: a Qwen3-MoE whose every layer has experts, and one token a character.

    experts    feed-forward networks of a layer, each with `mlp_width` channels
    chosen     how many of them a token goes through; their weights add up to 1
    """

    layers: int = 4
    mlp_width: int = 64
    experts: int = 8
    chosen: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.chosen <= self.experts:
            raise UsageError(f"model.chosen must be from 1 to model.experts ({self.experts}), not {self.chosen}")

    def twin(self) -> TinySpec:
        """Describe the policy without experts, its feed-forward network as large as those that a token goes through."""
        shared = {f.name: getattr(self, f.name) for f in dataclasses.fields(TinySpec)}
        return TinySpec(**{**shared, "mlp_width": self.chosen * self.mlp_width})

    def _model(self, tokenizer: PreTrainedTokenizerFast) -> Any:
        config = Qwen3MoeConfig(
            **self._settings(tokenizer),
            moe_intermediate_size=self.mlp_width,
            num_experts=self.experts,
            num_experts_per_tok=self.chosen,
            norm_topk_prob=True,
            decoder_sparse_step=1,
        )
        return Qwen3MoeForCausalLM(config)
