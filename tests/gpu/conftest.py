"""Tests of a GPU, run by `make test-gpu`; `make test` hides a GPU from torch and leaves them out."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def gpu() -> None:
    """Skips the test where torch finds no GPU."""
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
