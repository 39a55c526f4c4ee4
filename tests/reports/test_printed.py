"""`groupwise report --text` and `--csv`, and the list of `groupwise watch`: what is printed and served."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest

from groupwise.core.errors import UsageError
from groupwise.reports import make, runs_page
from groupwise.reports.folder.read import METRICS, RECIPE
from groupwise.reports.runs_page import RunsDesk
from groupwise.reports.table import as_csv
from groupwise.reports.text import BLOCKS, Line, lines
from tests.reports.test_report_parts import folder as folder
from tests.reports.written_runs import being_written


def plain(line: Line) -> str:
    return "".join(part if isinstance(part, str) else part[0] for part in line)


def test_the_table_has_a_row_a_step_and_every_number_that_the_run_wrote(folder: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv([folder]))))
    assert [row["step"] for row in rows] == ["0", "1", "2", "3"]
    assert [row["generated_tokens"] for row in rows] == ["", "10", "20", "30"]
    assert [row["evaluation.avg_at_k"] for row in rows] == ["0.0", "", "", "0.75"]
    assert "run" not in rows[0]


def test_the_table_of_several_runs_names_each(folder: Path) -> None:
    other = folder.with_name('a "b", c')
    other.mkdir()
    (other / METRICS).write_text(json.dumps({"step": 1, "loss": 2}) + "\n")
    rows = list(csv.DictReader(io.StringIO(as_csv([folder, other]))))
    assert [row["run"] for row in rows] == ["run"] * 4 + [other.name]
    assert (rows[-1]["loss"], rows[0]["loss"]) == ("2", "")


@pytest.mark.parametrize("width", [40, 80, 110])
@pytest.mark.parametrize("blocks", [True, False])
def test_the_text_fits_its_width_and_is_ascii_where_it_must_be(folder: Path, width: int, blocks: bool) -> None:
    text = [plain(line) for line in lines(folder, width, blocks)]
    assert max(map(len, text)) <= width
    assert "\n".join(text).isascii() is not blocks
    assert any("Did it learn?" in line for line in text)
    assert any(line.startswith("  evaluat") and line.rstrip().endswith("0 to 0.75") for line in text)


def test_an_encoding_without_blocks_gets_none(folder: Path) -> None:
    for encoding, has in (("utf-8", True), ("ascii", False), ("latin-1", False), ("no such", False)):
        text = "\n".join(map(plain, make.in_text(folder, 80, encoding)))
        assert any(block in text for block in BLOCKS) is has


@pytest.mark.parametrize(
    ("runs", "out", "text", "csv", "words"),
    [
        (1, None, True, True, "one of them"),
        (1, Path("x.csv"), False, True, "> x.csv"),
        (2, None, True, False, "one run"),
    ],
)
def test_options_that_do_not_go_together_are_one_line(runs, out, text, csv, words) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        make.require_alone([Path("a")] * runs, out, text, csv)


# The list of runs


def get(desk: RunsDesk, target: str) -> tuple[int, str]:
    reply = desk.reply(target)
    return reply.code, reply.body.decode()


def test_the_list_links_to_the_live_page_of_each_run(folder: Path, tmp_path: Path) -> None:
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / METRICS).write_text("")
    (tmp_path / "no run").mkdir()
    with being_written(tmp_path / "a <b>", 4):
        desk = RunsDesk(tmp_path, "/key/")
        code, text = get(desk, "/key/")
        assert code == 200
        assert re.findall(r'href="([^"]+/)"', text) == ["a%20%3Cb%3E/", "run/"]
        assert "a &lt;b&gt;" in text
        assert "<b>" not in text
        assert "0.000 to 0.750" in text
        assert "3 of 3" in text
        assert '<span class="running">running</span>' in text
        code, page = get(desk, "/key/run/")
        assert code == 200
        assert '"url":"/key/run/fresh"' in page
        assert get(desk, "/key/a%20%3Cb%3E/fresh?rollout=-1")[0] == 200


@pytest.mark.parametrize(
    "target",
    ["/", "/kex/", "/kex/run/", "/key/run", "/key/no%20run/", "/key/../", "/key/%2e%2e/", "/key/%2e%2e%2frun/"],
)
def test_nothing_else_is_served(target: str, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "no run").mkdir()
    code, text = get(RunsDesk(tmp_path, "/key/"), target)
    assert code == 404
    assert text.count("\n") == 1


def test_a_run_is_read_again_only_when_it_changed(folder: Path, tmp_path: Path, monkeypatch) -> None:
    desk, read = RunsDesk(tmp_path), []
    whole = runs_page.overview
    monkeypatch.setattr(runs_page, "overview", lambda path, name: read.append(name) or whole(path, name))
    assert [row.step for row in desk.rows()] == ["3 of 3"]
    desk.rows()
    assert read == ["run"]
    with (folder / METRICS).open("a") as file:
        file.write('{"step": 4}\n')
    assert [row.step for row in desk.rows()] == ["4 of 3"]


def test_a_damaged_run_is_a_row_and_an_empty_folder_says_what_to_do(tmp_path: Path) -> None:
    assert "groupwise train quickstart" in get(RunsDesk(tmp_path), "/")[1]
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / RECIPE).write_text("steps = [")
    assert [row.name for row in RunsDesk(tmp_path).rows()] == ["old"]
    assert get(RunsDesk(tmp_path), "/old/")[0] == 200


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no such folder here; name a run"):
        RunsDesk(tmp_path / "runs")


def test_the_folder_and_a_name_are_shown_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "{{style}}").mkdir()
    (tmp_path / "{{style}}" / METRICS).write_text("")
    text = get(RunsDesk(tmp_path), "/")[1]
    assert f"<h1>Runs in {tmp_path}</h1>" in text
    assert f"<title>Runs in {tmp_path}</title>" in text
    assert re.findall(r"{{.*?}}", text) == ["{{style}}"]


def test_no_more_pages_are_held_than_a_few(tmp_path: Path) -> None:
    for i in range(6):
        (tmp_path / f"r{i}").mkdir()
        (tmp_path / f"r{i}" / METRICS).write_text('{"step": 1}\n')
    desk = RunsDesk(tmp_path)
    for i in range(6):
        assert get(desk, f"/r{i}/fresh")[0] == 200
    assert len(desk._desks) == runs_page.MOST_OPEN
