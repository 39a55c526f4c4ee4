"""The runs of docs/moe.md as rows of claims: all that are asked for, with their numbers, and those of today's recipes alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from groupwise.claims.claim import Effort
from groupwise.claims.moe_runs import RATES, RECIPES, finished, run

RUNS = Path(__file__).parents[2] / "docs" / "evidence" / "moe-stability.jsonl"


def test_every_seed_of_every_experiment_has_a_row() -> None:
    rows = list(finished(RUNS))
    expected = {(run(recipe, rate), seed) for recipe in RECIPES for rate in RATES for seed in range(3)}
    assert len(rows) == len(expected)
    assert {(row.experiment, row.fingerprint, row.seed) for row in rows} == {
        (experiment.name, experiment.fingerprint, seed) for experiment, seed in expected
    }
    assert all(seed in experiment.seeds_of(Effort.STANDARD) for experiment, seed in expected)


def test_a_row_has_the_numbers_of_its_run() -> None:
    of = {(row.experiment, row.seed): row for row in finished(RUNS)}
    for line in RUNS.read_text().splitlines():
        told = json.loads(line)
        if told["recipe"] == "gspo-r2" and told["settings"]:
            row = of[run("gspo-r2", 1e-3).name, told["seed"]]
            assert row.measured["heldout_end"] == pytest.approx(told["heldout"][-1][1], abs=1e-5)
            assert row.seconds == told["seconds"]


def test_a_run_of_another_recipe_or_of_other_settings_is_left_out(tmp_path: Path) -> None:
    told = json.loads(RUNS.read_text().splitlines()[3])
    grpo = next(json.loads(line) for line in RUNS.read_text().splitlines() if json.loads(line)["recipe"] == "grpo")
    changed = [{**grpo, "digest": "000000000000"}, {**grpo, "settings": ["steps=20"]}, {**told, "recipe": "twin-grpo"}]
    file = tmp_path / "runs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in [*changed, grpo]))
    assert [row.seed for row in finished(file)] == [grpo["seed"]]


def test_a_run_that_stopped_by_itself_has_failed(tmp_path: Path) -> None:
    grpo = next(json.loads(line) for line in RUNS.read_text().splitlines() if json.loads(line)["recipe"] == "grpo")
    file = tmp_path / "runs.jsonl"
    file.write_text(json.dumps({**grpo, "stopped": "step 12: gradients"}) + "\n")
    (row,) = finished(file)
    assert (row.error, row.measured) == ("step 12: gradients", {})
