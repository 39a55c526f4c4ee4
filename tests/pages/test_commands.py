"""`groupwise report` and `groupwise watch` as they are typed."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import orjson
import pytest

from groupwise.cli import __main__ as cli
from groupwise.reports.make import make, place

#: What is asked wrongly, and what the line says of it.
WRONG = [
    (["report", "nowhere"], ("nowhere", "no such folder")),
    (["report", "empty"], ("empty", "a run folder is what groupwise train makes")),
    (["report", "run", "run"], ("run", "twice")),
    (["report", "run", "--out", "notes.txt"], ("notes.txt", "choose another")),
    (["report", "run", "--out", "empty"], ("empty", "that is a folder")),
    (["report"], ("Missing argument",)),
    (["watch", "nowhere"], ("nowhere", "no such folder")),
    (["watch", "run", "--port", "70000"], ("--port", "65535")),
    (["watch"], ("runs", "there is no such folder here", "groupwise watch RUN")),
    (["report", "run", "--text", "--csv"], ("--text and --csv both print",)),
    (["report", "empty", "--text"], ("empty", "a run folder is what groupwise train makes")),
]


@pytest.fixture
def here(tmp_path: Path, run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a run, an empty folder, and a file that is none of ours."""
    shutil.copytree(run_folder, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["groupwise", *words])
    with pytest.raises(SystemExit) as leaving:
        cli.main()
    return int(leaving.value.code or 0), *capfd.readouterr()


@pytest.mark.parametrize(("words", "told"), WRONG, ids=[" ".join(words) for words, _ in WRONG])
def test_a_bad_request_is_one_line_and_nothing_is_lost(words, told, here, monkeypatch, capfd):
    code, _, err = call(monkeypatch, capfd, *words)
    assert code == 2
    assert all(part in err for part in told), err
    assert len(err.strip().splitlines()) == 1
    assert (here / "notes.txt").read_text() == "mine"


def test_a_report_is_written_beside_its_run(here, monkeypatch, capfd):
    (here / "run" / "report.html").unlink()
    code, out, _ = call(monkeypatch, capfd, "report", "run")
    assert code == 0
    assert "run/report.html" in out
    assert (here / "run" / "report.html").stat().st_size < 12e6


def test_what_is_printed_in_a_pipe_has_no_colour_and_80_columns_and_writes_no_file(here, monkeypatch, capfd):
    (here / "run" / "report.html").unlink()
    code, out, err = call(monkeypatch, capfd, "report", "run", "--text")
    assert (code, err) == (0, "")
    assert "Did it learn?" in out
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 80
    code, out, err = call(monkeypatch, capfd, "report", "run", "--csv")
    assert (code, err) == (0, "")
    assert out.startswith("step,")
    assert len(out.splitlines()) == 1 + 5
    assert not (here / "run" / "report.html").exists()


def test_a_comparison_is_written_beside_the_runs(here, monkeypatch, capfd):
    shutil.copytree(here / "run", here / "other")
    code, out, _ = call(monkeypatch, capfd, "report", "run", "other")
    assert code == 0
    assert (here / "comparison.html").is_file()
    assert "comparison.html" in out


def test_runs_of_several_folders_are_compared_where_one_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert place([Path("runs/a"), Path("runs/b")]) == Path("runs/comparison.html")
    assert place([Path("runs/a"), Path("others/b")]) == Path("comparison.html")
    assert place([Path("runs/a")]) == Path("runs/a/report.html")


def test_a_run_without_anything_yet_has_a_page(here):
    folder = here / "new"
    folder.mkdir()
    shutil.copy(here / "run" / "recipe.toml", folder)
    (folder / ".lock").touch()
    made = make([folder])
    assert b"nothing was logged yet" in made.path.read_bytes()


def test_runs_of_different_tasks_and_metrics_stand_side_by_side(here):
    other = here / "other"
    shutil.copytree(here / "run", other)
    recipe = (other / "recipe.toml").read_text().replace('name = "arithmetic"', 'name = "gsm8k"')
    (other / "recipe.toml").write_text(recipe)
    rows = [orjson.loads(line) for line in (other / "metrics.jsonl").read_bytes().splitlines()]
    for row in rows:
        row.pop("entropy_mean", None)
        row["of_its_own"] = 1.0
    (other / "metrics.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    text = make([here / "run", other], here / "both.html").path.read_text()
    assert "not comparable" in text


def test_a_hundred_thousand_rollouts_are_sampled_and_the_page_says_so(here):
    folder = here / "long"
    shutil.copytree(here / "run", folder)
    lines = (folder / "rollouts.jsonl").read_bytes().splitlines(keepends=True)
    steps = {orjson.loads(line)["step"] for line in lines}
    once = [line for line in lines if orjson.loads(line)["step"] == min(steps)]
    with (folder / "rollouts.jsonl").open("wb") as file:
        for step in range(1, 100_000 // len(once) + 2):
            file.writelines(b'{"step":%d' % step + line[line.index(b",") :] for line in once)
    began = time.process_time()
    made = make([folder])
    assert time.process_time() - began < 10
    assert made.size < 12e6
    assert b"of 100,0" in made.path.read_bytes()
