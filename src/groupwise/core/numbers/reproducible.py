"""Reproducible bits on a GPU, which adds up sums in the order in which threads arrive."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch.utils import deterministic

#: What cuBLAS reads before its first product, and a value under which torch lets it compute in deterministic mode.
CUBLAS_WORKSPACE, ONE_ORDER = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
#: torch's own settings of the mode: it also fills what is allocated, which costs time and changes nothing.
MODE: Any = deterministic


def prepare(device: torch.device | str) -> None:
    """Prepare a device before its first product; what a person has set for cuBLAS stays."""
    if torch.device(device).type == "cuda":
        os.environ.setdefault(CUBLAS_WORKSPACE, ONE_ORDER)


@contextmanager
def reproducible(device: torch.device | str, wanted: bool = True) -> Iterator[None]:
    """Add gradients up in one order inside, on a GPU, so that a run that is taken up again has the same bits.

    A CPU does so in any case. Where it is not wanted, or cuBLAS was set up otherwise before, nothing changes, and bits
    may differ.
    """
    if not wanted or torch.device(device).type != "cuda" or not _has_one_order():
        yield
        return
    before, fills = torch.are_deterministic_algorithms_enabled(), MODE.fill_uninitialized_memory
    _set(one_order=True, fills=False)
    try:
        yield
    finally:
        _set(one_order=before, fills=fills)


def _set(one_order: bool, fills: bool) -> None:
    torch.use_deterministic_algorithms(one_order)
    MODE.fill_uninitialized_memory = fills


@cache
def _has_one_order() -> bool:
    """Try whether torch multiplies on the GPU in deterministic mode: it depends on what cuBLAS read at its start."""
    prepare("cuda")
    before, one = torch.are_deterministic_algorithms_enabled(), torch.ones(1, 1, device="cuda")
    torch.use_deterministic_algorithms(True)
    try:
        return bool((one @ one).isfinite())
    except RuntimeError:
        return False
    finally:
        torch.use_deterministic_algorithms(before)
