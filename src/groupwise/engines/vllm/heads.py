"""Heads as vLLM computes them, and how large its cache of their keys and values is made.

Heads with more channels, the added ones 0, for the same model: vLLM's attention on a CPU has none of fewer than 32.

H channels become W = s H. Channel j of the first half goes to s j, channel H/2 + j of the second to W/2 + s j:

    rotary angles   channels j and H/2 + j turn by theta^(-2j/H) a position; in W channels those at s j turn by
                    theta^(-2 s j/(s H)), which is the same
    products        q . k and the weighted values stay as they are, for zeros add nothing
    the scale       is 1/sqrt(W) in place of 1/sqrt(H): queries are sqrt(s) times as large
    a norm of heads (Qwen3's q_norm, k_norm) divides by the root of a mean over W, which is that over H less a factor of
                    sqrt(s): its weights are divided by sqrt(s). Its eps then counts s times, 1e-6 beside a mean of
                    squares near 1
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from groupwise.core.errors import UsageError
from groupwise.models.context import positions

#: Channels of a head that vLLM 0.32 computes on a CPU.
WIDTHS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
MIB = 2**20
#: Bytes of a cache that is as large as the rows need, at most; tokens of a block, of which a row's last is rarely full.
MOST, BLOCK = 1024 * MIB, 128
#: Architectures whose heads are told apart by the names below, with the plain rotary angles.
KNOWN = frozenset({"llama", "mistral", "qwen2", "qwen3", "qwen3_moe"})


@dataclass(frozen=True)
class Widening:
    """Widening of heads from `narrow` channels to `wide`.

    normed  whether queries and keys go through a norm of heads

    >>> Widening(narrow=4, wide=8, normed=False).places.tolist()
    [0, 2, 4, 6]
    """

    narrow: int
    wide: int
    normed: bool

    @property
    def factor(self) -> int:
        """s = W / H."""
        return self.wide // self.narrow

    @property
    def places(self) -> Tensor:
        """[H] where each channel goes."""
        half = torch.arange(self.narrow // 2) * self.factor
        return torch.cat([half, half + self.wide // 2])

    def __call__(self, name: str, tensor: Tensor) -> Tensor:
        """Map a parameter of the model -> that of the wide one, by the end of its name."""
        module = name.split(".")[-2] if "." in name else name
        change = self._changes.get(module)
        return tensor if change is None else change(tensor)

    @property
    def _changes(self) -> Mapping[str, Callable[[Tensor], Tensor]]:
        root = math.sqrt(self.factor)
        return {
            "q_proj": lambda t: self._rows(t) * (1.0 if self.normed else root),
            "k_proj": self._rows,
            "v_proj": self._rows,
            "o_proj": self._columns,
            "q_norm": self._rows,  # divided by sqrt(s) for the norm, times sqrt(s) for the scale
            "k_norm": lambda t: self._rows(t) / root,
        }

    def _rows(self, tensor: Tensor) -> Tensor:
        """Map [heads * H, ...] -> [heads * W, ...]"""
        heads = tensor.reshape(-1, self.narrow, *tensor.shape[1:])
        wide = heads.new_zeros(len(heads), self.wide, *tensor.shape[1:])
        wide[:, self.places] = heads
        return wide.flatten(0, 1)

    def _columns(self, tensor: Tensor) -> Tensor:
        """Map [channels, heads * H] -> [channels, heads * W]; a bias [channels] stays."""
        return tensor if tensor.ndim == 1 else self._rows(tensor.T).T


def head_channels(config: Any) -> int:
    """Return H of a model."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def wide_enough(narrow: int) -> int | None:
    """Return the fewest channels among WIDTHS that hold heads of H, W = s H; None if there are none."""
    return next((width for width in WIDTHS if width % narrow == 0), None)


def widening_for(config: Any) -> Widening | None:
    """Tell what a model needs for its heads to be among WIDTHS; None if they are.

    Raises UsageError for a model whose heads cannot be widened.
    """
    narrow = head_channels(config)
    if narrow in WIDTHS:
        return None
    wide = wide_enough(narrow)
    rope = getattr(config, "rope_parameters", None) or {}
    plain = rope.get("rope_type", "default") == "default" and rope.get("partial_rotary_factor", 1.0) == 1.0
    if wide is None or not plain or config.model_type not in KNOWN:
        raise UsageError(
            f"engine.name = 'vllm': on a CPU it computes heads of {', '.join(map(str, WIDTHS))} channels, and this "
            f"{config.model_type} has {narrow}; take engine.name = 'local'"
        )
    return Widening(narrow, wide, normed=config.model_type.startswith("qwen3"))


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
