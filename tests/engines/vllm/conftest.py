"""vLLM in a child, as a run has it, for two small policies. Each takes a quarter of a minute to start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from groupwise.core.engine import Engine
from groupwise.engines.kinds import VLLM_PYTHON
from groupwise.engines.make import make_engine
from groupwise.engines.outside.client import RemoteEngine
from groupwise.engines.settings import EngineSettings
from groupwise.models.load import Policy, load_policy, save_policy
from groupwise.models.tiny import EOS_ID, PAD_ID, TinySpec

PYTHON = str(Path(__file__).parents[3] / VLLM_PYTHON)
ALPHABET = "0123456789+-="


@dataclass
class Served:
    """A policy, vLLM that serves it, the local engine beside it, and what the run would log."""

    policy: Policy
    vllm: RemoteEngine
    local: Engine
    notes: list[str] = field(default_factory=list)


def vllm_settings(**changes: object) -> EngineSettings:
    return EngineSettings.model_validate({"name": "vllm", "python": PYTHON, "cache_mib": 64, **changes}).placed()


def dense(folder: Path) -> Path:
    """Qwen3 with heads of 16 channels, and a head of its own."""
    TinySpec(initializer_range=0.3).build(ALPHABET, folder, seed=3)
    return folder


def tied(folder: Path) -> Path:
    """Llama with heads of 32 channels, and a head that is the embedding."""
    tokenizer = TinySpec().tokenizer(ALPHABET)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=32,
            initializer_range=0.3,
            max_position_embeddings=512,
            tie_word_embeddings=True,
            eos_token_id=EOS_ID,
            bos_token_id=None,
        )
    )
    model.generation_config = GenerationConfig(eos_token_id=EOS_ID, pad_token_id=PAD_ID)
    save_policy(model, tokenizer, folder)
    return folder


@pytest.fixture(scope="module", params=[dense, tied], ids=["dense", "tied"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    build: Callable[[Path], Path] = request.param
    policy, notes = load_policy(build(tmp_path_factory.mktemp("served") / "policy")), []
    child = make_engine(policy=policy, settings=vllm_settings(), note=notes.append)
    assert isinstance(child, RemoteEngine)
    yield Served(policy, child, make_engine(policy=policy, settings=EngineSettings()), notes)
    child.close()
