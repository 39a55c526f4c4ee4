"""Several run folders -> one page."""

from collections.abc import Sequence
from pathlib import Path

from groupwise.report.compare.compare import comparison
from groupwise.report.compare.members import Member
from groupwise.report.folder import columns, facts
from groupwise.report.folder.read import RunFolder, read
from groupwise.report.page.plots import SECTIONS, plots_for
from groupwise.report.page.single import MOST_ROWS, now
from groupwise.report.records import Page

#: Rows of curves for each run: several runs share the page.
ROWS_TOGETHER = 4 * MOST_ROWS


def page(folders: Sequence[Path]) -> Page:
    """The page of runs side by side. Raises UsageError where one is no run, or given twice."""
    runs = [read(folder) for folder in folders]
    rows = max(100, ROWS_TOGETHER // len(runs))
    return comparison([member(run, rows) for run in runs], title(runs), plots_for, SECTIONS, now())


def member(run: RunFolder, rows: int) -> Member:
    """A run as a comparison sees it."""
    return Member(
        label=run.name,
        recipe=run.recipe or {},
        steps=columns.rounded(columns.thin(columns.steps(run.step_rows, run.machine_rows), rows)),
        evaluations=columns.rounded(columns.evaluations(run.evaluation_rows)),
        evaluation_rows=run.evaluation_rows,
        status=run.status,
        notes=run.notes,
        folder=str(run.folder),
        about=run.about,
        tables=facts.tables(run),
        texts=facts.texts(run),
    )


def title(runs: Sequence[RunFolder]) -> str:
    """What the page is called."""
    names = [run.name for run in runs]
    return " · ".join(names) if len(names) <= 4 else f"{len(names)} runs: {names[0]} to {names[-1]}"
