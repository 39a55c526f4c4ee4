"""The table of runs: a row for each folder, whatever is left of it, and the state that the report knows."""

from __future__ import annotations

import fcntl
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from groupwise.commands.init import write_project
from groupwise.commands.runs import listing
from groupwise.core.errors import UsageError
from groupwise.reports.folder import overview as module
from groupwise.reports.folder.overview import overview, overviews
from groupwise.reports.folder.read import ABOUT, LOCK, LOG, METRICS, RECIPE, ROLLOUTS, SUMMARY, read

RECIPE_TEXT = 'steps = {steps}\n[algorithm]\nname = "grpo"\n[evaluation]\nmetric = "correctness"\npass_at = 1.0\n'
STOPPED_LINE = "stopped after step 4, saved; go on with: groupwise train --resume x\n"


def written(
    folder: Path, steps: int = 4, done: int = 4, log: str = "", started: float = 100.0, finished: bool = False
) -> Path:
    folder.mkdir(parents=True)
    (folder / RECIPE).write_text(RECIPE_TEXT.format(steps=steps))
    (folder / ABOUT).write_text(json.dumps({"started": started, "algorithm": {"name": "gspo"}}))
    rows: list[dict[str, Any]] = [{"step": 0, "evaluation": {"avg_at_k": 0.25, "measured_mean": 0.3}}]
    for step in range(1, done + 1):
        rows.append({"step": step, "pass_rate": 0.5})
        rows += [{"step": step, "evaluation": {"avg_at_k": step / 8, "measured_mean": 0.3}}] if step % 2 == 0 else []
    (folder / METRICS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / LOG).write_text(log)
    (folder / LOCK).touch()
    if finished:
        (folder / SUMMARY).write_text(json.dumps({"steps": done, "heldout_before": 0.25, "heldout_after": 0.5}))
    return folder


def row_of(folder: Path) -> list[str]:
    """The cells of the only run's row."""
    head, row, *_ = listing(folder).splitlines()
    starts = [head.index(name) for name in ("name", "state", "step", "held out", "algorithm", "age")]
    return [row[start:end].strip() for start, end in zip(starts, [*starts[1:], None], strict=True)]


@pytest.mark.parametrize(
    ("made", "state", "step", "held_out"),
    [
        ({"finished": True}, "finished", "4/4", "0.250 -> 0.500"),
        ({"steps": 9, "log": STOPPED_LINE}, "stopped", "4/9", "0.250 -> 0.500"),
        ({"steps": 9}, "crashed", "4/9", "0.250 -> 0.500"),
        ({"steps": 9, "log": "error: step 5: the disk is full\n"}, "crashed", "4/9", "0.250 -> 0.500"),
        ({"steps": 9, "log": "Traceback (most recent call last):\nRuntimeError: torn\n"}, "crashed", "4/9", None),
        ({"steps": 9, "done": 6, "log": STOPPED_LINE}, "crashed", "6/9", None),
        ({"steps": 9, "done": 0, "log": "stopped before step 1, with nothing to save; x\n"}, "stopped", "0/9", "0.250"),
    ],
    ids=["finished", "stopped", "killed", "error", "traceback", "killed after a resume", "stopped at once"],
)
def test_a_run_is_a_row(made: dict[str, Any], state: str, step: str, held_out: str | None, tmp_path: Path) -> None:
    written(tmp_path / "one", **made)
    name, *cells, algorithm, age = row_of(tmp_path)
    assert (name, *cells[:2], algorithm, age[-1]) == ("one", state, step, "gspo", "d")
    assert held_out is None or cells[2] == held_out


def test_a_run_that_a_process_writes_is_running(tmp_path: Path) -> None:
    folder = written(tmp_path / "one", steps=9)
    with (folder / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert row_of(tmp_path)[1] == "running"
    assert row_of(tmp_path)[1] == "crashed"


@pytest.mark.parametrize("made", [{"finished": True}, {"steps": 9}, {"steps": 9, "log": "error: torn\n"}, {"done": 0}])
def test_the_words_are_the_reports(made: dict[str, Any], tmp_path: Path) -> None:
    folder = written(tmp_path / "one", **made)
    assert overview(folder).words == read(folder).status.words


def test_only_the_ends_of_the_metrics_are_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written(tmp_path / "one", steps=2000, done=1000)
    parsed: list[bytes] = []
    rows_of = module.rows_of
    monkeypatch.setattr(module, "rows_of", lambda line, odd: parsed.append(line) or rows_of(line, odd))
    found, whole = overview(folder), read(folder)
    assert len(parsed) < 6
    assert found.step == whole.step_rows[-1]["step"] == 1000
    assert found.held_out is not None
    assert (found.held_out.step, found.held_out.last) == (1000, whole.evaluation_rows[-1]["evaluation"]["avg_at_k"])


def test_a_run_measured_by_a_reward_shows_the_mean(tmp_path: Path) -> None:
    folder = written(tmp_path / "one")
    text = RECIPE_TEXT.format(steps=4).replace("correctness", "reward").replace("pass_at = 1.0\n", "")
    (folder / RECIPE).write_text(text)
    assert row_of(tmp_path)[3] == "0.300 -> 0.300"


def test_the_newest_run_comes_first_and_folders_of_runs_are_looked_into(tmp_path: Path) -> None:
    written(tmp_path / "old", started=1.0)
    written(tmp_path / "sweep" / "new", started=3.0)
    written(tmp_path / "sweep" / "deep" / "er", started=9.0)
    written(tmp_path / ".partial", started=4.0)
    (tmp_path / "notes").mkdir()
    (tmp_path / "file").write_text("")
    assert [run.name for run in overviews(tmp_path)] == ["sweep/new", "old"]


FIRST_BYTES = (
    b"",
    b"\x00\xff\xfe",
    b'{"step": 1e400}',
    b"[" * 100_000,
    b"null",
    b'{"algorithm": 3, "started": "x"}',
    b"\n",
)


def damages(chance: random.Random) -> list[Callable[[Path], object]]:
    """Ways in which a file is lost: gone, cut, overwritten, a folder, a FIFO, a link to itself."""
    return [
        lambda path: None,
        lambda path: path.write_bytes(path.read_bytes()[: chance.randrange(200)]),
        lambda path: path.write_bytes(chance.choice(FIRST_BYTES)),
        lambda path: path.write_bytes(path.read_bytes() + chance.choice(FIRST_BYTES)),
        lambda path: path.write_bytes(bytes(chance.randrange(256) for _ in range(300))),
        lambda path: path.mkdir() if path.unlink() is None else None,
        lambda path: os.mkfifo(path) if path.unlink() is None else None,
        lambda path: path.symlink_to(path) if path.unlink() is None else None,
        Path.unlink,
    ]


@pytest.mark.parametrize("seed", range(60))
def test_a_damaged_folder_is_a_row(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    folder = written(tmp_path / "one", finished=chance.random() < 0.5)
    (folder / ROLLOUTS).touch()
    for name in (RECIPE, ABOUT, SUMMARY, METRICS, LOG, LOCK):
        if (folder / name).exists():
            chance.choice(damages(chance))(folder / name)
    head, row, *_ = listing(tmp_path).splitlines()
    assert row.startswith("one  ")
    assert max(map(len, (head, row))) <= 80
    [said] = json.loads(listing(tmp_path, json=True))
    assert said["state"] in ("finished", "stopped", "crashed", "damaged")


def test_of_an_empty_shell_nothing_is_claimed(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / ROLLOUTS).touch()
    assert row_of(tmp_path)[:5] == ["one", "damaged", "-", "-", "-"]
    assert "recipe.toml is missing" in listing(tmp_path)


def test_a_project_that_was_never_trained_is_no_run(tmp_path: Path) -> None:
    write_project(tmp_path / "mine")
    assert overviews(tmp_path) == []
    with pytest.raises(UsageError, match="a run folder is what groupwise train makes"):
        read(tmp_path / "mine")
    (tmp_path / "mine" / LOCK).touch()  # train was killed before it wrote more
    assert [run.name for run in overviews(tmp_path)] == ["mine"]


def test_long_names_and_many_odd_folders_keep_to_the_width(tmp_path: Path) -> None:
    for i in range(9):
        folder = written(tmp_path / f"{i}-{'x' * 90}", steps=20_000, done=1)
        (folder / RECIPE).unlink()
        (folder / ABOUT).write_text(json.dumps({"algorithm": {"name": "an-algorithm-of-my-own" * 9}}))
    for width in (60, 80, 120):
        shown = listing(tmp_path, width=width).splitlines()
        assert max(map(len, shown[:-1])) <= max(width, 70)
    assert "4 more folders are old or damaged; --json shows all" in shown
    assert len(shown) == 1 + 9 + 5 + 1 + 1


def test_control_characters_of_a_name_do_not_reach_the_terminal(tmp_path: Path) -> None:
    written(tmp_path / "a\x1b[2Jb", steps=9)
    assert "\x1b" not in listing(tmp_path).splitlines()[1]


def test_json_has_everything(tmp_path: Path) -> None:
    written(tmp_path / "one", finished=True)
    [run] = json.loads(listing(tmp_path, json=True))
    assert run.pop("age") > 1e9
    assert run.pop("words") == "finished: 4 steps"
    assert run == {
        "name": "one",
        "folder": str(tmp_path / "one"),
        "state": "finished",
        "step": 4,
        "steps": 4,
        "held_out": {"measure": "pass rate", "before": 0.25, "last": 0.5, "step": 4},
        "algorithm": "gspo",
        "started": 100.0,
        "notes": [],
    }


def test_without_runs_there_is_one_line_that_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    line = "runs holds no run yet; begin one with: groupwise train quickstart"
    assert listing() == line
    (tmp_path / "runs").mkdir()
    assert listing() == line
    assert json.loads(listing(json=True)) == []


def test_what_is_no_folder_of_runs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    written(tmp_path / "run")
    for name, words in (("none", "there is no such folder"), ("file", "this is a file"), ("run", "this is a run; ")):
        with pytest.raises(UsageError, match=words):
            listing(tmp_path / name)


def test_no_tensors_are_loaded(tmp_path: Path) -> None:
    """A listing answers at once: torch alone would take seconds."""
    written(tmp_path / "one")
    heavy = "{'torch', 'transformers', 'pydantic', 'plotly'}"
    code = (
        f"import sys; from groupwise.commands.runs import listing; listing(); sys.exit(len({heavy} & {{*sys.modules}}))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False)
    assert done.returncode == 0
