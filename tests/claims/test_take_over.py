"""Rows of the stability experiment become rows of claims, once, and as they are."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

from groupwise.claims.articles import chosen
from groupwise.claims.articles.experts import run
from groupwise.claims.command import current, read_rows
from groupwise.claims.measurements import Outcome

ROOT = Path(__file__).parents[2]
STABILITY = ROOT / "docs" / "evidence" / "moe-stability.jsonl"
CLAIMS = chosen(["replay-mends", "replay-unneeded"])


@pytest.fixture
def take_over(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("take_over")


def test_numbers_are_those_of_the_experiment(take_over: ModuleType) -> None:
    first = json.loads(STABILITY.read_text().splitlines()[0])
    told, variance = take_over.numbers(first), first["curves"]["log_ratio_variance"]
    assert told["heldout_end"] == pytest.approx(first["heldout"][-1][1], abs=1e-5)
    assert told["curves"]["entropy_mean"] == first["curves"]["entropy_mean"]
    assert told["log_ratio_variance.mean"] == pytest.approx(sum(variance) / len(variance), rel=1e-5)


def test_each_run_that_claims_read_is_taken_over_once(tmp_path: Path, take_over: ModuleType) -> None:
    rows = tmp_path / "rows.jsonl"
    for _ in range(2):
        take_over.main(STABILITY, rows)
        assert len(read_rows(rows)) == 12 * 3
    known = current(CLAIMS, read_rows(rows))
    assert all(claim.verdict(known).outcome is not Outcome.NOT_MEASURED for claim in CLAIMS)
    lines = [json.loads(line) for line in STABILITY.read_text().splitlines()]
    settings = ["learner.learning_rate=1e-3"]
    (slow,) = (row for row in lines if (row["recipe"], row["settings"], row["seed"]) == ("gspo-r2", settings, 2))
    (fast,) = (row for row in lines if (row["recipe"], row["settings"], row["seed"]) == ("gspo-r2", [], 2))
    for rate, row in ((1e-3, slow), (1.5e-3, fast)):
        ends = known.values(run("gspo-r2", rate).name, "heldout_end")
        assert ends[2] == pytest.approx(row["heldout"][-1][1], abs=1e-5)
