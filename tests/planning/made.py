"""Models without memory, shapes of runs and plans that the tests of planning share."""

from __future__ import annotations

import dataclasses
from typing import Any

from transformers import LlamaConfig, Qwen3MoeConfig

from groupwise.models.adapters.settings import AdapterSettings
from groupwise.planning.activations import weight_bytes, without_memory
from groupwise.planning.memory import MemoryPlan, plan
from groupwise.planning.parts import PlannedRun, planned_run
from groupwise.planning.run_shape import RunShape
from groupwise.training.critic import CriticSettings
from groupwise.training.learner import LearnerSettings

SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}


def llama(**changes: Any) -> LlamaConfig:
    return LlamaConfig(**{**SIZES, "intermediate_size": 160, "tie_word_embeddings": True, **changes})


def experts(**changes: Any) -> Qwen3MoeConfig:
    return Qwen3MoeConfig(**{**SIZES, "moe_intermediate_size": 48, "num_experts": 8, "head_dim": 16, **changes})


SHAPE = RunShape(
    prompts=16,
    samples=8,
    minibatches=2,
    prompt=30,
    completion=20,
    rows=128,
    truncates=False,
    adjusts=False,
    engine=4,
    reference=0,
    reward_model=False,
)
#: A shape of few rows, for arithmetic by hand.
SMALL = dataclasses.replace(SHAPE, prompts=6, samples=4, minibatches=1, prompt=7, completion=5)
MODEL = without_memory(llama(vocab_size=5000, intermediate_size=128, num_hidden_layers=2, tie_word_embeddings=False))
WEIGHTS = weight_bytes(MODEL)
HELD, ROOM = 10**8, 1 << 40
RANK_4 = AdapterSettings(rank=4)
#: Cuts of an update of which nothing is picked.
CUT: dict[str, Any] = {"tokens_per_microbatch": 250, "chunk_logits": 1 << 20, "held_logits": 0}


def run_of(
    model: Any = MODEL,
    critic: CriticSettings | None = None,
    adapter: AdapterSettings = AdapterSettings(),
    device: str = "cpu",
    **keys: Any,
) -> PlannedRun:
    """A run whose shape differs from SHAPE as said; what is no key of a shape is one of the learner's settings."""
    shape = {key: keys.pop(key) for key in list(keys) if key in RunShape.__dataclass_fields__}
    return planned_run(model, dataclasses.replace(SHAPE, **shape), LearnerSettings(**keys), critic, adapter, device)


def planned(free: int = ROOM, process: int = HELD, **run: Any) -> MemoryPlan:
    """Its memory, by a process that holds so much on a machine that has so much free."""
    return plan(run_of(**run), process, free)
