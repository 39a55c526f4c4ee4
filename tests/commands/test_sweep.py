"""`groupwise sweep`: a grid of runs that can be ended at any moment, and comes to the files of an undisturbed one."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from groupwise.cli import __main__ as cli
from groupwise.commands.sweep import sweep as sweeps
from groupwise.commands.sweep.sweep import Done, sweep
from groupwise.core.machine.facts import cores
from groupwise.journal.journal import read_about, read_metrics, read_summary
from groupwise.training import checkpoint
from tests.refusals import refused
from tests.runs.tiny_runs import own_processes, tiny_run
from tests.warm import warm_starts

FILES = ("sweep.csv", "sweep.json")
SEEDS = {"seed": (0, 1)}
Over = Mapping[str, Sequence[object]]


@pytest.fixture(autouse=True)
def forked() -> Iterator[None]:
    """Runs in forks of one process that has imported everything."""
    with warm_starts():
        yield


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    keys = tiny_run(tmp_path_factory.mktemp("model"), steps=4, threads=1)
    return {key: value for key, value in keys.items() if key not in ("seed", "runs")}


def swept(folder: Path, settings: Mapping[str, object], over: Over = SEEDS, at_once: int = 2) -> tuple[Done, list[str]]:
    said: list[str] = []
    return sweep("quickstart", over, settings, said.append, folder, at_once), said


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, settings: dict[str, object]) -> Path:
    """A sweep of two seeds that nothing has disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed") / "sweep"
    with warm_starts():
        done, said = swept(folder, settings)
    assert (done.failed, done.stopped_by) == (0, 0)
    assert said[0] == f"2 runs in {folder}; 2 at once"
    return folder


def contents(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in FILES]


def test_a_sweep_ends_in_files_that_hold_what_its_runs_measured(undisturbed: Path) -> None:
    table = json.loads((undisturbed / "sweep.json").read_text())
    assert [row["over"] for row in table["runs"]] == [{"seed": 0}, {"seed": 1}]
    for row in table["runs"]:
        run = undisturbed / row["run"]
        summary, rates = read_summary(run), [row["pass_rate"] for row in read_metrics(run) if "pass_rate" in row]
        assert row["state"] == "finished"
        assert row["last_step"] == summary["steps"] == len(rates) == 4
        assert row["heldout_after"] == pytest.approx(summary["heldout_after"], abs=1e-8)
        assert row["training"] == pytest.approx(sum(rates) / 4, abs=1e-8)
    assert table["groups"][0]["seeds"] == [0, 1]
    header, *lines = (undisturbed / "sweep.csv").read_text().splitlines()
    assert header == "run,seed,state,error,measure,heldout_before,heldout_after,training,last_step"
    assert [line.split(",")[:3] for line in lines] == [["seed-0", "0", "finished"], ["seed-1", "1", "finished"]]
    assert "seconds" not in (undisturbed / "sweep.csv").read_text() + (undisturbed / "sweep.json").read_text()
    assert (undisturbed / "seconds.csv").read_text().startswith("run,seconds_training\nseed-0,")
    assert "seed-1" in (undisturbed / "comparison.html").read_text()


def test_finished_runs_are_kept(
    undisturbed: Path, settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(undisturbed)
    monkeypatch.setattr(sweeps, "train_apart", lambda *_: pytest.fail("a finished run was trained again"))
    done, said = swept(undisturbed, settings)
    assert "2 finished before" in said[0]
    assert done.failed == 0
    assert contents(undisturbed) == before


def kill_when(ready: Callable[[], bool], words: str) -> threading.Thread:
    """Kill the processes with these words in their command as soon as something is so."""

    def wait() -> None:
        while not ready():
            time.sleep(0.002)
        for process in own_processes(words):
            os.kill(process, signal.SIGKILL)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def test_a_killed_run_is_a_row_with_its_line_and_the_next_sweep_resumes_it(
    undisturbed: Path, settings: dict[str, object], tmp_path: Path
) -> None:
    folder, run = tmp_path / "sweep", tmp_path / "sweep" / "seed-0"
    killing = kill_when(lambda: bool(checkpoint.steps(run / checkpoint.CHECKPOINTS)), f'"{run}"')
    done, said = swept(folder, settings)
    killing.join(60)
    assert done.failed == 1
    line = f"it ended: killed by SIGKILL; {run} is resumed the next time"
    assert f"  seed-0: failed: {line}" in said
    assert f"seed-0 failed: {line}" in done.lines
    assert [row["state"] for row in json.loads((folder / "sweep.json").read_text())["runs"]] == ["failed", "finished"]
    assert swept(folder, settings)[0].failed == 0
    assert contents(folder) == contents(undisturbed)
    assert read_about(run)["resumed"][0]["step"] >= 1
    assert [row["step"] for row in read_metrics(run) if "pass_rate" in row] == [1, 2, 3, 4]


def test_a_run_that_cannot_begin_says_so_and_the_others_go_on(
    undisturbed: Path, settings: dict[str, object], tmp_path: Path
) -> None:
    folder = tmp_path / "sweep"
    folder.mkdir()
    shutil.copy(undisturbed / "sweep.json", folder)
    (folder / "seed-0").write_text("mine\n")
    done, _ = swept(folder, settings)
    assert done.failed == 1
    first, second = json.loads((folder / "sweep.json").read_text())["runs"]
    assert (first["state"], second["state"]) == ("failed", "finished")
    assert first["error"].startswith(f"{folder / 'seed-0'} exists already")
    assert (folder / "seed-0").read_text() == "mine\n"


def test_another_sweeps_folder_is_refused_by_what_differs(
    undisturbed: Path, settings: dict[str, object], tmp_path: Path
) -> None:
    before = contents(undisturbed)
    words = f"{undisturbed}: this is the folder of another sweep: "
    with refused(f"{words}--over seed is 0,1 there and 0,1,2 here; choose another with --out"):
        swept(undisturbed, settings, {"seed": (0, 1, 2)})
    with refused(f"{words}steps is 4 there and 5 here"):
        swept(undisturbed, {**settings, "steps": 5})
    with refused(f"{words}--over algorithm.name is not set there and grpo here"):
        swept(undisturbed, settings, {**SEEDS, "algorithm.name": ("grpo",)})
    assert contents(undisturbed) == before
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("mine\n")
    with refused(f"{mine}: this holds 'notes.txt' and no sweep.json, so it is no sweep's"):
        swept(mine, settings)
    with refused(f"--out {mine / 'notes.txt'}: this is no folder"):
        swept(mine / "notes.txt", settings)
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "sweep.json").write_text("{")
    with refused("sweep.json: not JSON"):
        swept(tmp_path / "json", settings)
    assert os.listdir(mine) == ["notes.txt"]


def test_a_file_of_code_that_has_changed_makes_another_sweep(settings: dict[str, object], tmp_path: Path) -> None:
    """Runs that begin later would train on another reward than those before."""
    reward = tmp_path / "mine.py"
    reward.write_text("def mine(sample, completion):\n    return 0.5\n")
    own = {**settings, "rewards.mine.use": f"{reward}:mine"}
    folder = tmp_path / "sweep"
    swept(folder, own, {"seed": (0,)}, at_once=1)
    reward.write_text("def mine(sample, completion):\n    return 0.7\n")
    with refused("the folder of another sweep: the file mine.py is "):
        swept(folder, own, {"seed": (0,)}, at_once=1)


def test_a_folder_in_which_a_sweep_goes_on_is_refused(undisturbed: Path, settings: dict[str, object]) -> None:
    with (undisturbed / ".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with refused("another sweep goes on here"):
            swept(undisturbed, settings)


def test_more_at_once_than_cores_is_said(undisturbed: Path, settings: dict[str, object]) -> None:
    many = cores() + 1
    _, said = swept(undisturbed, settings, at_once=many)
    assert said[1] == f"--at-once {many}: this machine has {cores()} cores, so the runs wait for each other"


def test_every_value_is_checked_before_the_first_run_starts(
    settings: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "train_apart", lambda *_: pytest.fail("a run was started"))
    folder = tmp_path / "sweep"
    over: dict[str, tuple[object, ...]] = {"seed": (0, 1), "learner.learning_rate": (1e-3, -2.0)}
    with refused("--over learner.learning_rate=-2.0: learner.learning_rate = -2.0: "):
        swept(folder, settings, over)
    with refused("--over algorithm.name=dapoo: algorithm.name = 'dapoo': there is no such algorithm"):
        swept(folder, settings, {"seed": (0,), "algorithm.name": ("grpo", "dapoo")})
    assert not folder.exists()


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Any]:
    """The command in an empty folder -> exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def called(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["groupwise", "sweep", *words])
        with pytest.raises(SystemExit) as leaving:
            cli.main()
        out, err = capfd.readouterr()
        return int(leaving.value.code or 0), out, err

    return called


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["quickstart"], "Missing option '--over'"),
        (["quickstart", "--over", "seed"], "--over 'seed': expected KEY=VALUE,VALUE"),
        (["quickstart", "--over", "seed=0,,1"], "--over 'seed=0,,1': a value is empty"),
        (["quickstart", "--over", "seed="], "--over 'seed=': a value is empty"),
        (["quickstart", "--over", "seed=1,1"], "1 is given twice; each value is one run"),
        (
            ["quickstart", "--over", "seed=0", "--over", "seed=1"],
            "--over seed: given twice; write all",
        ),
        (
            ["quickstart", "--over", "seed=0", "--set", "seed=1"],
            "seed: set by --over and by --set; leave one",
        ),
        (
            ["quickstart", "--over", "learner={},{clip_norm=2.0}", "--set", "learner.clip_norm=1.0"],
            "learner and learner.clip_norm: set by --over and by --set",
        ),
        (["quickstart", "--over", "stepz=1,2"], "stepz: there is no such key; did you mean 'steps'?"),
        (["quickstart", "--over", "seed=0", "--set", "stepz=1"], "stepz: there is no such key; did you mean 'steps'?"),
        (["quickstart", "--over", "steps=4,-1"], "--over steps=-1: steps = -1: "),
        (["quickstart", "--over", "runs=a,b"], "--over runs: a sweep names the folder of each run itself"),
        (["quickstart", "--over", "seed=0", "--set", "name=a"], "--set name: a sweep names the folder of each run"),
        (
            ["quickstart", "--over", f"seed={','.join(map(str, range(101)))}"],
            "these are 101 runs; add --yes to",
        ),
        (
            ["quickstart", *(f"--over=learner.{k}={','.join(map(str, range(100)))}" for k in ("clip_norm", "warmup"))],
            "these are 10,000 runs; add --yes",
        ),
        (["quickstat", "--over", "seed=0"], "there is no such recipe; did you mean 'quickstart'?"),
        (["quickstart", "--over", "seed=0", "--at-once", "0"], "--at-once"),
        (["quickstart", "--over", "seed=0", "--out", ""], "path"),
    ],
)
def test_wrong_use_is_one_line_and_nothing_is_started(
    call: Callable[..., Any], words: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "train_apart", lambda *_: pytest.fail("a run was started"))
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert os.listdir() == []


def test_the_command_prints_the_table_and_a_failed_run_is_exit_code_1(
    call: Callable[..., Any], undisturbed: Path, settings: dict[str, object]
) -> None:
    shutil.copytree(undisturbed, "sweep")
    set_ = [word for key, value in settings.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    words = ("quickstart", "--over", "seed=0,1", *set_, "--out", "sweep")
    code, out, err = call(*words)
    assert code == 0
    assert "2 runs in sweep, 2 finished before" in err
    assert out.splitlines()[1].startswith("quickstart  2 ")
    assert "2 of 2 runs finished\nsweep.csv, sweep.json and comparison.html are in sweep\n" in out
    shutil.rmtree("sweep/seed-1")
    Path("sweep/seed-1").write_text("mine\n")
    code, out, _ = call(*words)
    assert code == 1
    assert "seed-1 failed: sweep/seed-1 exists already" in out
    assert "1 of 2 runs finished" in out


Start = Callable[[Path, Mapping[str, object]], "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """The command in a process group of its own: two algorithms, three seeds, two at once. It ends with the test."""
    processes: list[subprocess.Popen[str]] = []

    def started(folder: Path, settings: Mapping[str, object]) -> subprocess.Popen[str]:
        words = [word for key, value in settings.items() for word in ("--set", f"{key}={json.dumps(value)}")]
        over = ["--over", "seed=0,1,2", "--over", "algorithm.name=grpo,dapo", "--at-once", "2", "--out", str(folder)]
        command = [sys.executable, "-m", "groupwise", "sweep", "quickstart", *over, *words]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, start_new_session=True, stdout=pipe, stderr=subprocess.STDOUT, text=True)
        processes.append(process)
        return process

    yield started
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.communicate()


def steps_saved(folder: Path) -> dict[str, int]:
    """The runs that have begun and not ended -> the step of their newest checkpoint."""
    runs = [path.parent for path in folder.glob("*/recipe.toml") if not (path.parent / "summary.json").exists()]
    return {run.name: max(checkpoint.steps(run / checkpoint.CHECKPOINTS), default=0) for run in runs}


def wait_for(ready: Callable[[], object], process: subprocess.Popen[str]) -> None:
    while not ready():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.005)


@pytest.mark.slow
def test_a_sweep_killed_twice_ends_in_the_files_of_an_undisturbed_one(
    settings: dict[str, object], tmp_path: Path, start: Start
) -> None:
    longer = {**settings, "steps": 12}
    whole, killed = tmp_path / "whole" / "sweep", tmp_path / "killed" / "sweep"
    first = start(whole, longer)
    said = first.communicate(timeout=600)[0]
    assert first.returncode == 0, said
    resumed: dict[str, int] = {}
    for finished in (0, 3):
        process = start(killed, longer)
        wait_for(
            lambda least=finished: len([*killed.glob("*/summary.json")]) >= least and any(steps_saved(killed).values()),
            process,
        )
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        resumed |= {run: step for run, step in steps_saved(killed).items() if step}
        until = time.monotonic() + 10
        while living := own_processes(str(killed)):
            assert time.monotonic() < until, living
            time.sleep(0.01)
    last = start(killed, longer)
    said = last.communicate(timeout=600)[0]
    assert last.returncode == 0, said
    assert contents(killed) == contents(whole)
    assert resumed
    for run, step in resumed.items():
        assert max(one["step"] for one in read_about(killed / run)["resumed"]) >= step
    for run in whole.glob("*-seed-*"):
        steps = [row["step"] for row in read_metrics(killed / run.name) if "pass_rate" in row]
        assert steps == list(range(1, 13))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_sweep_that_is_asked_to_stop_saves_its_runs_and_says_how_to_go_on(
    settings: dict[str, object], tmp_path: Path, start: Start, number: int
) -> None:
    folder = tmp_path / "sweep"
    process = start(folder, {**settings, "steps": 200, "checkpoint.every": 200})
    wait_for(lambda: any("pass_rate" in row for run in folder.glob("*-seed-*") for row in read_metrics(run)), process)
    process.send_signal(number)
    said = process.communicate(timeout=120)[0]
    assert process.returncode == 128 + number, said
    assert "0 of 6 runs finished, 6 still to run: give the same command again" in said
    assert "failed" not in said
    assert "Traceback" not in said
    assert any(steps_saved(folder).values())
    assert len(steps_saved(folder)) <= 2
