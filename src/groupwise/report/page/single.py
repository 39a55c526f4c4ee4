"""One run folder -> its page: what was read, put together; nothing is computed or worded here."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from groupwise.health.watch import findings
from groupwise.report.folder import columns, facts
from groupwise.report.folder.read import ROLLOUTS, RunFolder, read
from groupwise.report.folder.sample import points, sample
from groupwise.report.page.answers import Told, answers, check_lines
from groupwise.report.page.data import Curves, Page, Rollouts, RunPage
from groupwise.report.page.plots import SECTIONS, plots_for

#: Rows of curves that a page holds; of a longer run, rows spread evenly.
MOST_ROWS = 4000


def page(folder: Path) -> Page:
    """The page of one run. Raises UsageError where the folder is none of a run."""
    run = read(folder)
    return page_of(run, sample(run.folder / ROLLOUTS))


def page_of(run: RunFolder, rollouts: Rollouts) -> Page:
    """The same, of what was read."""
    told = run_page(run, rollouts)
    return Page(
        title=run.name,
        made=now(),
        sections=SECTIONS,
        plots=plots_for(told.steps.columns, told.evaluations.columns, tuple(told.points)),
        runs=(told,),
    )


def run_page(run: RunFolder, rollouts: Rollouts) -> RunPage:
    """Everything that a page says of a run."""
    steps = columns.steps(run.step_rows, run.machine_rows)
    found = findings([*run.step_rows, *run.evaluation_rows], run.recipe or {})
    told = Told(run.recipe or {}, run.summary, run.step_rows, run.evaluation_rows, rollouts.groups, found)
    return RunPage(
        id="run-1",
        label=run.name,
        status=run.status,
        notes=(*run.notes, *thinned(steps)),
        answers=answers(told),
        checks=check_lines(run.step_rows),
        findings=found,
        steps=columns.rounded(columns.thin(steps, MOST_ROWS)),
        evaluations=columns.rounded(columns.evaluations(run.evaluation_rows)),
        points=points(rollouts.groups),
        rollouts=rollouts,
        tables=facts.tables(run),
        texts=facts.texts(run),
    )


def thinned(steps: Curves) -> Sequence[str]:
    """What a page says where it does not hold every row."""
    if len(steps.step) <= MOST_ROWS:
        return ()
    return (f"the plots show {MOST_ROWS:,} of the run's {len(steps.step):,} steps, spread evenly",)


def now() -> str:
    return time.strftime("%Y-%m-%d %H:%M")
