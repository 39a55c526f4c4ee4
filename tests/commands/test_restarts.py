"""When a run goes on by itself after a loss, and when it does not: a step that was done before is no progress."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

import groupwise
from groupwise.commands.train import train
from groupwise.commands.train.callbacks import StepRecord
from groupwise.commands.train.run import Run
from groupwise.commands.train.train import with_restarts
from groupwise.config import recipe, recipe_files
from groupwise.config.resolve import resolve, resolved_recipe
from groupwise.core.errors import ProcessLost, RunError
from groupwise.journal.journal import METRICS, Journal
from groupwise.rewards.pool.dispatch import LOSSES
from groupwise.rewards.zygote import Zygote
from tests.runs.tiny_runs import own_processes, tiny_run

WORKERS = "groupwise.rewards.pool.worker"

LOSS, REMEDY = "rank 1 of 2 ended: killed by SIGKILL", "go on from the newest checkpoint"


class Going:
    """A run that comes to one step after another, and loses a process behind each; after the last it ends well."""

    def __init__(self, place: Path, restarts: int, steps: Sequence[int]) -> None:
        self.folder, self.steps, self.reasons = place / "run", list(steps), [""]
        table = resolved_recipe(resolve(recipe.load("quickstart", {"placement.restarts": restarts})))
        Journal.create(self.folder, recipe_files.dump(table)).close()

    def __call__(self, reason: str = "") -> Run:
        self.reasons += [reason] * bool(reason)
        if not self.steps:
            return Run(self.folder, {"steps": 9})
        rows = [json.dumps({"step": step}) for step in range(1, self.steps.pop(0) + 1)]
        (self.folder / METRICS).write_text("".join(f"{row}\n" for row in rows))
        raise ProcessLost(LOSS, REMEDY)


def test_without_restarts_the_run_ends_in_the_line_of_its_loss(tmp_path: Path) -> None:
    going = Going(tmp_path, restarts=0, steps=[3])
    with pytest.raises(ProcessLost) as ended:
        with_restarts(going.folder, going, going)
    assert str(ended.value) == f"{LOSS}; {REMEDY}"
    assert going.reasons == [""]


def test_each_new_step_begins_the_count_again(tmp_path: Path) -> None:
    going = Going(tmp_path, restarts=1, steps=[0, 1, 2, 5])
    assert with_restarts(going.folder, going, going).finished
    assert going.reasons == ["", *[f"{LOSS}; restart 1 of 1 in a row"] * 4]


@pytest.mark.parametrize("steps", [[3, 3, 3, 3], [5, 3, 4, 9], [0, 0, 0, 9]])
def test_without_a_new_step_it_ends_after_as_many_as_the_recipe_says(tmp_path: Path, steps: list[int]) -> None:
    going = Going(tmp_path, restarts=2, steps=steps)
    with pytest.raises(RunError) as ended:
        with_restarts(going.folder, going, going)
    assert str(ended.value) == f"a process was lost 3 times in a row, the last of them: {LOSS}; {REMEDY}"
    assert going.reasons == ["", f"{LOSS}; restart 1 of 2 in a row", f"{LOSS}; restart 2 of 2 in a row"]
    assert len(going.steps) == 1


def test_a_run_that_a_person_wants_to_stop_is_not_gone_on_with(tmp_path: Path) -> None:
    going = Going(tmp_path, restarts=9, steps=[3])

    def first() -> Run:
        try:
            return going()
        except ProcessLost as lost:
            lost.final = True
            raise

    with pytest.raises(ProcessLost):
        with_restarts(going.folder, first, going)
    assert going.reasons == [""]


def test_a_loss_before_anything_happened_leaves_no_run_to_go_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(*_: object) -> None:
        raise ProcessLost(LOSS, REMEDY)

    monkeypatch.setattr(train, "build", lose)
    with pytest.raises(RunError) as ended:
        train.train("quickstart", {"runs": str(tmp_path), "placement.restarts": 9})
    assert str(ended.value) == f"{LOSS}; nothing was trained yet, so that no run is left to go on with"
    assert not list(tmp_path.glob("quickstart*"))


def test_what_is_no_loss_is_not_tried_again(tmp_path: Path) -> None:
    going = Going(tmp_path, restarts=9, steps=[])

    def first() -> Run:
        raise RunError("step 3: learner = engine is 0.3, limit 1e-4")

    with pytest.raises(RunError, match="learner = engine"):
        with_restarts(going.folder, first, going)
    assert going.reasons == [""]


@pytest.mark.parametrize("restarts", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_lost_maker_of_workers_ends_in_the_command_that_goes_on_or_is_gone_on_after(
    restarts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool, which knows no folder, says how it was lost, and the run how it is gone on with."""
    reward = tmp_path / "mine.py"
    reward.write_text("def mine(sample, completion):\n    return 0.5\n")
    own = {"rewards.mine.use": f"{reward}:mine", "scoring.workers": 1, "placement.restarts": restarts}
    losses: list[bool] = []

    def lost(record: StepRecord) -> None:
        """From now on whatever makes workers dies as often as the pool takes it, with those that are there."""
        if record.step == 1:
            losses.extend([True] * (LOSSES + 2))
            for pid in own_processes(WORKERS):
                os.kill(pid, signal.SIGKILL)

    def dying(self: Zygote, *given: object, **named: object) -> int:
        if losses:
            losses.pop()
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()
        return spawn(self, *given, **named)

    spawn = Zygote.spawn
    monkeypatch.setattr(Zygote, "spawn", dying)
    changes = {**tiny_run(tmp_path, name="run", steps=2), **own}
    if restarts:
        run = groupwise.train("quickstart", changes, callbacks=[lost], quiet=True)
        assert run.finished
        assert "restart 1 of 1 in a row" in (run.folder / "log.txt").read_text()
        return
    with pytest.raises(ProcessLost) as ended:
        groupwise.train("quickstart", changes, callbacks=[lost], quiet=True)
    command = f"groupwise train --resume {tmp_path}/runs/run"
    assert str(ended.value).startswith("rewards: the processes that score do not start: the process that starts them")
    assert str(ended.value).endswith(f"; resume the run to go on from its newest checkpoint: {command}")
