"""Turned queries and keys are the model's own, and a model that turns otherwise keeps its function."""

from __future__ import annotations

from types import MethodType
from typing import Any
from unittest import mock

import pytest
import torch
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.models.cohere import modeling_cohere
from transformers.models.qwen3 import modeling_qwen3

from groupwise.core.engine import Request, Sampling
from groupwise.engines.local.engine import LocalEngine
from groupwise.engines.local.rotary import NAME, _quick, _same, turn
from tests.engines.local.test_recording import is_recorded

SIZES: dict[str, Any] = {
    "vocab_size": 30,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 96,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}


def test_a_turn_is_a_complex_rotation() -> None:
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(3, 4, 5, 16, generator=noise, dtype=torch.float64)
    angle = 100 * torch.rand(3, 1, 5, 8, generator=noise, dtype=torch.float64)
    whole = torch.cat([angle, angle], -1)
    expected = torch.complex(x[..., :8], x[..., 8:]) * torch.polar(torch.ones_like(angle), angle)
    found = turn(x, whole.cos(), whole.sin())
    torch.testing.assert_close(torch.complex(found[..., :8], found[..., 8:]), expected, rtol=0, atol=1e-14)


def test_only_the_engines_copy_is_changed_and_only_where_the_function_is_the_same() -> None:
    own, model = (
        modeling_qwen3.apply_rotary_pos_emb,
        Qwen3ForCausalLM(Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=8)),
    )
    copy = LocalEngine(model, frozenset(), pad=0)._model
    assert modeling_qwen3.apply_rotary_pos_emb is own
    assert modeling_qwen3.Qwen3Attention.forward.__globals__[NAME] is own
    assert all("forward" not in vars(module) for module in model.modules())
    changed = {at for at, module in copy.named_modules() if isinstance(vars(module).get("forward"), MethodType)}
    assert changed == {"model.layers.0.self_attn", "model.layers.1.self_attn"}
    assert _same(own)
    assert not _same(modeling_cohere.apply_rotary_pos_emb), "its halves are interleaved"
    assert not _same(lambda q, k, angles: (q, k))


@pytest.mark.parametrize(
    "model",
    [
        lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=8)),
        lambda: CohereForCausalLM(CohereConfig(**SIZES, num_key_value_heads=2)),
        lambda: GPTNeoXForCausalLM(
            GPTNeoXConfig(
                **SIZES, rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
            )
        ),
    ],
    ids=["whole heads", "interleaved", "half a head"],
)
def test_completions_are_the_models_own(model: Any) -> None:
    torch.manual_seed(4)
    policy = model().eval()
    engine = LocalEngine(policy, frozenset(), pad=0)
    prompts = [(5, 6, 7, 8), (9,), (10, 11)]
    groups = engine.generate([Request(p, 2, i) for i, p in enumerate(prompts)], Sampling(max_new_tokens=12))
    assert all(map(is_recorded, engine._step._forward.values()))
    for prompt, group in zip(prompts, groups, strict=True):
        for done in group:
            ids = torch.tensor([prompt + done.tokens])
            with torch.no_grad():
                logp = policy(ids).logits[0, len(prompt) - 1 : -1].double().log_softmax(-1)
            expected = logp.gather(1, torch.tensor(done.tokens)[:, None])[:, 0]
            said = torch.tensor(done.logp_engine, dtype=torch.float64)
            torch.testing.assert_close(said, expected, atol=1e-5, rtol=0)


def test_what_it_is_not_made_for_goes_to_the_models_function() -> None:
    own = mock.Mock(return_value=("q", "k"))
    q, k, cos = torch.randn(2, 4, 3, 8), torch.randn(2, 2, 3, 8), torch.randn(2, 3, 8)
    quick = _quick(own)
    assert len(quick(q, k, cos, cos)[0]) == 2
    own.assert_not_called()
    assert quick(q, k, cos[..., :4], cos[..., :4]) == ("q", "k")
    assert quick(*(t.bfloat16() for t in (q, k, cos, cos))) == ("q", "k")
    assert quick(q, k, cos, cos, unsqueeze_dim=2) == ("q", "k")
    assert own.call_args == mock.call(q, k, cos, cos, unsqueeze_dim=2)
