"""How large vLLM's cache of keys and values is made."""

from typing import Any

from groupwise.engines.vllm.heads import WIDTHS, head_channels, wide_enough
from groupwise.models.context import positions

MIB = 2**20
#: Most of a cache that is as large as the rows need.
MOST = 1024 * MIB
#: Tokens of a block; the last of a row is rarely full.
BLOCK = 128


def cache_bytes(config: Any, rows: int, cache_mib: int | None, itemsize: int, on_cpu: bool) -> int:
    """Size it as the recipe says; else as the rows need at their longest, up to MOST, but enough for two."""
    if cache_mib is not None:
        return cache_mib * MIB
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    own = head_channels(config)
    channels = own if own in WIDTHS or not on_cpu else wide_enough(own) or own
    token = 2 * config.num_hidden_layers * heads * channels * itemsize
    row = token * (positions(config) + BLOCK)
    return max(2 * row, min(rows * row, MOST))
