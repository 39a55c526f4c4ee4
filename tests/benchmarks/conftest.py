"""The benchmarks: programs beside the package, whose modules are imported by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    for folder in ("trl", "."):
        monkeypatch.syspath_prepend(str(BENCHMARKS / folder))
    return importlib.import_module
