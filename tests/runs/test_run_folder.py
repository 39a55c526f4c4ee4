"""The run folder under hostile conditions: begun whole or not at all, gone on with wherever it lies, damaged or not."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

import groupwise
import groupwise.commands.train.train as starts
from groupwise.commands.evaluate import evaluate_policies
from groupwise.commands.train import ending
from groupwise.commands.train.train import resume
from groupwise.core.code.unexpected import save_traceback
from groupwise.core.errors import GroupwiseError, RunError, UsageError
from groupwise.core.records import Evaluation
from groupwise.journal.journal import Journal, read_about, read_metrics, sound_metrics
from groupwise.journal.kept import create_recipe, whole_recipe
from groupwise.training import checkpoint
from tests.reports.test_report_place import full_disk, snapshot
from tests.runs.test_run import weights
from tests.runs.tiny_runs import tiny_run


def test_a_full_disk_while_the_recipe_is_written_leaves_the_name_free(small) -> None:
    changes = small(name="mine", steps=1)
    with full_disk(100), pytest.raises(UsageError, match=r"mine: the run folder cannot be made: File too large"):
        groupwise.train("quickstart", changes)
    assert os.listdir(changes["runs"]) == [".cache"]


@pytest.mark.parametrize("at", ["touch", "rename"])
def test_a_disk_that_refuses_at_any_moment_leaves_nothing(at: str, tmp_path: Path, monkeypatch) -> None:
    def refuse(*given: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Path, at, refuse)
        with pytest.raises(UsageError, match="the run folder cannot be made: No space left on device"):
            Journal.create(tmp_path / "run", "steps = 1\n")
    assert list(tmp_path.iterdir()) == []
    Journal.create(tmp_path / "run", "steps = 1\n").close()
    assert "\nsteps = 1\n" in (tmp_path / "run" / "recipe.toml").read_text()


@pytest.mark.parametrize("there", ["file", "link", "fifo", "folder"])
def test_whatever_has_the_name_keeps_it(there: str, tmp_path: Path) -> None:
    path = tmp_path / "run"
    {
        "file": path.touch,
        "link": lambda: path.symlink_to("nowhere"),
        "fifo": lambda: os.mkfifo(path),
        "folder": path.mkdir,
    }[there]()
    before = snapshot(tmp_path)
    with pytest.raises(UsageError, match="exists already"):
        Journal.create(path, "")
    assert snapshot(tmp_path) == before


ENDS = [
    UsageError("no"),
    RunError("no"),
    RuntimeError("Overflow when unpacking long"),
    OSError("x"),
    KeyboardInterrupt(),
]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: type(end).__name__)
def test_a_run_that_could_not_be_built_leaves_no_folder_and_a_resumed_one_keeps_its(
    end: BaseException, small, monkeypatch
) -> None:
    def refuse(*given: object) -> None:
        raise end

    changes = small(name="mine")
    monkeypatch.setattr(starts, "build", refuse)
    with pytest.raises(type(end)):
        groupwise.train("quickstart", changes)
    assert os.listdir(changes["runs"]) == [".cache"]
    folder = Path(changes["runs"]) / "mine"
    Journal.create(folder, 'steps = 1\nname = "x"\n[task]\nname = "arithmetic"\n[algorithm]\nname = "grpo"\n').close()
    with pytest.raises(type(end)):
        resume(folder)
    assert (folder / "recipe.toml").is_file()


def test_an_about_that_cannot_be_written_leaves_no_folder(small, monkeypatch) -> None:
    def refuse(*given: object) -> None:
        raise RunError("about.json: cannot be written: No space left on device")

    changes = small(name="mine")
    monkeypatch.setattr(Journal, "replace", refuse)
    with pytest.raises(RunError, match=r"about\.json"):
        groupwise.train("quickstart", changes)
    assert os.listdir(changes["runs"]) == [".cache"]


def test_a_run_goes_on_wherever_it_lies_and_whatever_it_is_called(small, capfd) -> None:
    """Its name is no recipe's, and would steer a terminal; beside its checkpoints lies what others put there."""
    run = groupwise.train("quickstart", small(steps=2))
    last, good = weights(run.folder), read_metrics(run.folder)
    folder = run.folder.parent / "a run [" / "x] \x1b[31m"
    folder.parent.mkdir()
    (folder.parent / ".cache").symlink_to(run.folder.parent / ".cache")
    run.folder.rename(folder)
    inside = folder / "checkpoints"
    (inside / "step-000002" / checkpoint.MANIFEST).write_text("{}")
    for name in ("step-000003.bak", "step-x", ".partial-step-000002", "step-000009.tmp"):
        (inside / name).mkdir()
    (inside / "step-000004").symlink_to(inside / "step-000001")
    capfd.readouterr()
    done = resume(folder)
    assert done.folder == folder
    assert done.summary["name"] == folder.name
    assert all(torch.equal(last[name], tensor) for name, tensor in weights(folder).items())
    assert [row["step"] for row in read_metrics(folder)] == [row["step"] for row in good]
    assert evaluate_policies([str(folder)]).evaluation.avg_at_k == done.summary["heldout_after"]
    told = "".join(capfd.readouterr())
    assert "\x1b[31m" not in told
    assert r"a run [/x] \x1b[31m" in told
    assert (inside / "step-000003.bak").is_dir()
    # Damaged in every checkpoint: what evaluation falls back from is said, and then that there is none.
    for step in checkpoint.steps(inside):
        (checkpoint.folder_of(inside, step) / checkpoint.STATE).write_text("{}")
    with pytest.raises(UsageError, match="no checkpoint in it"):
        evaluate_policies([str(folder)])
    assert "step-000001 is damaged (state.json does not match its hash)" in capfd.readouterr().err


def rows_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".jsonl", ".json")}


def test_a_run_that_has_lost_its_checkpoints_is_not_made_again_over_its_rows(small) -> None:
    """A copy without them, one that was cut off, a disk that damaged all, or a run that a person stopped early."""
    run = groupwise.train("quickstart", small(steps=2, checkpoint__keep=2))
    inside, log, whole = run.folder / "checkpoints", run.folder / "log.txt", rows_of(run.folder)
    for step in checkpoint.steps(inside):
        (checkpoint.folder_of(inside, step) / checkpoint.STATE).write_text("{}")
    with pytest.raises(UsageError, match=r"no checkpoint of it is good \(.*step-000002 is damaged \(state.json "):
        resume(run.folder)
    assert checkpoint.steps(inside) == [1, 2]
    for gone in (lambda: shutil.rmtree(inside), inside.mkdir, (inside / ".partial-step-000001").mkdir):
        gone()
        with pytest.raises(UsageError, match=r"its checkpoints are gone, and all 2 steps in metrics\.jsonl ") as told:
            resume(run.folder)
        assert "\n" not in str(told.value)
    (run.folder / "summary.json").unlink()
    with pytest.raises(UsageError, match="its checkpoints are gone"):
        resume(run.folder, {"steps": 3})
    assert rows_of(run.folder) == {name: data for name, data in whole.items() if name != "summary.json"}
    # As far as a run can come that is killed inside its first save.
    with closing(Journal(run.folder)) as book:
        book.cut_back(1)
    words = log.read_text()
    for saved in ("stopped after step 1, saved; go on with: ", "error: an early warning of collapse. Saved: step-1"):
        log.write_text(f"{words}{saved}\n")
        with pytest.raises(UsageError, match="its checkpoints are gone, and all 1 steps"):
            resume(run.folder)
    log.write_text(words)
    assert resume(run.folder).finished
    assert "was ended before its first checkpoint: the 1 steps in metrics.jsonl are made again" in log.read_text()
    assert (run.folder / "rollouts.jsonl").read_bytes() == whole["rollouts.jsonl"]


def test_whatever_says_that_a_run_had_steps_keeps_it_from_being_made_again_over_them(tmp_path: Path) -> None:
    """A copy that was cut off lacks any of its files; what is left of its steps is refused for, and not touched."""
    run = groupwise.train("quickstart", tiny_run(tmp_path)).folder
    rows = ("metrics.jsonl", "rollouts.jsonl", "heldout.jsonl", "heldout_problems.jsonl", "machine.jsonl")
    lacks = {
        "rollouts.jsonl": ("metrics.jsonl", "summary.json", "log.txt", "checkpoints"),
        "summary.json": (*rows, "log.txt", "checkpoints"),
        "machine.jsonl": (*(name for name in rows if name != "machine.jsonl"), "summary.json", "checkpoints"),
        "metrics.jsonl": ("about.json", "summary.json", "log.txt", "checkpoints"),
        "checkpoints": (*rows, "summary.json", "log.txt"),
    }
    for where, names in lacks.items():
        copy = shutil.copytree(run, tmp_path / where)
        for name in names:
            shutil.rmtree(copy / name) if name == "checkpoints" else (copy / name).unlink()
        for state in (copy / "checkpoints").glob("*/state.json"):
            state.write_text("{")
        left = rows_of(copy)
        with pytest.raises(UsageError, match=rf"all 2 steps in {re.escape(where)} would be made again") as told:
            resume(copy, {"checkpoint.every": 50})
        assert "put a copy of checkpoints/ back, or begin a new run: groupwise train " in str(told.value)
        assert rows_of(copy) == left


def test_every_sign_of_a_checkpoint_that_is_gone_is_seen_whatever_the_recipe_says_now(tmp_path: Path) -> None:
    """With checkpoint.every far beyond its steps, which says of itself that the run has not come to a first one."""
    run = groupwise.train("quickstart", tiny_run(tmp_path)).folder
    resume(run, {"checkpoint.every": 50, "steps": 3})
    shutil.rmtree(run / "checkpoints")
    for name in ("summary.json", "log.txt"):
        (run / name).unlink()
    about, metrics = (run / "about.json").read_text(), (run / "metrics.jsonl").read_text()
    unsaved = [json.loads(line) for line in metrics.splitlines()]
    for row in unsaved:
        row["seconds"].pop("save", None)
    never = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in unsaved)
    for about_of, rows in ((about, never), ("{}", metrics)):
        (run / "about.json").write_text(about_of)
        (run / "metrics.jsonl").write_text(rows)
        with pytest.raises(UsageError, match="its checkpoints are gone"):
            resume(run)
    (run / "metrics.jsonl").write_text(never)
    assert resume(run).finished
    assert "was ended before its first checkpoint: the 3 steps" in (run / "log.txt").read_text()


def test_steps_that_rows_lack_and_a_checkpoint_has_are_said(tmp_path: Path, capfd) -> None:
    run = groupwise.train("quickstart", tiny_run(tmp_path, steps=3)).folder
    rows = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(rows[:2]))
    assert resume(run).finished
    words = "metrics.jsonl has no row of 2 steps from 2 to 3: the run goes on from its checkpoint"
    assert words in capfd.readouterr().err


def test_a_total_that_is_no_number_counts_nothing(small) -> None:
    run = groupwise.train("quickstart", small(steps=2))
    rows = read_metrics(run.folder)
    for row, total in zip([row for row in rows if "evaluation" not in row], ("x", 2.5), strict=True):
        row["logged_total.own"] = total
    (run.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert resume(run.folder).summary["logged_total"] == {"own": 2.5}


def test_a_run_whose_rows_are_damaged_sums_up_what_is_whole(small, capfd) -> None:
    """The first evaluation is lost and said to be; the last one is made again, to the same bits."""
    run = groupwise.train("quickstart", small(steps=2))
    rows = read_metrics(run.folder)
    rows[0]["evaluation"] = 5
    rows[1]["seconds"] = {"update": "x"}
    rows[2]["checks"]["learner = engine"] = None
    rows[3]["evaluation"]["avg_at_k"] = "0.5"
    (run.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert sound_metrics(run.folder) == []
    capfd.readouterr()
    done = resume(run.folder)
    assert done.summary["heldout_after"] == run.summary["heldout_after"]
    assert done.summary["heldout_before"] != done.summary["heldout_before"]
    assert json.loads((run.folder / "summary.json").read_text())["heldout_before"] is None
    assert "metrics.jsonl has no evaluation before step 1" in capfd.readouterr().err


def test_a_checkpoint_of_another_model_is_one_line(small) -> None:
    changes = small(steps=1, warm_start__steps=0, algorithm__name="dapo", algorithm__filter__kind="none")
    run = groupwise.train("quickstart", changes)
    recipe = run.folder / "recipe.toml"
    create_recipe(run.folder, recipe.read_text().replace('model = "tiny-dense"', 'model = "tiny-moe"'))
    with pytest.raises(UsageError, match="step-000001: does not fit what the run's recipe makes now: ") as told:
        resume(run.folder)
    assert len(str(told.value).splitlines()) == 1


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    Journal.create(tmp_path / "run", "steps = 1\n").close()
    return tmp_path / "run"


def test_a_recipe_that_is_cut_off_anywhere_is_no_recipe_with_defaults(tmp_path: Path) -> None:
    """Half of it is whole TOML at the end of every line, and an older run's has no last line to miss."""
    Journal.create(tmp_path / "run", 'steps = 1\nname = "x"\n[learner]\nlearning_rate = 0.5\n').close()
    path = tmp_path / "run" / "recipe.toml"
    text = path.read_text()
    assert whole_recipe(path.parent) == path
    for at, character in enumerate(text):
        if character == "\n" and at < len(text) - 1:
            path.write_text(text[: at + 1])
            with pytest.raises(UsageError, match=r"recipe\.toml: cut off"):
                resume(path.parent)
            with pytest.raises(UsageError, match=r"recipe\.toml: cut off"):
                evaluate_policies([str(path.parent)])
    path.write_text(text.replace("steps = 1", "steps = 2") + "[sampling]\ntop_k = 3\n")
    assert whole_recipe(path.parent) == path
    path.write_text("steps = 1\n")
    assert whole_recipe(path.parent) == path


@pytest.mark.parametrize("name", [".lock", "metrics.jsonl", "rollouts.jsonl", "machine.jsonl"])
def test_a_fifo_in_a_run_folder_is_not_waited_for(name: str, begun: Path) -> None:
    (begun / name).unlink(missing_ok=True)
    os.mkfifo(begun / name)
    with pytest.raises(GroupwiseError, match=re.escape(name)):
        Journal.reopen(begun, 1)
    (begun / name).unlink()
    Journal.reopen(begun, 1).close()


def test_what_a_run_appends_to_is_never_waited_for(begun: Path) -> None:
    os.mkfifo(begun / "log.txt")
    book = Journal(begun)
    with pytest.raises(RunError, match=r"log\.txt: cannot be written: .*; move it away, then resume"):
        book.log("a")
    book.close()


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("name", [".lock", "log.txt", "metrics.jsonl"])
def test_a_run_never_writes_through_a_link(name: str, there: bool, begun: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    if there:
        other.write_text("keep\n")
    (begun / name).unlink(missing_ok=True)
    (begun / name).symlink_to(other)
    said = rf"{re.escape(name)}: .*: it is a link"
    with pytest.raises(GroupwiseError, match=said), closing(Journal(begun)) as book:
        book.log("a") if name == "log.txt" else book.metrics({"step": 1})
    assert save_traceback(ValueError(), begun / name) != str(begun / name)
    assert other.read_text() == "keep\n" if there else not other.exists()


def test_a_full_disk_is_said(begun: Path) -> None:
    book = Journal(begun)
    said = r"metrics\.jsonl: cannot be written: File too large; free space, then resume"
    with full_disk(100), pytest.raises(RunError, match=said):
        book.metrics({"step": 1, "note": "x" * 1000})
    book.close()


@pytest.mark.parametrize(
    "about", [b"", b"{", b"[1]", b'{"resumed": 5}', b'{"a":' * 600 + b"1" + b"}" * 600, b'{"a": "\\ud800"}', b"\xff"]
)
def test_an_about_of_any_kind_is_written_again(about: bytes, begun: Path) -> None:
    (begun / "about.json").write_bytes(about)
    assert read_about(begun) == {}
    (begun / "about.json").unlink()
    os.mkfifo(begun / "about.json")
    assert read_about(begun) == {}
    book = Journal(begun)
    book.replace("about.json", {"started": 1})
    book.close()
    assert read_about(begun) == {"started": 1}


def test_the_log_can_be_shown_on_a_terminal(begun: Path) -> None:
    book = Journal(begun)
    book.log("a reward said \x1b[2J \x9b \udc80 ä")
    book.close()
    assert (begun / "log.txt").read_text() == "a reward said \\x1b[2J \\x9b \\udc80 ä\n"


ROW: dict[str, Any] = {
    "step": 1,
    "seconds": {"a": 1},
    "checks": {"c": {"value": None, "limit": 0.5, "verdict": "pass"}},
}
EVALUATION = {"problems": 2, "samples": 1, "avg_at_k": None, "measured_mean": 1.5, "length_mean": 2.0, "rewards": {}}
EVALUATED = {"step": 1, "evaluation": {**EVALUATION, "by_source": {"a": {"avg_at_k": None}}}, "seconds": {}}


@pytest.mark.parametrize(
    ("row", "sound"),
    [
        (ROW, True),
        (EVALUATED, True),
        ({"step": 1}, True),
        ({**ROW, "step": "1"}, False),
        ({**ROW, "seconds": {"a": None}}, False),
        ({**ROW, "seconds": {"a": 1e300}}, False),
        ({**ROW, "seconds": [1]}, False),
        ({**ROW, "checks": {"c": 5}}, False),
        ({**ROW, "checks": {"c": {"value": "x", "limit": 1}}}, False),
        ({**EVALUATED, "evaluation": None}, False),
        ({**EVALUATED, "evaluation": {**EVALUATED["evaluation"], "length_mean": True}}, False),
        ({**EVALUATED, "evaluation": EVALUATION}, False),
        *(
            ({**EVALUATED, "evaluation": {**EVALUATED["evaluation"], column: ["x"]}}, False)
            for column in Evaluation(1, 1, 0.5, {1: 0.5}, 2.0, 0.0, supervised_loss=1.0, teachers={"a": {}}).row
        ),
    ],
)
def test_a_row_of_another_kind_is_passed_over(row: dict[str, Any], sound: bool, begun: Path) -> None:
    (begun / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    assert sound_metrics(begun) == [row] * sound


@pytest.mark.parametrize("text", ["", "{}", "[", '{"pairs": "x"}', "NaN", "[" * 9000])
def test_a_reward_models_report_that_is_damaged_is_one_line(text: str, tmp_path: Path) -> None:
    from groupwise.training.start.cached_reward_model import read_report

    (tmp_path / "preference.json").write_text(text)
    with pytest.raises(UsageError, match=r"preference\.json: damaged: ") as told:
        read_report(tmp_path / "preference.json")
    assert len(str(told.value).splitlines()) == 1


def test_readings_of_the_witness_that_are_damaged_are_passed_over(tmp_path: Path) -> None:
    rows = [{"witness": {"loss": "torn", "advantage": {"verdict": "fail"}}}, {"witness": "torn"}, {"step": 1}]
    (tmp_path / "machine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert list(ending._read_again(tmp_path)) == ["read a second time by the witness: 1 step, 1 of them differed"]
