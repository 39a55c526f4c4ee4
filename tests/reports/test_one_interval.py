"""Law: the tables and the band of a page give one interval of a pass rate, whatever the rate."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from groupwise.core.numbers.statistics import over_seeds, pass_rate_interval
from groupwise.reports.compare import compare
from groupwise.reports.page.page import page_of_run
from groupwise.reports.records import Page, Table
from tests.reports.written_runs import METRICS, being_written, line

PROBLEMS, SAMPLES = 100, 4
INTERVAL = re.compile(r"(\d\.\d{3}) to (\d\.\d{3})")

#: Rate and standard error of the last evaluation; the error of runs of old was not logged.
LAST = [(1.0, 0.0), (0.9975, 0.0025), (0.95, 0.014), (0.95, None), (0.5, 0.04), (0.0, 0.0)]


def written(folder: Path, rate: float, error: float | None, seed: int = 0) -> Path:
    """A run with an evaluation before training and one after."""

    def evaluation(step: int, rate: float, error: float | None) -> dict[str, Any]:
        logged = {} if error is None else {"standard_error": error}
        return {"step": step, "evaluation": {"avg_at_k": rate, "problems": PROBLEMS, "samples": SAMPLES, **logged}}

    with being_written(folder, 1) as run:
        recipe = folder / "recipe.toml"
        recipe.write_text(f"seed = {seed}\n{recipe.read_text()}")
        step = {"step": 1, "pass_rate": 0.5, "checks": {}, "seconds": {"update": 1.0}}
        rows = [evaluation(0, 0.25, 0.03), step, evaluation(1, rate, error)]
        run.put([(METRICS, line(row)) for row in rows])
        run.finish()
    return folder


def ends_in(text: str) -> tuple[float, float]:
    ends = INTERVAL.search(text)
    assert ends is not None, text
    return float(ends[1]), float(ends[2])


def band(page: Page, run: int = 0) -> tuple[float, float]:
    """The band that the plot draws at the last evaluation, as a sentence would have it.

    Of several seeds a page's scripts draw NAME.low to NAME.high, of one run the columns that the plot names.
    """
    columns = page.runs[run].evaluations.columns
    series = next(s for plot in page.plots for s in plot.series if s.column == "avg_at_k" and s.low)
    of_seeds = page.runs[run].members > 1 and f"{series.column}.low" in columns
    ends = (f"{series.column}.low", f"{series.column}.high") if of_seeds else (series.low, series.high)
    low, high = (columns[end][-1] for end in ends)
    assert low is not None
    assert high is not None
    return round(low, 3), round(high, 3)


def cells(table: Table) -> list[str]:
    return [row[table.head.index("95 % interval")] for row in table.rows]


@pytest.mark.parametrize(("rate", "error"), LAST)
def test_tables_and_band_give_one_interval(tmp_path: Path, rate: float, error: float | None) -> None:
    folder = written(tmp_path / "a", rate, error)
    other = written(tmp_path / "b", 0.25, 0.03)
    (other / "recipe.toml").write_text((other / "recipe.toml").read_text().replace("grpo", "dapo"))
    expected = pass_rate_interval(rate, PROBLEMS, SAMPLES, float("nan") if error is None else error)
    numbers = (round(expected.low, 3), round(expected.high, 3))
    page, together = page_of_run(folder), compare.page([folder, other])
    assert band(page) == numbers
    run = next(i for i, run in enumerate(together.runs) if run.label == "grpo")
    assert band(together, run) == numbers
    final, runs = (next(t for t in together.tables if t.title == title) for title in ("Final scores", "Per run"))
    for table in (final, runs):
        assert numbers in [ends_in(cell) for cell in cells(table)]
    assert numbers[0] < numbers[1]


@pytest.mark.parametrize("rates", [(0.9, 0.95, 1.0), (0.5, 0.6, 0.4), (0.97, 0.99, 0.98)])
def test_of_several_seeds_the_table_and_the_band_give_one_interval(tmp_path: Path, rates: tuple[float, ...]) -> None:
    folders = [written(tmp_path / f"seed-{seed}", rate, 0.01, seed) for seed, rate in enumerate(rates)]
    page = compare.page(folders)
    final = next(table for table in page.tables if table.title == "Final scores")
    assert [ends_in(cell) for cell in cells(final)] == [band(page)]
    expected = over_seeds(rates)
    assert expected is not None
    assert band(page) == (round(expected.clipped().low, 3), round(expected.clipped().high, 3))
    assert "The band of the held-out pass rate is Student's 95 % interval over seeds." in page.runs[0].notes[0]
