"""examples/quickstart.ipynb: its cells run in order, and do what it says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.core.test_live_code import cached
from tests.docs.pages import ROOT

FILE = ROOT / "examples" / "quickstart.ipynb"
CELLS: list[dict[str, Any]] = json.loads(FILE.read_text())["cells"]
CODE = ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"]


@pytest.mark.slow
def test_its_cells_run_in_order_and_the_policy_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, text in enumerate(CODE):
        exec(cached(text, f"<cell {number}>"), names)
    run = names["run"]
    assert run.finished
    assert run.folder == tmp_path / "runs" / "notebook"
    assert run.summary["heldout_after"] > run.summary["heldout_before"]
    curves = {curve.name: curve for curve in names["figure"].data}
    assert len(curves["pass_rate"].x) == 16
    assert list(curves["evaluation.avg_at_k"].x) == [0, 8, 16]
    gradient = names["logp_live"].grad
    right = names["rewards"] == 1
    assert (gradient[right] < 0).all()
    assert (gradient[~right] > 0).all()
    assert len(names["results"].differences) == 1
    assert re.search(r"^16 \d[\d+-]*= ", capsys.readouterr().out, re.MULTILINE)


def test_it_is_kept_without_outputs_and_its_links_lead_somewhere() -> None:
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in CELLS if "outputs" in cell)
    assert len({cell["id"] for cell in CELLS}) == len(CELLS)
    text = "".join(line for cell in CELLS if cell["cell_type"] == "markdown" for line in cell["source"])
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) == 2
    assert [link for link in links if not (FILE.parent / link).is_file()] == []
