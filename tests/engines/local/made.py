"""Small models, what they are asked, and what a completion must be by the model's plain forward."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from groupwise.core.engine import Request, Sampling
from groupwise.core.records import Completion
from groupwise.engines.local.engine import LocalEngine

VOCABULARY = 30
EOS = frozenset({3, 7})
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 96, "initializer_range": 0.2}
LAYERS, EXPERTS, CHOSEN = 3, 8, 2
MODELS: dict[str, Callable[[], Any]] = {
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=8, tie_word_embeddings=True)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCABULARY, **GPT2, bos_token_id=None, eos_token_id=None)  # type: ignore[arg-type]
    ),
}
REQUESTS = [
    Request((5, 9, 11, 2, 8, 20, 14), samples=3, seed=1),
    Request((4,), samples=4, seed=2),
    Request((12, 13, 2, 29), samples=2, seed=2, max_new_tokens=9),
]


def build(name: str = "qwen3") -> Any:
    torch.manual_seed(4)
    return MODELS[name]().eval()


def build_moe(experts: int = EXPERTS, **more: Any) -> Any:
    torch.manual_seed(4)
    sizes = {**SIZES, "num_hidden_layers": LAYERS, "initializer_range": 0.3, "head_dim": 8}
    moe = {"num_experts": experts, "num_experts_per_tok": CHOSEN, "moe_intermediate_size": 24, "norm_topk_prob": True}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, **moe, **more)).eval()


def is_recorded(forward: object) -> bool:
    return not isinstance(forward, nn.Module)


def each(requests: Sequence[Request], groups: Sequence[Sequence[Completion]]) -> list[tuple[Request, Completion]]:
    """Every completion, with its request."""
    return [(request, done) for request, group in zip(requests, groups, strict=True) for done in group]


def plain_logp(model: nn.Module, prompt: tuple[int, ...], done: Completion, temperature: float = 1.0) -> torch.Tensor:
    """Log-probabilities of the completion by one forward over the whole sequence, over the kept ids where given."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + done.tokens])).logits[0, len(prompt) - 1 : -1]
    logits = logits.double() / temperature
    if done.support is not None:
        hidden = torch.full_like(logits, -math.inf)
        for t in range(len(done.tokens)):
            ids = done.support.ids[done.support.start[t] : done.support.start[t + 1]].long()
            hidden[t, ids] = logits[t, ids]
        logits = hidden
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(done.tokens)[:, None])[:, 0]


def assert_plain(
    model: nn.Module, engine: LocalEngine, requests: Sequence[Request], how: Sampling, atol: float = 1e-5
) -> list[tuple[Completion, ...]]:
    """The log-probability of each sampled token is that of the model's plain forward."""
    groups = engine.generate(requests, how)
    assert [len(group) for group in groups] == [request.samples for request in requests]
    for request, done in each(requests, groups):
        expected = plain_logp(model, request.tokens, done, how.temperature)
        torch.testing.assert_close(torch.tensor(done.logp_engine, dtype=torch.float64), expected, atol=atol, rtol=0)
    return groups


def assert_alike(one: Completion, other: Completion) -> None:
    """The same tokens and supports, and log-probabilities up to rounding."""
    assert one.tokens == other.tokens
    assert one.logp_engine == pytest.approx(other.logp_engine, abs=1e-5)
    assert (one.support is None) == (other.support is None)
    if one.support is not None and other.support is not None:
        assert torch.equal(one.support.ids, other.support.ids)
        assert torch.equal(one.support.start, other.support.start)
