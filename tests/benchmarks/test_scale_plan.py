"""`groupwise plan` beside a run over two ranks: memory is near what each rank held."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture
def scale(module: Any) -> ModuleType:
    return module("scale_plan")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["2 layers of 64, 64 x 8", "8 layers of 512, 16 x 8", "8 layers of 512, reward model"])
def test_ranks_hold_what_their_plan_says(scale: ModuleType, tmp_path: Path, name: str) -> None:
    scale.make_models(tmp_path)
    settings = {**scale.COMMON, **scale.shapes(tmp_path, None)[name], "name": "measured"}
    plan = scale.result_of("--planned", json.dumps(settings))
    seen = scale.result_of("--run", str(tmp_path / "runs"), json.dumps(settings))
    for rank in ("rank 0", "rank 1"):
        planned, measured = seen[rank]
        assert planned == pytest.approx(measured, rel=0.1), rank
    for phase, seconds in plan.items():
        assert (seconds > 0) == (seen["seconds"][phase] > 0), phase


def test_published_figures_are_met_within_a_quarter(module: Any) -> None:
    """Tokens a second of FSDP2 on 8 to 128 GPUs, two models and two devices, as others have them."""
    published = module("scale_published")
    for row in published.ROWS:
        assert published.tokens_per_second(row) == pytest.approx(row.tokens, rel=0.25), row
