"""Tests of a GPU, run by `make test-gpu`; `make test` hides a GPU from torch and leaves them out."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def gpu() -> None:
    """Skips every test here where torch finds no GPU, before any fixture asks for one."""
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
