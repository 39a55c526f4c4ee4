"""Floating-point operations that a step of GRPO needs, from a model's config.json and what was sampled.

Counted is what the arithmetic asks for and nothing of how it is done: a group's prompt once, no padding, two operations
a multiply-add of the matrix products and of attention, a backward pass twice its forward. Both sides have the same
numerator, so their shares of the machine's ceiling compare.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: A forward and a backward pass, in forward passes.
FORWARD_AND_BACKWARD = 3


@dataclass(frozen=True)
class Sampled:
    """`prompts` prompts of `prompt_tokens` tokens (mean), `completions` completions of `tokens` (mean)."""

    prompts: int
    prompt_tokens: float
    completions: int
    tokens: float


def forward(config: Mapping[str, Any], sampled: Sampled) -> float:
    """Operations of one forward pass over every group: prompts once, then each completion, head on completions only."""
    prompt, answer = sampled.prompt_tokens, sampled.tokens
    trained = sampled.completions * answer
    linear = 2 * layer_parameters(config) * (sampled.prompts * prompt + trained)
    # Each token attends to itself and to all before it: queries with keys, then weights with values.
    pairs = sampled.prompts * prompt**2 / 2 + sampled.completions * answer * (prompt + answer / 2)
    attention = 4 * heads_width(config) * config["num_hidden_layers"] * pairs
    return linear + attention + 2 * config["hidden_size"] * config["vocab_size"] * trained


def by_phase(config: Mapping[str, Any], sampled: Sampled) -> dict[str, float]:
    """Operations of a step without old or reference log-probabilities, as one update a batch and beta = 0 need none."""
    once = forward(config, sampled)
    return {"generate": once, "update": FORWARD_AND_BACKWARD * once}


def layer_parameters(config: Mapping[str, Any]) -> int:
    """Weights of all layers' matrices: queries, keys, values, output, and the gated feed-forward network's three."""
    width, queries = config["hidden_size"], heads_width(config)
    keys = queries // config["num_attention_heads"] * config["num_key_value_heads"]
    return config["num_hidden_layers"] * width * (2 * queries + 2 * keys + 3 * config["intermediate_size"])


def heads_width(config: Mapping[str, Any]) -> int:
    """Channels of all heads together."""
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return config["num_attention_heads"] * size
