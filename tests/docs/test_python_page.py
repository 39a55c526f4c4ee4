"""docs/reference/python.md: its blocks run in order, as the cells of a notebook do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import groupwise
from tests.core.test_live_code import cached

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "python.md").read_text()
CELLS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_every_block_runs_and_does_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    after: list[dict[str, Any]] = []
    for number, text in enumerate(CELLS):
        exec(cached(text, f"<cell {number}>"), names)
        after.append(dict(names))
    first, checked, mixed, rewarded, stopped, seen, last = after
    assert first["run"].folder == tmp_path / "runs" / "sums"
    assert checked["found"].faults == []
    assert mixed["run"].folder == tmp_path / "runs" / "sums-2"
    assert mixed["run"].summary["algorithm"] == "sapo"
    assert rewarded["run"].summary["heldout_by_reward"].keys() == {"task", "brief"}
    assert stopped["run"].finished
    assert seen["columns"]["step"] == [0, 1, 2, 3]
    assert seen["again"].summary == seen["run"].summary
    assert last["run"].summary["steps"] == 4
    assert last["page"] == last["run"].folder / "report.html"
    folder = last["run"].folder
    assert [policy.name for policy in last["results"].policies] == [f"{folder}:1", f"{folder}:4"]
    out = capsys.readouterr().out
    assert "import math\nSCALE = 10\n" in out
    assert re.search(r"^2 of 3 ", out, re.MULTILINE)
    assert re.search(r"^False$", out, re.MULTILINE)
    assert f"\n{folder}:4 - {folder}:1: " in out


def test_the_page_speaks_of_every_function_that_a_command_is_a_skin_of() -> None:
    for name in ("train", "resume", "evaluate", "report", "check"):
        assert callable(getattr(groupwise, name))
        assert f"groupwise.{name}(" in PAGE
