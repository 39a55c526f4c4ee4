"""A run of a mixture-of-experts policy: what replay brings to 0 as the run itself logs it, and what it goes on with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import groupwise
from groupwise.training import checkpoint
from tests.conftest import SMALL
from tests.moe_policy import save_moe
from tests.runs.test_run import assert_goes_on
from tests.runs.tiny_runs import step_rows

#: Longer than the suite's time allows; `make test-slow` has them.
pytestmark = pytest.mark.slow

#: Updates large enough that experts change, from a policy whose experts were not evened: some of them are near a tie.
MOE: dict[str, Any] = {
    "updates_per_batch": 4,
    "learner.learning_rate": 3e-3,
    "steps": 3,
    "warm_start.load_balance": 0.0,
}
RUNS: dict[str, dict[str, Any]] = {
    "none": {},
    "learner": {"routing.replay": "learner", "routing.load_balance": 0.1, "routing.z_loss": 0.01},
    "engine": {"routing.replay": "engine"},
    "once": {"updates_per_batch": 1, "algorithm.name": "dapo", "algorithm.filter.kind": "none"},
    "sampled": {"logp_old": "engine", "algorithm.kl.beta": 0.0},
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Overrides for a run from one warm-started policy, which the first run makes."""
    folder = tmp_path_factory.mktemp("moe")
    policy = save_moe(folder / "policy", initializer_range=0.1)
    return {**SMALL, **MOE, "runs": str(folder / "runs"), "model": str(policy)}


@pytest.fixture(scope="module")
def folders(base: dict[str, Any]) -> dict[str, Path]:
    return {name: groupwise.train("quickstart", {**base, **more, "name": name}).folder for name, more in RUNS.items()}


def layers(row: dict[str, Any], name: str) -> list[float]:
    return [row[f"{name}.layer_{layer}"] for layer in range(3)]


def test_without_replay_experts_change_and_are_used(folders):
    for row in step_rows(folders["none"]):
        assert row["routing.used_changed"] > 0
        assert max(layers(row, "routing.changed")) > 0
        assert row["routing.changed"] == pytest.approx(sum(layers(row, "routing.changed")) / 3)
        assert 0 < row["routing.changed_mean"] <= row["routing.changed"] + 0.1
        assert not any("removed" in key or "replayed" in key for key in row)
        assert "replayed routes are the ones used" not in row["checks"]
        assert row["log_ratio_variance_changed"] > 0
        assert row["log_ratio_variance_same"] > 0


@pytest.mark.parametrize("name", ["learner", "engine"])
def test_replay_brings_what_is_used_to_zero_while_the_routers_move_on(name, folders):
    for row in step_rows(folders[name]):
        assert row["routing.used_changed"] == 0
        assert row["checks"]["replayed routes are the ones used"]["verdict"] == "pass"
        assert row["routing.changed"] > 0
        assert min(layers(row, "routing.removed")) > 0
        assert row["routing.replayed_live_positions"] == 0, "rows are packed: each token that is computed has its route"
        assert ("routing.used_engine_changed" in row) == (name == "engine")
        assert row.get("routing.used_engine_changed", 0) == 0


def test_every_run_tells_the_load_and_whether_the_engine_agrees(folders):
    for name, folder in folders.items():
        for row in step_rows(folder):
            assert all(0 < value <= 1 for value in layers(row, "routing.load_entropy")), name
            assert all(1 < value <= 4 for value in layers(row, "routing.load_max")), name
            assert all(0 <= value < 8 for value in layers(row, "routing.dead_experts")), name
            assert all(value < 0.01 for value in layers(row, "routing.engine_changed")), name
            assert {check["verdict"] for check in row["checks"].values()} <= {"pass", "not measured"}, name


@pytest.mark.parametrize("name", ["once", "sampled"])
def test_where_no_pass_is_made_under_the_old_policy_there_is_no_drift(name, folders):
    for row in step_rows(folders[name]):
        assert not any(key.startswith(("routing.changed", "routing.used", "log_ratio_variance_")) for key in row)


def test_the_routers_losses_are_told_where_they_are_on(folders):
    for row in step_rows(folders["learner"]):
        assert 0.9 < row["balance_loss"] < 4
        assert row["z_loss"] > 0
    assert not any("balance_loss" in row or "z_loss" in row for row in step_rows(folders["none"]))


def test_the_plan_and_the_resolved_recipe_tell_the_routing(folders, base, capsys):
    told = groupwise.train("quickstart", {**base, **RUNS["learner"], "steps": 1, "name": "told"})
    words = capsys.readouterr().out
    assert 'routing      replay "learner", balance_loss x 0.1, z_loss x 0.01' in words
    assert "routing      3 layers, 2 of 8 experts a token" in words
    recipe = (told.folder / "recipe.toml").read_text()
    assert '[routing]\nreplay = "learner"\nload_balance = 0.1\nz_loss = 0.01' in recipe


@pytest.mark.parametrize(("replay", "name"), [("learner", "grpo"), ("engine", "dapo")])
def test_a_resumed_run_with_replay_gives_the_same_bits(replay, name, base):
    """With dapo groups wait for the next step, over the stop: their routes wait with them."""
    changes = {**base, "routing.replay": replay, "algorithm.name": name, "steps": 4, "samples_per_prompt": 6}
    whole = groupwise.train("quickstart", {**changes, "name": f"whole-{replay}", "checkpoint.keep": 4}).folder
    waiting = checkpoint.read_state(checkpoint.folder_of(whole / "checkpoints", 2))["stream"]["surplus"]
    assert bool(waiting) == (name == "dapo")
    assert all(c["routes"] for g in waiting for c in g["completions"])
    assert_goes_on(whole, 3)


def test_a_dense_run_says_nothing_of_routes(small):
    run = groupwise.train("quickstart", small(steps=1))
    text = (run.folder / "metrics.jsonl").read_text()
    assert "rout" not in text
    assert "log_ratio_variance_" not in text
    assert json.loads(text.splitlines()[1])["step"] == 1
