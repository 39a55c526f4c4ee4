"""Every metric that rollouts.jsonl decides is what it says, and every one has its line in docs/reference/metrics.md."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import groupwise
from groupwise.journal.journal import read_metrics
from groupwise.reports.folder.sample import row_of
from tests.conftest import SMALL
from tests.laws.recompute import log_ratio, recomputed
from tests.moe_policy import save_moe

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"

PREFERENCE = {"pairs": 48, "heldout_pairs": 16, "epochs": 2, "batch_size": 16, "learning_rate": 3e-3}
#: What each run has that the others do not.
RUNS: dict[str, dict[str, Any]] = {
    "grpo": {},  # a KL in the loss, two updates on a batch
    "once": {"algorithm.kl.beta": 0.0, "updates_per_batch": 1},  # no old log-probabilities
    "dapo": {"algorithm.name": "dapo", "samples_per_prompt": 6, "steps": 5, "learner.learning_rate": 3e-3},
    "spent": {"algorithm.name": "dapo", "algorithm.filter.max_rounds": 1},  # groups without signal fill the batch
    "gspo": {"algorithm.name": "gspo"},
    "ppo": {"algorithm.name": "ppo"},  # four passes, a critic, a KL in the reward, scores of steps
    "turns": {"rollout.turn_tokens": 5, "steps": 5},  # tokens of several versions in a completion
    "episodes": {
        "task": {"name": "guess-number"},
        "sampling.stop": ["\n"],
        "sampling.max_new_tokens": 48,
        "warm_start.steps": 100,
    },
    "tis": {"algorithm.mismatch.kind": "tis"},
    "several": {"rewards.task": {}, "rewards.repetition": {"weight": 0.1}},
    "reward": {
        "algorithm.name": "dapo",
        "rewards.repetition": {"n": 1, "tokens": True},
    },  # measured by a reward, the task's score beside
    "learned": {"preference": PREFERENCE},
    "moe": {"warm_start.steps": 0, "routing.replay": "engine", "routing.load_balance": 0.01, "routing.z_loss": 0.01},
}

#: Keys of a step's row that its rollouts cannot decide, and why.
UNDECIDED = {
    "step": "the step itself",
    "loss": "the equation of the trust region, which is the algorithm's",
    "gradient_norm": "gradients are not written",
    "gradient_norm_max": "gradients are not written",
    "learning_rate": "the schedule's, a function of the count of updates",
    "updates_skipped": "a gradient that is not finite is not written",
    "rounds": "which groups came in which round is not written",
    "completions_going_on": "what has not ended has no line yet",
    "value_loss": "the critic's values during its updates are not written, only those before",
    "value_clipped_share": "the critic's values during its updates are not written, only those before",
    "critic_gradient_norm": "gradients are not written",
    "critic_updates_skipped": "a gradient that is not finite is not written",
    "balance_loss": "the routers' logits are not written",
    "z_loss": "the routers' logits are not written",
    "log_ratio_variance_changed": "routes are not written",
    "log_ratio_variance_same": "routes are not written",
    "checks": "they compare what is not written, such as the probe's answers",
    "seconds": "wall time",
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, warm_cache: Path) -> dict[str, Path]:
    runs = tmp_path_factory.mktemp("recomputed")
    (runs / ".cache").symlink_to(warm_cache)
    base = {**SMALL, "runs": str(runs), "steps": 3, "evaluation.problems": 4, "checkpoint.every": 9}
    models = {"moe": {"model": str(save_moe(runs / "policy"))}}
    return {
        name: groupwise.train("quickstart", {**base, **models.get(name, {}), **more, "name": name}).folder
        for name, more in RUNS.items()
    }


def steps(folder: Path) -> list[dict[str, Any]]:
    return [row for row in read_metrics(folder) if "rounds" in row]


@pytest.mark.parametrize("name", list(RUNS))
def test_every_metric_is_decided_by_the_rollouts_or_listed(name: str, folders: dict[str, Path]):
    folder = folders[name]
    recipe = tomllib.loads((folder / "recipe.toml").read_text())
    lines = [json.loads(line) for line in (folder / "rollouts.jsonl").read_text().splitlines()]
    waiting = 0
    for row in steps(folder):
        found = recomputed(row["step"], [r for r in lines if r["step"] == row["step"]], waiting, recipe)
        waiting = int(found["groups_surplus"])
        written = {key for key in row if not key.startswith("routing.")}  # routes are not written
        assert written - found.keys() <= UNDECIDED.keys(), "a metric that nothing recomputes"
        assert found.keys() <= row.keys(), "a metric that the run does not log"
        for key, value in found.items():
            logged = math.nan if row[key] is None else row[key]
            same = math.isnan(value) and math.isnan(logged)
            assert same or abs(value - logged) <= 1e-9 * max(1.0, abs(value)), (key, value, logged)


def test_a_log_ratio_that_is_live_minus_old_is_not_written_and_a_page_has_it_all_the_same(folders: dict[str, Path]):
    lines = {
        name: [json.loads(line) for line in (folders[name] / "rollouts.jsonl").read_text().splitlines()]
        for name in ("grpo", "gspo")
    }
    trained = {name: [row for row in rows if row.get("updates")] for name, rows in lines.items()}
    assert any("log_ratio" in row["updates"][-1] for row in trained["gspo"]), "a mean"
    for row in trained["gspo"]:
        last = row["updates"][-1]
        assert "log_ratio" in last or len(set(log_ratio(row, last["update"]))) == 1, "a mean of equal ones"
    assert not any("log_ratio" in update for row in trained["grpo"] for update in row["updates"])
    for row in trained["grpo"]:
        shown = row_of(row, Counter())
        assert shown is not None
        assert shown.columns["log_ratio"] == pytest.approx(log_ratio(row, row["updates"][-1]["update"]), rel=1e-6)
    assert any(any(log_ratio(row, row["updates"][-1]["update"])) for row in trained["grpo"])


def test_the_runs_show_what_they_are_for(folders: dict[str, Path]):
    """A metric that never moves would be equal however it is computed."""

    def most(name: str, key: str) -> float:
        return max(row[key] for row in steps(folders[name]) if row[key] is not None)

    assert most("dapo", "generated_tokens_dropped") > 0
    assert most("dapo", "groups_surplus") > 0
    assert most("dapo", "stale_rows_share") > 0
    assert most("spent", "groups_fallback") > 0
    assert min(row["share_passed"] for row in steps(folders["gspo"])) < 1
    assert any(row["explained_variance"] for row in steps(folders["ppo"])), (
        "0 where returns do not vary, below 0 elsewhere"
    )
    assert most("ppo", "updates") == 8
    assert most("grpo", "kl_mean") > 0
    assert most("tis", "correction_mean") > 0
    assert most("turns", "token_age_max") > 1 > min(row["token_age_mean"] for row in steps(folders["turns"]))
    assert most("episodes", "turns.3.alive_share") > 0 < most("episodes", "answer_tokens_mean")
    assert most("episodes", "engine_gap_of_limit_from_turn.2") > 0
    assert most("episodes", "turns.1.pass_rate") == 1, "only what is solved ends with the first turn"
    assert most("several", "rewards.repetition.spread_within_groups") >= 0
    assert most("learned", "learned_mean") != most("learned", "score_mean")
    assert most("reward", "groups_dropped") > 0
    assert most("reward", "measured_mean") < 0 < most("reward", "groups_signal_share") < 1
    assert most("grpo", "ratio_token_p99") > 1 > min(row["ratio_token_p01"] for row in steps(folders["grpo"]))
    assert most("moe", "routing.removed") > 0
    assert {row["ratio_token_p99"] for row in steps(folders["once"])} == {1.0}


def documented() -> re.Pattern[str]:
    """The names in the first cells of the page's tables; NAME, CAUSE, NUMBER and K stand for anything."""
    cells = re.findall(r"^\| ([^|]+) \|", DOCS.read_text(), re.MULTILINE)
    names = [name.strip().strip("`") for cell in cells for name in cell.split(",")]
    patterns = [re.sub(r"NAME|CAUSE|NUMBER|\bK\b", "[^ ]+", re.escape(name).replace(r"\ ", " ")) for name in names]
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns))


def logged(folder: Path) -> set[str]:
    """Every key of metrics.jsonl, nested ones dotted; checks and phases have names of their own."""
    found: set[str] = set()
    for row in read_metrics(folder):
        told = {**row, **{f"evaluation.{k}": v for k, v in row.get("evaluation", {}).items()}}
        found |= told.keys() - {"evaluation"}
    return found


def test_every_logged_key_has_a_line_in_the_glossary(folders: dict[str, Path]):
    known = documented()
    keys = {key.removeprefix("evaluation.") for folder in folders.values() for key in logged(folder)}
    assert len(keys) > 80
    assert {key for key in keys if not known.fullmatch(key)} == set()
    assert not known.fullmatch("no_such_metric")


def test_every_phase_and_every_key_of_a_rollout_has_a_line_too(folders: dict[str, Path]):
    known = documented()
    phases = {phase for folder in folders.values() for row in read_metrics(folder) for phase in row["seconds"]}
    lines = [json.loads(x) for f in folders.values() for x in (f / "rollouts.jsonl").read_text().splitlines()]
    keys = {key for line in lines for key in line}
    inside = {key for line in lines for key in line.get("per_token", {})}
    inside |= {key for line in lines for update in line.get("updates", []) for key in update}
    machine = {
        key for f in folders.values() for x in (f / "machine.jsonl").read_text().splitlines() for key in json.loads(x)
    }
    about = json.loads((folders["grpo"] / "about.json").read_text()).keys()
    assert {"logp_old", "value", "step_score", "correction", "weight", "kl"} <= inside
    assert {k for k in phases | keys | inside | machine | about if not known.fullmatch(k)} == set()
