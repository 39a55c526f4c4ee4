"""What costs nothing: an update in which nothing can train, a probe that is not due, a run after a run."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

import groupwise
from groupwise.core.machine.free_memory import give_back, held_memory
from groupwise.health.checks import ENGINE_IS_LOADED, LEARNER_IS_ENGINE, LIVE_IS_OLD
from groupwise.training.learner import Learner
from tests.conftest import SMALL
from tests.runs.test_run import weights
from tests.runs.tiny_runs import step_rows, tiny_run


@pytest.mark.parametrize("updates", [1, 2])
def test_a_step_in_which_nothing_can_train_runs_one_row_of_the_first_update_and_says_so(
    updates: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own.py"  # alone in its file, as who scores imports what stands beside it
    own.write_text("def same(sample, completion):\n    return 0.5\n")
    changes = tiny_run(tmp_path, updates_per_batch=updates, algorithm__kl__beta=0.0, evaluation__problems=1)
    changes["rewards.same.use"] = f"{own}:same"
    rows, real = [], Learner._forward

    def counted(learner: Learner, model: Any, micro: Any, *bonus: bool) -> Any:
        rows.append(len(micro.index))
        return real(learner, model, micro, *bonus)

    monkeypatch.setattr(Learner, "_forward", counted)
    learned = Learner.update

    def update(learner: Learner, *given: Any) -> Any:
        rows.clear()
        done = learned(learner, *given)
        ran.append(list(rows))
        return done

    ran: list[list[int]] = []
    monkeypatch.setattr(Learner, "update", update)
    run = groupwise.train("quickstart", changes)
    assert ran == [[1]] + [[]] * (2 * updates - 1)
    for row in step_rows(run.folder):
        assert (row["gradient_norm"], row["loss"], row["updates"]) == (0, 0, updates)
        assert row["groups_signal_share"] == 0
        assert row["share_passed"] is None
        assert "entropy_mean" not in row
        verdicts = {name: check["verdict"] for name, check in row["checks"].items()}
        assert verdicts[LIVE_IS_OLD.name] == "not measured"
        assert verdicts[LEARNER_IS_ENGINE.name] == ("not measured" if updates == 1 else "pass")


def test_how_often_the_probe_is_asked_changes_nothing_but_what_it_says(tmp_path: Path) -> None:
    found = {}
    for every in (1, 3):
        changes = tiny_run(tmp_path, steps=7, name=f"probe-{every}", checks__probe_every=every)
        found[every] = groupwise.train("quickstart", changes).folder
    asked = {
        every: [row["step"] for row in step_rows(folder) if row["checks"][ENGINE_IS_LOADED.name]["verdict"] == "pass"]
        for every, folder in found.items()
    }
    assert asked == {1: [1, 2, 3, 4, 5, 6, 7], 3: [1, 2, 3, 4, 6]}
    one, other = found[1], found[3]
    assert (one / "rollouts.jsonl").read_bytes() == (other / "rollouts.jsonl").read_bytes()
    assert {name: w.tolist() for name, w in weights(one).items()} == {n: w.tolist() for n, w in weights(other).items()}

    def numbers(row: dict[str, Any]) -> dict[str, Any]:
        checks = {name: check for name, check in row["checks"].items() if name != ENGINE_IS_LOADED.name}
        return {**row, "checks": checks, "seconds": None}

    assert [numbers(row) for row in step_rows(one)] == [numbers(row) for row in step_rows(other)]


@pytest.mark.slow
def test_thirty_runs_in_one_process_hold_no_more_than_one(tmp_path: Path) -> None:
    """`groupwise.train` with a warm start and evaluations; what one run leaves is let go by the next."""
    changes = {**SMALL, "steps": 2, "runs": str(tmp_path), "journal.report": True}
    held = []
    for _ in range(30):
        assert groupwise.train("quickstart", changes).finished
        gc.collect()
        give_back()
        held.append(held_memory("cpu") / 2**20)
    print(f"MiB after each of 30 runs: {' '.join(f'{each:.0f}' for each in held)}")
    assert held[-1] - held[0] < 100
