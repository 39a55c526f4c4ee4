"""Trackers get every number of a run, and whatever they do, the run does not notice."""

from __future__ import annotations

import math
import re
import sys
import threading
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from groupwise.config import recipe, recipe_files
from groupwise.core.errors import UsageError
from groupwise.journal.journal import Journal
from groupwise.journal.sender import COLUMNS, Sender, Senders
from groupwise.journal.settings import JournalSettings
from groupwise.journal.trackers import (
    TRACKERS,
    Row,
    Table,
    Tracked,
    Tracker,
    evaluation_numbers,
    made_trackers,
    mark,
    numbers,
)

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
    "evaluation": {"avg_at_k": 0.625, "pass_at_k": {1: 0.625}, "measured_mean": None, "by_source": {}},
    "seconds": {"evaluate": 2.0},
}
SUMMARY = {"heldout_after": 0.625, "algorithm": "grpo"}
ROLLOUTS = [
    {
        "step": 1,
        "group": 0,
        "fate": "trained",
        "prompt": "2+3=",
        "answer": "5",
        "completion": text,
        "score": float(text == "5"),
        "reward": float(text == "5"),
        "advantage": 0.5 if text == "5" else -0.5,
        "tokens": 2,
        "finish": "eos",
    }
    for text in ("5", "6")
]


class Told(Tracker):
    """A tracker that remembers, or misbehaves where it was told to."""

    def __init__(self, breaks: str = "", hangs: str = "") -> None:
        self.breaks, self.hangs, self.seen = breaks, hangs, []
        self.let_go, self.went_on = threading.Event(), False

    def start(self, run: Tracked) -> str:
        self._do("start", run)
        return "look there"

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        self._do("evaluation" if any(name.startswith("evaluation.") for name in numbers) else "step", (step, numbers))

    def table(self, completions: Table, step: int) -> None:
        self._do("table", (step, completions))

    def back(self, step: int) -> None:
        self._do("back", step)

    def close(self, summary: Row | None) -> None:
        self._do("close", summary)

    def _do(self, name: str, told: Any) -> None:
        self.seen.append((name, told))
        if self.hangs == name and not self.went_on:
            self.let_go.wait(30)
            self.went_on = True
        if self.breaks == name:
            raise SystemExit("no such\n account")


def tracked(folder: Path, **more: Any) -> Tracked:
    return Tracked(folder, "run", RECIPE, **more)


def go_through(made: Told, rows: list[dict[str, Any]], folder: Path, **settings: Any) -> list[str]:
    """A run of these rows; the lines of its log."""
    log: list[str] = []
    sender = Sender(made, log.append, **settings)
    sender.start(tracked(folder))
    for row in rows:
        sender.metrics(row)
    sender.close(SUMMARY)
    sender.close(SUMMARY)
    return log


def test_every_row_arrives_in_order_and_the_summary_last(tmp_path):
    made = Told()
    assert go_through(made, [*STEPS, EVALUATION], tmp_path) == ["tracker Told: look there"]
    assert made.seen == [
        ("start", tracked(tmp_path)),
        *(("step", (row["step"], numbers(row))) for row in STEPS),
        ("evaluation", (3, evaluation_numbers(EVALUATION))),
        ("close", SUMMARY),
    ]


def test_a_return_arrives_between_the_rows_it_lies_between(tmp_path):
    made, log = Told(), []
    sender = Sender(made, log.append)
    sender.start(tracked(tmp_path))
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
    sender.start(tracked(tmp_path))
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
    sender.start(tracked(tmp_path))
    for k in range(5000):
        sender.metrics({**STEPS[0], "step": k})
    sender.close(SUMMARY)
    assert not made.went_on, "it hangs to this moment: nobody waited for it"
    made.let_go.set()
    assert 4890 <= sender.left_out <= 4910
    first, last = log[-2:]
    assert log[:-2] == ([] if where == "start" else ["tracker Told: look there"])
    assert re.fullmatch(r"tracker Told: 100 rows wait; those from step (9\d|10\d) on are left out", first)
    what = "begun, as if its server did not answer," if where == "start" else "ended"
    assert last == (
        f"tracker Told: had not {what} 0.2 s after the run and was left behind; 100 calls waiting, "
        f"{sender.left_out} rows left out"
    )


def test_one_that_dies_in_the_middle_of_a_run_is_told_once_while_the_run_goes_on(tmp_path):
    """A library tries again and again for minutes to reach a server that is gone."""
    made, log = Told(hangs="evaluation"), []
    sender = Sender(made, log.append, patience=0.2)
    sender.start(tracked(tmp_path))
    for row in (*STEPS, EVALUATION):
        sender.metrics(row)
    until = time.monotonic() + 60
    while len(log) < 2 and time.monotonic() < until:
        sender.metrics(STEPS[0])
        time.sleep(0.01)
    assert log[1] == "tracker Told: has not answered for 0.2 s; its rows wait, and the run goes on"
    time.sleep(0.3)
    sender.metrics(STEPS[1])
    made.let_go.set()
    sender.close(SUMMARY)
    assert log[2:] == []
    assert made.seen[-1] == ("close", SUMMARY)


def test_one_that_goes_on_gets_what_waited_and_the_log_says_how_much_it_never_got(tmp_path):
    made, log = Told(hangs="step"), []
    sender = Sender(made, log.append, room=4, patience=60)
    sender.start(tracked(tmp_path))
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
    threads, log = threading.active_count(), []
    assert made_trackers(JournalSettings().trackers) == ()
    none = Senders((), log.append)
    none.start(tracked(tmp_path))
    none.metrics(STEPS[0])
    none.completions(ROLLOUTS)
    none.cut_back(1)
    none.close(SUMMARY)
    assert (threading.active_count(), log) == (threads, [])
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
        made_trackers([name])


def test_a_broken_library_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "trackio.py").write_text("raise ImportError('it needs\\n protobuf 6')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "trackio", raising=False)
    told = '^journal.tracker = "trackio": trackio cannot be imported: ImportError: it needs protobuf 6$'
    with pytest.raises(UsageError, match=told):
        made_trackers(["trackio"])


def test_a_recipe_may_name_every_tracker_one_or_several_and_no_other():
    for name in ("none", *TRACKERS):
        assert JournalSettings.model_validate({"tracker": name}).tracker == name
    assert JournalSettings(tracker="wandb").trackers == ("wandb",)
    assert JournalSettings(tracker="none").trackers == JournalSettings.model_validate({"tracker": []}).trackers == ()
    for several in ("tensorboard, mlflow", ["tensorboard", "mlflow"]):
        loaded = recipe.load("quickstart", {"journal.tracker": several})
        assert loaded.journal.trackers == ("tensorboard", "mlflow")
        again = recipe.parse(tomllib.loads(recipe_files.dump(loaded.model_dump(exclude_unset=True))), "again")
        assert again.journal == loaded.journal


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"tracker": "wand"},
            "tracker = 'wand': there is no tracker 'wand'; did you mean 'wandb'? known: none, tensor",
        ),
        ({"tracker": ["mlflow", "wand"]}, "there is no tracker 'wand'; did you mean 'wandb'?"),
        ({"tracker": "none,wandb"}, '"none" stands alone; take it out, or the others'),
        ({"tracker": ["wandb", "wandb"]}, "tracker = ['wandb', 'wandb']: 'wandb' is there twice"),
        ({"tracker": 3}, 'tracker = 3: a name is expected, such as "wandb", or a list of names'),
        ({"tracker": [["wandb"]]}, "there is no tracker ['wandb']"),
        ({"project": ""}, "project = ''"),
        ({"project": "a\nb"}, "project = 'a\\nb': a name is expected, with no space at its ends and no line break"),
        ({"group": " a"}, "group = ' a': a name is expected"),
        ({"tags": "baseline"}, "tags = 'baseline': a list is expected, such as [\"baseline\"]"),
        ({"tags": [""]}, "journal.tags.0 = ''"),
        ({"completions": 101}, "completions = 101"),
    ],
)
def test_a_wrong_key_of_trackers_is_one_line(given, told):
    with pytest.raises(UsageError) as error:
        recipe.load("quickstart", {f"journal.{key}": value for key, value in given.items()})
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_a_row_that_no_tracker_can_read_ends_the_tracker_and_not_the_run(tmp_path):
    assert evaluation_numbers(EVALUATION)["evaluation.pass_at_k.1"] == 0.625
    log = go_through(made := Told(), [{**EVALUATION, "evaluation": None}, *STEPS], tmp_path)
    assert log[-1].endswith("; it is off from here on, and the run goes on")
    assert [name for name, _ in made.seen] == ["start"]


def test_each_of_several_gets_everything_and_one_that_is_down_or_hangs_keeps_none_waiting(tmp_path):
    down, hangs, sound, log = Told(breaks="start"), Told(hangs="start"), Told(), []
    senders = Senders((down, hangs, sound), log.append, patience=0.5)
    senders.start(tracked(tmp_path))
    for row in STEPS:
        senders.completions([{**each, "step": row["step"]} for each in ROLLOUTS])
        senders.metrics(row)
    senders.cut_back(1)
    begun = time.monotonic()
    senders.close(SUMMARY)
    assert time.monotonic() - begun < 5
    hangs.let_go.set()
    assert [name for name, _ in sound.seen] == ["start", *["table", "step"] * 3, "back", "close"]
    assert [name for name, _ in down.seen] == ["start"]
    assert [line for line in log if "off from here on" in line] == [
        "tracker Told: SystemExit: no such account; it is off from here on, and the run goes on"
    ]
    assert len([line for line in log if "was left behind" in line]) == 1


def test_several_that_end_late_are_waited_for_together(tmp_path):
    late, log = [Told(hangs="close") for _ in range(3)], []
    senders = Senders(late, log.append, patience=20)
    senders.start(tracked(tmp_path))
    for one in late:
        threading.Timer(0.3, one.let_go.set).start()
    senders.close(SUMMARY)
    assert log == ["tracker Told: look there"] * 3
    assert all(one.went_on for one in late)


def test_several_that_hang_cost_no_more_patience_than_one(tmp_path):
    hanging, log = [Told(hangs="start") for _ in range(4)], []
    senders = Senders(hanging, log.append, patience=1.5)
    senders.start(tracked(tmp_path))
    begun = time.monotonic()
    senders.close(SUMMARY)
    assert time.monotonic() - begun < 4.5
    assert len(log) == 4
    for one in hanging:
        one.let_go.set()


def test_a_table_has_the_columns_of_completions_as_texts_and_finite_numbers(tmp_path):
    made = Told()
    sender = Sender(made, print)
    sender.start(tracked(tmp_path))
    sender.completions([{**ROLLOUTS[0], "reward": math.inf, "answer": ["a", 1], "completion": "x" + chr(0xD800)}])
    sender.completions([])
    sender.close(None)
    (step, told), *more = [logged for name, logged in made.seen if name == "table"]
    assert (step, more, told.columns) == (1, [], COLUMNS)
    cells = dict(zip(told.columns, told.rows[0], strict=True))
    assert cells == {**ROLLOUTS[0], "reward": None, "answer": "['a', 1]", "completion": "x\ufffd"}


def test_the_journal_hands_the_first_completions_of_a_step_on_and_writes_all(tmp_path):
    book = Journal.create(tmp_path / "run", "name = 'run'")
    heard: list[Any] = []
    book.rollouts(ROLLOUTS)
    book.listen_to_rollouts(heard.append, most=1)
    book.listen_to_rollouts(heard.append, most=2)
    book.rollouts(row for row in ROLLOUTS)
    book.close()
    assert heard == [ROLLOUTS[:1], ROLLOUTS]
    assert (tmp_path / "run" / "rollouts.jsonl").read_text().count("\n") == 2 * len(ROLLOUTS)
