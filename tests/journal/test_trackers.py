"""Trackers get every number of a run, and whatever they do, the run does not notice."""

from __future__ import annotations

import json
import math
import os
import re
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from groupwise.config import recipe
from groupwise.core.errors import UsageError
from groupwise.journal.journal import JournalSettings
from groupwise.journal.trackers import TRACKERS, Sender, evaluation_numbers, mark, numbers, tracker

RECIPE = {"name": "r", "seed": 0, "task": {"name": "arithmetic", "operands": [2, 3]}}
STEPS = [
    {
        "step": k,
        "pass_rate": k / 8,
        "kl_mean": math.nan if k == 1 else 0.5,
        "faults.timeout in mine": 2,
        "checks": {"live_equals_old": {"verdict": "pass", "value": 1e-7, "limit": 1e-4}},
        "seconds": {"generate": 0.5, "update": 0.25},
    }
    for k in (1, 2, 3)
]
EVALUATION = {
    "step": 3,
    "evaluation": {"avg_at_k": 0.625, "pass_at_k": {"1": 0.625}, "measured_mean": None, "by_source": {}},
    "seconds": {"evaluate": 2.0},
}
SUMMARY = {"heldout_after": 0.625, "algorithm": "grpo"}


class Told:
    """A tracker that remembers, or misbehaves where it was told to."""

    def __init__(self, breaks: str = "", hangs: str = "") -> None:
        self.breaks, self.hangs, self.seen = breaks, hangs, []
        self.let_go, self.went_on = threading.Event(), False

    def start(self, *told: Any) -> str:
        self._do("start", told)
        return "look there"

    def log(self, numbers: Any, step: int) -> None:
        self._do("evaluation" if any(name.startswith("evaluation.") for name in numbers) else "step", (step, numbers))

    def back(self, step: int) -> None:
        self._do("back", step)

    def close(self, summary: Any) -> None:
        self._do("close", summary)

    def _do(self, name: str, told: Any) -> None:
        self.seen.append((name, told))
        if self.hangs == name and not self.went_on:
            self.let_go.wait(30)
            self.went_on = True
        if self.breaks == name:
            raise SystemExit("no such\n account")


def go_through(made: Told | None, rows: list[dict[str, Any]], folder: Path, **settings: Any) -> list[str]:
    """A run of these rows; the lines of its log."""
    log: list[str] = []
    sender = Sender(made, log.append, **settings)
    sender.start(folder, "run", RECIPE, after=0)
    for row in rows:
        sender.metrics(row)
    sender.close(SUMMARY)
    sender.close(SUMMARY)
    return log


def test_every_row_arrives_in_order_and_the_summary_last(tmp_path):
    made = Told()
    assert go_through(made, [*STEPS, EVALUATION], tmp_path) == ["tracker Told: look there"]
    assert made.seen == [
        ("start", (tmp_path, "run", RECIPE, 0)),
        *(("step", (row["step"], numbers(row))) for row in STEPS),
        ("evaluation", (3, evaluation_numbers(EVALUATION))),
        ("close", SUMMARY),
    ]


def test_a_return_arrives_between_the_rows_it_lies_between(tmp_path):
    made, log = Told(), []
    sender = Sender(made, log.append)
    sender.start(tmp_path, "run", RECIPE)
    for row in STEPS:
        sender.metrics(row)
    sender.cut_back(1)
    sender.metrics(STEPS[1])
    sender.close(SUMMARY)
    sender.cut_back(1)
    assert [(name, told if name == "back" else None) for name, told in made.seen] == [
        ("start", None),
        *(("step", None) for _ in STEPS),
        ("back", 1),
        ("step", None),
        ("close", None),
    ]
    Sender(None, log.append).cut_back(1)


@pytest.mark.parametrize("where", ["start", "step", "evaluation", "close"])
def test_an_error_is_one_line_and_the_end_of_the_tracker(where, tmp_path):
    made = Told(breaks=where)
    log = go_through(made, [*STEPS, EVALUATION], tmp_path)
    assert log[-1] == "tracker Told: SystemExit: no such account; it is off from here on, and the run goes on"
    assert log[:-1] == ([] if where == "start" else ["tracker Told: look there"])
    assert made.seen[-1][0] == where
    assert [name for name, _ in made.seen].count(where) == 1


def test_an_error_is_told_while_the_run_goes_on(tmp_path):
    log: list[str] = []
    sender = Sender(Told(breaks="step"), log.append)
    sender.start(tmp_path, "run", RECIPE)
    until = time.monotonic() + 60
    while len(log) < 2 and time.monotonic() < until:
        sender.metrics(STEPS[0])
        time.sleep(0.01)
    assert "it is off from here on" in log[1]
    sender.metrics(STEPS[1])
    sender.close(None)
    assert len(log) == 2


@pytest.mark.parametrize("where", ["start", "step"])
def test_one_that_hangs_costs_no_time_and_bounded_room(where, tmp_path):
    made, log = Told(hangs=where), []
    sender = Sender(made, log.append, room=100, patience=0.2)
    sender.start(tmp_path, "run", RECIPE)
    for k in range(5000):
        sender.metrics({**STEPS[0], "step": k})
    sender.close(SUMMARY)
    assert not made.went_on, "it hangs to this moment: nobody waited for it"
    made.let_go.set()
    assert 4890 <= sender.left_out <= 4910
    first, last = log[-2:]
    assert log[:-2] == ([] if where == "start" else ["tracker Told: look there"])
    assert re.fullmatch(r"tracker Told: 100 rows wait; those from step (9\d|10\d) on are left out", first)
    assert last == (
        "tracker Told: had not ended 0.2 s after the run and was left behind; 100 calls waiting, "
        f"{sender.left_out} rows left out"
    )


def test_one_that_goes_on_gets_what_waited_and_the_log_says_how_much_it_never_got(tmp_path):
    made, log = Told(hangs="step"), []
    sender = Sender(made, log.append, room=4, patience=60)
    sender.start(tmp_path, "run", RECIPE)
    for k in range(50):
        sender.metrics({**STEPS[0], "step": k})
    made.let_go.set()
    sender.close(SUMMARY)
    told = [logged[0] for name, logged in made.seen if name == "step"]
    assert told == sorted(told)
    assert made.seen[-1] == ("close", SUMMARY)
    assert log[-1] == f"tracker Told: {50 - len(told)} rows were left out"
    assert len(told) < 50


def test_one_that_only_ends_late_is_waited_for(tmp_path):
    made = Told(hangs="close")
    threading.Timer(0.3, made.let_go.set).start()
    assert go_through(made, STEPS, tmp_path, patience=10) == ["tracker Told: look there"]


def test_no_tracker_is_nothing(tmp_path):
    threads = threading.active_count()
    assert tracker("none") is None
    assert go_through(None, STEPS, tmp_path) == []
    assert threading.active_count() == threads
    assert list(tmp_path.iterdir()) == []


def test_numbers_are_flat_finite_and_named_apart():
    assert numbers(STEPS[0]) == {
        "pass_rate": 0.125,
        "faults.timeout in mine": 2,
        "checks.live_equals_old.value": 1e-7,
        "checks.live_equals_old.limit": 1e-4,
        "seconds.generate": 0.5,
        "seconds.update": 0.25,
    }
    assert numbers({"step": 1, "ok": True, "worst": math.inf, "gap": None}) == {}
    assert not set(evaluation_numbers(EVALUATION)) & set(numbers(STEPS[0]))


def test_a_run_keeps_its_mark_and_gets_one_where_a_kill_left_none(tmp_path):
    made = mark(tmp_path, "wandb")
    assert made == mark(tmp_path, "wandb") != mark(tmp_path, "trackio")
    (tmp_path / "trackers" / "wandb.id").write_text("")
    assert "" != mark(tmp_path, "wandb") == mark(tmp_path, "wandb")


@pytest.mark.parametrize("name", list(TRACKERS))
def test_a_missing_library_says_what_to_install(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        UsageError, match=rf'^journal.tracker = "{name}" needs .*pip install \'groupwise\[trackers\]\'$'
    ):
        tracker(name)


def test_a_broken_library_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "trackio.py").write_text("raise ImportError('it needs\\n protobuf 6')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "trackio", raising=False)
    told = '^journal.tracker = "trackio": trackio cannot be imported: ImportError: it needs protobuf 6$'
    with pytest.raises(UsageError, match=told):
        tracker("trackio")


def test_a_recipe_may_name_every_tracker_and_no_other():
    for name in ("none", *TRACKERS):
        assert JournalSettings.model_validate({"tracker": name}).tracker == name
    with pytest.raises(UsageError, match=r"journal.tracker = 'wand': .*'none', 'trackio', 'wandb' or 'tensorboard'"):
        recipe.load("quickstart", {"journal.tracker": "wand"})


def real(name: str, folder: Path, after: int = 0, rows: tuple[Any, ...] = (*STEPS, EVALUATION)) -> list[str]:
    """What a run's process does, in a process of its own: these libraries keep state for as long as one lives."""
    program = (
        "import json, sys\n"
        "from pathlib import Path\n"
        "from groupwise.journal.trackers import Sender, tracker\n"
        "name, folder, after, recipe, rows, summary = json.loads(sys.argv[1])\n"
        "log = []\n"
        "sender = Sender(tracker(name), log.append, patience=60)\n"
        "sender.start(Path(folder), 'run', recipe, after)\n"
        "[sender.metrics(row) for row in rows]\n"
        "sender.close(summary)\n"
        "Path(folder, 'log').write_text(json.dumps(log))\n"
    )
    folder.mkdir(exist_ok=True)
    told = json.dumps([name, str(folder), after, RECIPE, rows, SUMMARY])
    root = Path(__file__).parents[2]
    apart = {"TRACKIO_DIR": str(folder / "store"), "PYTHONPATH": f"{root / 'src'}:{os.environ.get('PYTHONPATH', '')}"}
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("WANDB_", "TRACKIO_"))}
    kept["HOME"] = str(folder)  # nobody is logged in there
    command = [sys.executable, "-c", program, told]
    done = subprocess.run(command, env=kept | apart, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "log").read_text())


LATER = tuple({**row, "pass_rate": row["pass_rate"] + 0.5} for row in STEPS[1:])


def test_tensorboard_reads_back_what_was_told(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tmp_path / "run"
    assert real("tensorboard", run) == [f"tracker TensorBoard: tensorboard --logdir {run / 'trackers' / 'tensorboard'}"]
    found = EventAccumulator(str(run / "trackers" / "tensorboard"))
    found.Reload()
    assert [(e.step, e.value) for e in found.Scalars("pass_rate")] == [(1, 0.125), (2, 0.25), (3, 0.375)]
    assert [e.step for e in found.Scalars("kl_mean")] == [2, 3]
    assert [(e.step, e.value) for e in found.Scalars("evaluation.avg_at_k")] == [(3, 0.625)]
    assert "arithmetic" in str(found.Tensors("recipe/text_summary"))

    assert len(real("tensorboard", run, after=1, rows=LATER)) == 1
    again = EventAccumulator(str(run / "trackers" / "tensorboard"))
    again.Reload()
    assert [(e.step, e.value) for e in again.Scalars("pass_rate")] == [(1, 0.125), (2, 0.75), (3, 0.875)]
    assert "evaluation.avg_at_k" not in again.Tags()["scalars"] or not again.Scalars("evaluation.avg_at_k")


def test_trackio_reads_back_what_was_told_and_goes_on_with_the_same_run(tmp_path):
    pytest.importorskip("trackio")
    run = tmp_path / "run"
    for lines in (real("trackio", run), real("trackio", run, after=1, rows=LATER)):
        assert len(lines) == 1
        assert lines[0].startswith("tracker Trackio: trackio show --project groupwise, run run-")
    with sqlite3.connect(run / "store" / "groupwise.db") as store:
        found = store.execute("select run_id, run_name, step, metrics from metrics order by id").fetchall()
        config = store.execute("select config from configs").fetchone()[0]
    store.close()
    assert {row[:2] for row in found} == {(found[0][0], lines[0].rpartition(" ")[2])}, "one run, not two"
    rates = [(step, json.loads(told).get("pass_rate")) for *_, step, told in found]
    assert rates == [(1, 0.125), (2, 0.25), (3, 0.375), (3, None), (2, 0.75), (3, 0.875)]
    assert json.loads(found[3][3])["evaluation.avg_at_k"] == 0.625
    assert json.loads(config)["task.name"] == "arithmetic"


def test_wandb_is_offline_where_nobody_is_logged_in_and_goes_on_with_the_same_id(tmp_path):
    pytest.importorskip("wandb")
    run = tmp_path / "run"
    told = [f"tracker WandB: offline; {run / 'trackers'} has what wandb sync can send"]
    assert real("wandb", run) == told
    first = {path.parent.name: path for path in run.glob("trackers/wandb/offline-run-*/*.wandb")}
    time.sleep(1.1)  # its folders are named by the second
    assert real("wandb", run, after=1, rows=LATER) == told
    files = {path.parent.name: path for path in run.glob("trackers/wandb/offline-run-*/*.wandb")}
    assert (len(first), len(files)) == (1, 2)
    assert {name.rpartition("-")[2] for name in files} == {(run / "trackers" / "wandb.id").read_text()}
    written = next(iter(first.values())).read_bytes()
    for name, value in (("pass_rate", "0.375"), ("evaluation.avg_at_k", "0.625"), ("heldout_after", "0.625")):
        assert re.search(rf"{name}.{{0,8}}{value}".encode(), written, re.DOTALL), name
    assert re.search(rb"operands.{0,4}\[2,3\]", written, re.DOTALL)
