"""One run folder -> its page: what was read, put together; nothing is computed or worded here."""

import time
from collections.abc import Sequence
from pathlib import Path

from groupwise.health.symptoms.base import History
from groupwise.health.watch import findings
from groupwise.reports.folder import columns, facts
from groupwise.reports.folder.read import HELDOUT, ROLLOUTS, RunFolder, read
from groupwise.reports.folder.sample import points, sample, with_heldout
from groupwise.reports.page.answers import Known, answers, check_lines
from groupwise.reports.page.plots import SECTIONS, plots_for
from groupwise.reports.records import Page, RolloutGroup, Rollouts, RunPage

#: Rows of curves that a page holds; of a longer run, rows spread evenly.
MOST_ROWS = 4000


def page(folder: Path) -> Page:
    """Make the page of one run. Raises UsageError if the folder is none of a run."""
    run = read(folder)
    rollouts, _ = sample(run.folder / ROLLOUTS)
    return page_of(run, rollouts.groups, with_heldout(rollouts, run.folder / HELDOUT))


def page_of(run: RunFolder, groups: Sequence[RolloutGroup], shown: Rollouts | None) -> Page:
    """Make the page of a run that was read.

    groups  a sample of its rollouts, for an example and for the plots of points
    shown   the rollouts that the browser holds
    """
    content = _run_page(run, groups, shown)
    return Page(
        title=run.name,
        written=now(),
        sections=SECTIONS,
        plots=plots_for(content.steps.columns, content.evaluations.columns, tuple(content.points)),
        runs=(content,),
    )


def _run_page(run: RunFolder, groups: Sequence[RolloutGroup], shown: Rollouts | None) -> RunPage:
    """Gather everything that a page says of a run."""
    steps, notes = columns.steps(run.step_rows, run.machine_rows), run.notes
    if len(steps.step) > MOST_ROWS:
        notes += (f"the plots show {MOST_ROWS:,} of the run's {len(steps.step):,} steps, spread evenly",)
    compares = facts.compares_within_group(run.about)
    history = History(run.step_rows, run.evaluation_rows, run.recipe, compares, run.machine_rows)
    seen = findings(history)
    return RunPage(
        id="run-1",
        label=run.name,
        status=run.status,
        notes=notes,
        answers=answers(Known(history, run.summary is not None, groups, seen)),
        checks=check_lines(run.step_rows),
        findings=seen,
        steps=columns.rounded(columns.thin(steps, MOST_ROWS)),
        evaluations=columns.rounded(columns.evaluations(run.evaluation_rows)),
        points=points(groups),
        rollouts=shown,
        tables=facts.tables(run),
        texts=facts.texts(run),
    )


def now() -> str:
    return time.strftime("%Y-%m-%d %H:%M")
