"""Random streams by name, so that nothing has to be saved: the same names give the same stream in every process."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def derive(*names: int | str) -> int:
    """A 63-bit seed that depends on the names alone: derive(run seed, "minibatches", step)."""
    text = "\x1f".join(map(str, names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def stream(*names: int | str) -> torch.Generator:
    """A generator of its own for these names."""
    import torch  # tasks and the processes that score draw seeds without it

    return torch.Generator().manual_seed(derive(*names))
