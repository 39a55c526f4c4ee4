"""What early warnings of collapse do to a run: a stop that saves, or a return to a checkpoint from before them."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import groupwise
from groupwise.commands.train.run import Run
from groupwise.commands.train.train import resume
from groupwise.config import recipe, recipe_files
from groupwise.config.recipe import load
from groupwise.config.resolve import resolve
from groupwise.core.errors import RunError, UsageError
from groupwise.health.symptoms.base import BAD, WARN, History
from groupwise.health.watch import findings
from groupwise.journal.journal import Journal, read_metrics
from groupwise.journal.output import Output
from groupwise.reports.folder import facts
from groupwise.reports.folder.read import read
from groupwise.training import checkpoint
from groupwise.training.state import RunState
from tests.command_process import CommandProcess
from tests.runs.test_run import assert_same_run, timeless
from tests.runs.tiny_runs import cut_back, step_rows, tiny_run

#: A rate that rises until it ruins the policy, so that warnings begin in the middle of a run.
RISING: dict[str, Any] = {
    "steps": 24,
    "checkpoint.every": 3,
    "checkpoint.keep": 9,
    "learner.learning_rate": 0.1,
    "learner.warmup_updates": 96,
    "evaluation.every": 8,
    "reference.every": 5,
    "algorithm.kl.beta": 0.01,
}
#: Half of a rate is that rate's bits, shifted: the run after a return is one with a lower rate, exactly.
BACK: dict[str, Any] = {"guard": "rollback", "rollback.most": 2, "rollback.rate_factor": 0.5}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("guard")


@pytest.fixture(scope="module")
def given(place: Path) -> Callable[..., dict[str, Any]]:
    """Overrides of a run whose learning rate rises, in a place that all tests share."""
    return lambda name, **changes: {**tiny_run(place, name=name), **RISING, **changes}


@pytest.fixture(scope="module")
def warned(given) -> Path:
    return groupwise.train("quickstart", given("warned", **{"checkpoint.keep": 99})).folder


@pytest.fixture(scope="module")
def stopped(given) -> tuple[Path, str]:
    settings = given("stopped", guard="stop")
    with pytest.raises(RunError) as error:
        groupwise.train("quickstart", settings)
    return Path(settings["runs"]) / "stopped", str(error.value)


@pytest.fixture(scope="module")
def returned(given) -> Run:
    return groupwise.train("quickstart", given("returned", **{**BACK, "rollback.most": 9}))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*.safetensors")}


def test_a_stop_saves_and_says_why_where_and_how_to_go_on(stopped):
    folder, words = stopped
    step = checkpoint.steps(folder / "checkpoints")[-1]
    assert step == step_rows(folder)[-1]["step"] < 24
    assert words.startswith(f"an early warning of collapse at step {step}: ")
    assert "\n" not in words
    saved = checkpoint.folder_of(folder / "checkpoints", step)
    assert not checkpoint.damaged(saved)
    assert f"Saved: {saved}; from before the warning there is step-" in words
    before = int(words.partition("there is step-")[2][:6])
    assert before == (step - 10) // 3 * 3
    assert not checkpoint.damaged(checkpoint.folder_of(folder / "checkpoints", before))
    assert words.endswith(f"groupwise train --resume {folder}")
    assert f"error: {words}" in (folder / "log.txt").read_text()
    assert read(folder).status.words.startswith(f"failed after step {step} of 24: an early warning of collapse")


def test_a_run_that_stopped_and_goes_on_is_the_one_that_was_only_warned(stopped, warned, tmp_path):
    """It stops at the next warning that begins, and no later one is said in vain; a stop changes no bit."""
    folder = tmp_path / "stopped"
    shutil.copytree(stopped[0], folder)
    said: list[str] = []
    while not (folder / "summary.json").exists():
        try:
            resume(folder)
        except RunError as error:
            said.append(str(error))
        assert len(said) < 10
    assert all("an early warning of collapse" in words for words in said)
    assert timeless(folder) == timeless(warned)
    assert files(folder / "checkpoints" / "step-000024") == files(warned / "checkpoints" / "step-000024")


def test_the_command_says_it_in_one_line_and_fails(stopped, tmp_path):
    folder = tmp_path / "again"
    shutil.copytree(stopped[0], folder)
    cut_back(folder, step_rows(folder)[-1]["step"])
    done = CommandProcess("train", "--resume", str(folder))
    said = done.communicate()
    assert done.returncode == 1
    assert said.splitlines()[-1].startswith("groupwise: an early warning of collapse at step ")


@pytest.mark.slow
def test_after_a_return_the_learning_rate_alone_is_another(given, warned, tmp_path):
    """It goes on as the run that was only warned would have from that checkpoint at half of its rate."""
    settings = given("once", **{**BACK, "rollback.most": 1})
    with pytest.raises(RunError, match=r"after going back from step \d+ to \d+: "):
        groupwise.train("quickstart", settings)
    once = Path(settings["runs"]) / "once"
    ((first,), end) = returns(once), step_rows(once)[-1]["step"]
    other = tmp_path / "lower"
    shutil.copytree(warned, other)
    cut_back(other, first["to_step"] + 1)
    resume(other, {"learner.learning_rate": RISING["learner.learning_rate"] / 2})
    rows = [{k: v for k, v in row.items() if k != "rollbacks"} for row in timeless(once)]
    assert rows == [row for row in timeless(other) if row["step"] <= end]
    assert 0 < first["to_step"] <= first["from_step"] - 10
    assert first["to_step"] < end
    state = checkpoint.read_state(checkpoint.newest_good(once / "checkpoints")[0])
    assert state["rollbacks"] == [first]
    lines = (other / "rollouts.jsonl").read_text().splitlines()
    kept = [line for line in lines if json.loads(line)["step"] <= end]
    assert (once / "rollouts.jsonl").read_text().splitlines() == kept


def returns(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "about.json").read_text())["rolled_back"]


def test_a_return_is_told_in_the_log_the_metrics_the_summary_and_the_report(returned):
    folder, told = returned.folder, returned.summary["rollbacks"]
    assert told == returns(folder)
    assert told
    (first, *_) = told
    line = f"step {first['from_step']}: early warning of collapse ({', '.join(first['warnings'])}): back to step "
    assert (
        f"{line}{first['to_step']}, return 1 of at most 9; the learning rate is 0.5 times"
        in (folder / "log.txt").read_text()
    )
    rows = step_rows(folder)
    assert [row["step"] for row in rows] == list(range(1, 25))
    assert rows[0]["rollbacks"] == 0
    assert rows[-1]["rollbacks"] == len(told)
    (table, *_) = facts.tables(read(folder))
    words = [row[1] for row in table.rows if row[0] == "went back"]
    assert len(words) == len(told)
    assert words[0].startswith(f"from step {first['from_step']} to {first['to_step']}: {first['warnings'][0]}")
    assert {row["step"] for row in map(json.loads, (folder / "machine.jsonl").read_text().splitlines())} == set(
        range(1, 25)
    )


def test_the_seconds_of_steps_that_were_taken_back_are_not_lost(returned):
    rows = read_metrics(returned.folder)
    assert any(row["seconds"].get("lost", 0) > 0 for row in rows)
    total = sum(sum(row["seconds"].values()) for row in rows) + returned.summary["seconds_after"]
    assert total == pytest.approx(returned.summary["seconds_total"], rel=0.01, abs=0.05)


class Killed(BaseException):
    """As a process ends that is killed: nothing of the run hears of it."""


#: What a run does at a return, in this order: it may be killed before each, and in the step after.
MOMENTS = {
    "before later checkpoints go": (checkpoint, "remove_after"),
    "before the checkpoint is saved again": (RunState, "save"),
    "before rows are taken out": (Output, "cut_back"),
    "in the middle of that": (Journal, "cut_back"),
    "before it is said": (Output, "rolled_back"),
    "in the step after": (Output, "rollouts"),
}


#: The one that cuts into the return in the middle; the others are alike.
QUICK = ("in the middle of that",)


@pytest.mark.parametrize("moment", [pytest.param(m, marks=[] if m in QUICK else pytest.mark.slow) for m in MOMENTS])
def test_a_run_that_is_killed_at_a_return_is_resumed_as_the_same_run(
    moment: str, given, returned, monkeypatch: pytest.MonkeyPatch
):
    kind, method = MOMENTS[moment]
    settings = given(f"killed {moment}".replace(" ", "-"), **{**BACK, "rollback.most": 9})
    folder = Path(settings["runs"]) / settings["name"]
    with monkeypatch.context() as patched:
        going_back = armed(patched)
        real = getattr(kind, method)

        def deadly(*args: Any, **kwargs: Any) -> Any:
            if going_back:
                raise Killed
            return real(*args, **kwargs)

        patched.setattr(kind, method, deadly)
        with pytest.raises(Killed):
            groupwise.train("quickstart", settings)
    done = resume(folder)
    assert_same_run(folder, returned.folder)
    assert done.summary["rollbacks"] == returned.summary["rollbacks"] == returns(folder)
    last = "checkpoints/step-000024"
    assert files(folder / last) == files(returned.folder / last)


def armed(patched: pytest.MonkeyPatch) -> list[bool]:
    """Empty until a run goes back for the first time."""
    going_back: list[bool] = []
    real = RunState.restore

    def restore(self: RunState, folder: Path, rollbacks: Any = None) -> Any:
        if rollbacks is not None:
            going_back.append(True)
        return real(self, folder, rollbacks)

    patched.setattr(RunState, "restore", restore)
    return going_back


@pytest.mark.slow
def test_a_stop_that_a_person_asks_for_moves_no_return(given, returned):
    """Its checkpoint is an extra one: it is gone on from, and takes no other's place."""
    settings = given("asked", **{**BACK, "rollback.most": 9})
    run = groupwise.train("quickstart", settings, callbacks=[lambda record: record.step == 14])
    resume(run.folder)
    assert_same_run(run.folder, returned.folder)


def test_a_warning_with_no_checkpoint_from_before_it_returns_to_the_start(given):
    settings = given("early", **{**BACK, "learner.warmup_updates": 0, "rollback.rate_factor": 1e-6, "steps": 8})
    run = groupwise.train("quickstart", settings)
    assert [(one["to_step"], one["rate_factor"]) for one in run.summary["rollbacks"]] == [(0, 1e-6)]
    evaluations = [row["step"] for row in read_metrics(run.folder) if "evaluation" in row]
    assert evaluations == [0, 8]
    with pytest.raises(UsageError, match=r"is after step 8 already"):
        resume(run, {"steps": 7})


def test_without_a_good_checkpoint_from_before_it_stops(given, monkeypatch: pytest.MonkeyPatch):
    settings = given("damaged", **BACK)

    def spoil(record: Any) -> None:
        for step in checkpoint.steps(record.folder / "checkpoints"):
            (checkpoint.folder_of(record.folder / "checkpoints", step) / checkpoint.MANIFEST).unlink(missing_ok=True)

    with pytest.raises(
        RunError, match=r"an early warning of collapse at step .*; none from before the warning is kept"
    ):
        groupwise.train("quickstart", settings, callbacks=[spoil])


def test_another_guard_may_be_chosen_when_a_run_goes_on(returned, tmp_path):
    """Its own section goes with the guard that reads it, and the rate stays what the returns have made of it."""
    folder = tmp_path / "again"
    shutil.copytree(returned.folder, folder)
    factor = 0.5 ** len(returned.summary["rollbacks"])
    resume(folder, {"guard": "warn", "steps": 25, "learner.learning_rate": 0.01, "learner.warmup_updates": 0})
    assert "rollback" not in recipe_files.read_table(folder / "recipe.toml")
    assert step_rows(folder)[-1]["learning_rate"] == pytest.approx(0.01 * factor)
    assert f"the learning rate of the next update is {0.01 * factor:.3g}, and" in (folder / "log.txt").read_text()
    resume(folder, {"guard": "rollback", "rollback.most": 5, "steps": 26})
    assert recipe_files.read_table(folder / "recipe.toml")["rollback"] == {"most": 5, "rate_factor": 0.3}


def every_and_keep() -> Iterator[tuple[int, int]]:
    for every in range(1, 14):
        yield every, next(keep for keep in range(1, 20) if accepted(every, keep))


def accepted(every: int, keep: int) -> bool:
    try:
        resolve(recipe.load("quickstart", {"guard": "rollback", "checkpoint.every": every, "checkpoint.keep": keep}))
    except UsageError:
        return False
    return True


@pytest.mark.parametrize(("every", "keep"), list(every_and_keep()))
def test_the_fewest_checkpoints_that_are_accepted_always_reach_back(every: int, keep: int):
    """At each step, of those that are kept one is from ten steps before, or from the start; one fewer is too few."""

    def reaches(kept: int) -> bool:
        made: list[int] = [0]
        for step in range(1, 60):
            if not any(one <= max(0, step - 10) for one in made):
                return False
            made = [*made, *([step] if step % every == 0 else [])][-kept:]
        return True

    assert reaches(keep)
    assert keep == 1 or not reaches(keep - 1)


def warnings(folder: Path) -> list[str]:
    return re.findall(r"^step \d+: warning, ([^:]+): ", (folder / "log.txt").read_text(), re.MULTILINE)


def test_a_learning_rate_of_a_tenth_is_named(small: Callable[..., dict[str, Any]], capsys) -> None:
    settings = small(learner__learning_rate=0.1, steps=6, name="wild")
    with contextlib.suppress(RunError):  # three updates in a row that are not finite end it, which is as good
        groupwise.train("quickstart", settings)
    folder = Path(settings["runs"]) / "wild"
    told = warnings(folder)
    assert "few effective samples" in told
    assert len(told) == len(set(told))
    shown = capsys.readouterr().out
    assert all(f"warning, {name}: " in shown for name in told)
    assert "learner.learning_rate = 3e-02 (it is 0.1)" in shown
    recipe = load(str(folder / "recipe.toml")).model_dump(exclude_none=True)
    rows = [row for row in read_metrics(folder) if "evaluation" not in row]
    found = {f.name for f in findings(History(rows, recipe=recipe)) if f.tone in (WARN, BAD)}
    assert "few effective samples" in found
