"""A run folder in every state in which a person may find it: each is read, and what is odd is told in one line."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from groupwise.core.errors import UsageError
from groupwise.journal import journal
from groupwise.reports.folder import columns, facts, read
from groupwise.reports.folder.read import RunFolder

RECIPE = 'name = "x"\nseed = 3\nsteps = 4\nmodel = "tiny-dense"\nprompts_per_step = 8\nsamples_per_prompt = 4\n'
ALGORITHM = (
    '[task]\nname = "arithmetic"\n[algorithm]\nname = "grpo"\n[algorithm.trust]\nkind = "clip"\nepsilon_low = 0.2\n'
)


def step(number: int, **more: Any) -> dict[str, Any]:
    return {"step": number, "loss": number / 8, "seconds": {"update": 0.5, "generate": 0.25}, **more}


def evaluation(number: int, **more: Any) -> dict[str, Any]:
    return {"step": number, "evaluation": {"avg_at_k": 0.5, **more}, "seconds": {"evaluate": 0.1}}


def lines(*rows: object) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


GOOD = lines(evaluation(0), step(1), step(2), step(3), step(4), evaluation(4))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run that was killed after its last step: the smallest that is sound."""
    found = tmp_path / "a run"
    found.mkdir()
    (found / read.RECIPE).write_text(RECIPE + ALGORITHM)
    (found / read.METRICS).write_bytes(GOOD)
    (found / read.ROLLOUTS).write_bytes(b"")
    return found


def written(folder: Path, metrics: bytes) -> RunFolder:
    (folder / read.METRICS).write_bytes(metrics)
    return read.read(folder)


def seen(run: RunFolder) -> list[int]:
    return [row["step"] for row in run.step_rows]


def test_the_names_of_the_files_are_the_journals() -> None:
    assert (read.METRICS, read.ROLLOUTS, read.LOG) == (journal.METRICS, journal.ROLLOUTS, journal.LOG)
    assert (read.RECIPE, read.SUMMARY) == (journal.RECIPE, journal.SUMMARY)


@pytest.mark.parametrize("module", ["folder.sample", "folder.facts", "compare.compare", "live"])
def test_reading_does_not_wait_for_torch(module: str) -> None:
    code = f"import sys, groupwise.reports.{module}; sys.exit(bool({{'torch', 'transformers'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_sound_folder(folder: Path) -> None:
    run = read.read(folder)
    assert (run.name, seen(run), [row["step"] for row in run.evaluation_rows]) == ("a run", [1, 2, 3, 4], [0, 4])
    assert run.notes == ()
    assert (run.recipe or {})["algorithm"]["trust"] == {"kind": "clip", "epsilon_low": 0.2}
    assert (run.about, run.summary, run.machine_rows) == ({}, None, [])


@pytest.mark.parametrize(
    ("metrics", "steps", "note"),
    [
        (GOOD[:-30], [1, 2, 3, 4], "the last line is cut off and was left out"),
        (lines(step(1), step(2))[:-1], [1, 2], None),
        (lines(step(1)) + b'{"step": 2, "lo\n' + lines(step(3)), [1, 3], "1 line is cut off or damaged"),
        (lines(step(1)) + b'{"step": 2, "lo' + lines(step(3)), [1, 3], "1 line is cut off or damaged"),
        (lines(step(1))[:-1] + lines(step(2)), [1, 2], "1 line is cut off or damaged"),
        (lines(step(1)) + bytes(4096) + lines(step(2)), [1, 2], "1 line is cut off or damaged"),
        (lines(step(1)) + b'{"step": 2, "w": "\xff\xfe"}\n', [1, 2], "1 line has bytes that are not UTF-8"),
        (lines(step(1), [1, 2], 7, "x", None, step(2)), [1, 2], "4 lines are JSON but no object"),
        (lines(step(1), {"loss": 1.0}, {"step": "2"}, {"step": 2.5}, {"step": -1}), [1], "4 rows have no whole number"),
        (lines(step(1), step(2), step(3), step(2, again=1)), [1, 2, 3], "1 row is of a step that was there already"),
        (lines(step(2), step(1), {"step": 3.0}), [1, 2, 3], None),
        (b'{"step": 1, "loss": NaN, "kl_mean": -Infinity}\n', [1], "2 values are written as NaN or Infinity"),
        (lines(step(1), {"step": 2, "seconds": 3}), [1, 2], "1 row has a text or a number where a table belongs"),
        (lines(step(1), {"step": 1, "evaluation": 5}), [1], "1 row has a text or a number where a table belongs"),
        (lines(step(1)) + b"[" * 200_000 + b"\n", [1], "1 line is cut off or damaged"),
        (b"\n\n" + lines(step(1)).replace(b"\n", b"\r\n") + b"\n", [1], None),
        (b"\xef\xbb\xbf" + lines(step(1)), [1], None),
        (lines(step(1, note="\ud800")), [1], None),
    ],
)
def test_metrics_that_are_not_as_they_should_be(
    metrics: bytes, steps: list[int], note: str | None, folder: Path
) -> None:
    run = written(folder, metrics)
    assert seen(run) == steps
    assert len(run.notes) == (note is not None)
    assert not note or f"{read.METRICS}: {note}" in run.notes[0]
    columns.steps(run.step_rows)
    columns.evaluations(run.evaluation_rows)
    json.dumps(run.step_rows, ensure_ascii=False).encode()


def test_of_a_step_that_was_written_twice_the_later_row_counts(folder: Path) -> None:
    run = written(folder, lines(step(1), step(2), step(1, loss=7.0), evaluation(1), evaluation(1, avg_at_k=0.75)))
    assert run.step_rows[0]["loss"] == 7.0
    assert run.evaluation_rows[0]["evaluation"]["avg_at_k"] == 0.75
    assert "2 rows are of steps that were there already" in run.notes[0]


@pytest.mark.parametrize(
    ("name", "text", "note"),
    [
        ("about.json", "{", "about.json is cut off or damaged"),
        ("about.json", "[1]", "about.json is cut off or damaged"),
        ("summary.json", "", "summary.json is cut off or damaged"),
        ("recipe.toml", "a = = 1", "recipe.toml is not a TOML file"),
        ("machine.jsonl", '{"step": 1, "memory_peak_mib": 5}\n{"step"', "machine.jsonl: the last line is cut off"),
    ],
)
def test_other_files_that_are_damaged(name: str, text: str, note: str, folder: Path) -> None:
    (folder / name).write_text(text)
    run = read.read(folder)
    assert len(run.notes) == 1
    assert note in run.notes[0]
    assert seen(run) == [1, 2, 3, 4]
    facts.tables(run)


@pytest.mark.parametrize(
    ("name", "note"),
    [
        (read.RECIPE, "recipe.toml is missing"),
        (read.METRICS, "metrics.jsonl is missing"),
        (read.ROLLOUTS, "rollouts.jsonl is missing"),
    ],
)
def test_files_that_are_missing_or_cannot_be_read(name: str, note: str, folder: Path) -> None:
    (folder / name).unlink()
    run = read.read(folder)
    assert [note in told for told in run.notes] == [True]
    (folder / name).mkdir()
    assert [name in told for told in read.read(folder).notes] == [True] * (name != read.ROLLOUTS)


def test_what_is_no_run_is_refused_in_one_line(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for asked, told in (
        ("nowhere", "there is no such folder"),
        ("file", "this is a file"),
        ("empty", "a run folder is what groupwise train makes"),
        (".", f"this holds runs, name one, such as {tmp_path / 'a run'}"),
        ("x" * 300, "cannot be read: File name too long"),
    ):
        with pytest.raises(UsageError, match=r"with recipe.toml and metrics.jsonl in it") as refused:
            read.read(tmp_path / asked)
        assert told in str(refused.value)
        assert len(str(refused.value).splitlines()) == 1


KILLED, FAILED = lines(step(1), step(2)), "starting policy a\nerror: step 3: disk is full.\n"


@pytest.mark.parametrize(
    ("metrics", "log", "summary", "state", "words"),
    [
        (GOOD, "", {"steps": 4, "seconds_total": 73.8}, "finished", "finished: 4 steps in 74 s"),
        (GOOD, "", {"steps": 2}, "stopped", "stopped after step 4 of 4, "),
        (KILLED, "", None, "stopped", "stopped after step 2 of 4, "),
        (
            KILLED,
            FAILED,
            None,
            "failed",
            "failed after step 2 of 4: step 3: disk is full; go on with: ",
        ),
        (GOOD, FAILED, None, "stopped", "stopped after step 4 of 4, "),
        (
            b"",
            "error: the model cannot be loaded\n",
            None,
            "failed",
            "failed before its first step was done: the ",
        ),
    ],
    ids=["finished", "asked for more", "killed", "failed", "an error that a resumed run got past", "never begun"],
)
def test_the_state_of_a_run(
    metrics: bytes, log: str, summary: dict[str, Any] | None, state: str, words: str, folder: Path
) -> None:
    (folder / read.METRICS).write_bytes(metrics)
    (folder / read.LOG).write_text(log)
    if summary:
        (folder / read.SUMMARY).write_text(json.dumps(summary))
    found = read.read(folder).status
    assert (found.state, found.words[: len(words)]) == (state, words)
    assert state == "finished" or found.words.endswith(f"go on with: groupwise train --resume '{folder}'")


@pytest.mark.parametrize("metrics", [b"", None])
def test_a_run_that_logged_nothing_yet(metrics: bytes | None, folder: Path) -> None:
    (folder / read.METRICS).unlink() if metrics is None else written(folder, metrics)
    (folder / read.ROLLOUTS).unlink()
    (folder / read.LOCK).touch()  # of a run that was begun; with a recipe alone it is a project
    run = read.read(folder)
    assert (run.status.state, run.step_rows, run.notes) == ("empty", [], ())


@pytest.fixture
def going(folder: Path) -> Iterator[Path]:
    """A run whose lock another process holds, and which is in the middle of a line."""
    code = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(1, flush=True); input()"
    words = [sys.executable, "-c", code, str(folder / read.LOCK)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdin is not None
        writer.stdout.readline()
        (folder / read.METRICS).write_bytes(lines(step(1), step(2)) + b'{"step": 3, "lo')
        yield folder
        writer.stdin.close()


def test_a_run_that_is_going_on(going: Path) -> None:
    run = read.read(going)
    assert (run.status.state, run.status.words) == ("going", "going on: step 2 of 4 is done")
    assert run.notes == (), "half a line is no oddity where it is being written"
    going.chmod(0o555)
    assert read.read(going).status.state == "going"
    going.chmod(0o755)


def test_asking_whether_a_run_goes_on_does_not_keep_it_from_being_resumed(folder: Path) -> None:
    (folder / read.LOCK).write_text("")
    assert not read.is_held(folder / read.LOCK)
    with (folder / read.LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
