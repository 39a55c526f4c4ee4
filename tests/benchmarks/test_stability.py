"""The runner of the stability experiment: what counts as a collapse, and which runs are run again."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import tomli_w

from tests.conftest import SMALL

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def stability(module: Any) -> ModuleType:
    return module("stability")


def row(*rates: float, **more: Any) -> dict[str, Any]:
    return {"heldout": [[10 * at, rate] for at, rate in enumerate(rates)], "stopped": "", "curves": {}, **more}


def test_a_collapse_is_a_fall_from_the_runs_own_best_or_a_stop(stability: ModuleType) -> None:
    assert not stability.collapsed(row(0.5, 0.9, 0.76))
    assert stability.collapsed(row(0.5, 0.9, 0.74))
    assert not stability.collapsed(row(0.5, 0.1, 0.5)), "it came back"
    assert stability.collapsed(row(0.5, 0.9, 0.9, stopped="step 12: gradients"))
    flat = row(0.5, 0.44, 0.4)
    assert not stability.collapsed(flat)
    assert stability.below_start(flat)


def test_a_number_is_the_mean_over_seeds_and_its_span(stability: ModuleType) -> None:
    rows = [row(0.5, rate, recipe="grpo", seed=seed) for seed, rate in enumerate((0.6, 0.3, 0.9))]
    assert stability.spread(rows, stability.end, ".2f") == "0.60 (0.30 to 0.90)"
    assert stability.spread(rows, stability.over("entropy_mean"), ".2f") == ""
    curved = [row(0.5, curves={"entropy_mean": [9.0] * 5 + [None] + [1.0] * 9})]
    assert stability.spread(curved, stability.last("entropy_mean"), ".1f") == "1.0 (1.0 to 1.0)"


def test_rows_of_another_text_or_other_settings_are_other_runs(stability: ModuleType, tmp_path: Path) -> None:
    recipe, file = tmp_path / "grpo.toml", tmp_path / "rows.jsonl"
    recipe.write_text("steps = 2\n")
    made = {"recipe": "grpo", "digest": stability.digest(recipe), "settings": ["a=1"], "seed": 0}
    file.write_text("".join(json.dumps(row(0.5, **{**made, **other})) + "\n" for other in ({"seed": 1}, {})))
    assert [r["seed"] for r in stability.current(file, [recipe], ["a=1"])] == [0, 1]
    assert stability.current(file, [recipe], []) == []
    recipe.write_text("steps = 3\n")
    assert stability.current(file, [recipe], ["a=1"]) == []


def test_what_is_committed_is_whole(stability: ModuleType) -> None:
    """Every condition of docs/howto/moe.md has its three seeds, no run stopped by itself, and replay was used."""
    recipes = stability.recipes()
    file = BENCHMARKS.parent / "docs" / "evidence" / "moe-stability.jsonl"
    rows = stability.current(file, recipes, [])
    assert [(r["recipe"], r["seed"]) for r in rows] == [(p.stem, seed) for p in recipes for seed in (0, 1, 2)]
    for found in rows:
        assert found["stopped"] == ""
        if found["recipe"].endswith(("-r2", "-r3")):
            assert set(found["curves"]["routing.used_changed"]) == {0}


@pytest.mark.slow
def test_a_run_with_its_row_is_not_run_again(
    stability: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    table: dict[str, Any] = {"model": "tiny-dense", "algorithm": {"name": "grpo"}}
    for key, value in SMALL.items():
        section, _, name = key.rpartition(".")
        (table.setdefault(section, {}) if section else table)[name] = value
    table["task"]["name"] = "arithmetic"
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "small.toml").write_text(tomli_w.dumps(table))
    file = tmp_path / "rows.jsonl"
    for _ in range(2):
        stability.main(file, tmp_path / "recipes", "0,1", tmp_path / "runs", 2)
        assert len(file.read_text().splitlines()) == 2
    assert capfd.readouterr().out.count("held out 0.") == 2
