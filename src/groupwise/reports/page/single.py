"""One run folder -> its page: what was read, put together; nothing is computed or worded here."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from groupwise.health.symptoms.base import History
from groupwise.health.watch import findings
from groupwise.reports.folder import columns, facts
from groupwise.reports.folder.lines import Row
from groupwise.reports.folder.read import HELDOUT, ROLLOUTS, RunFolder, read
from groupwise.reports.folder.sample import points, sample, with_heldout
from groupwise.reports.page.answers import Known, answers, check_lines
from groupwise.reports.page.plots import SECTIONS, plots_for
from groupwise.reports.records import Answer, CheckLine, Curves, Finding, Page, RolloutGroup, Rollouts, RunPage

#: Rows of curves that a page holds; of a longer run, rows spread evenly.
MOST_ROWS = 4000


class Words(NamedTuple):
    """What a page says in words of a run."""

    answers: tuple[Answer, ...]
    checks: tuple[CheckLine, ...]
    findings: tuple[Finding, ...]


def page(folder: Path) -> Page:
    """The page of one run. Raises UsageError where the folder is none of a run."""
    run = read(folder)
    return page_of(run, sample(run.folder / ROLLOUTS)[0])


def page_of(run: RunFolder, rollouts: Rollouts) -> Page:
    """The same, of what was read."""
    content = run_page(run, rollouts)
    return Page(
        title=run.name,
        written=now(),
        sections=SECTIONS,
        plots=plots_for(content.steps.columns, content.evaluations.columns, tuple(content.points)),
        runs=(content,),
    )


def run_page(run: RunFolder, rollouts: Rollouts) -> RunPage:
    """Everything that a page says of a run."""
    steps = columns.steps(run.step_rows, run.machine_rows)
    words = words_of(run, run.summary, run.step_rows, run.evaluation_rows, run.machine_rows, rollouts.groups)
    return RunPage(
        id="run-1",
        label=run.name,
        status=run.status,
        notes=(*run.notes, *thinned(steps)),
        **words._asdict(),
        steps=columns.rounded(columns.thin(steps, MOST_ROWS)),
        evaluations=columns.rounded(columns.evaluations(run.evaluation_rows)),
        points=points(rollouts.groups),
        rollouts=with_heldout(rollouts, run.folder / HELDOUT),
        tables=facts.tables(run),
        texts=facts.texts(run),
    )


def words_of(
    run: RunFolder,
    summary: Mapping[str, Any] | None,
    steps: Sequence[Row],
    evaluations: Sequence[Row],
    machine: Sequence[Row],
    groups: Sequence[RolloutGroup],
) -> Words:
    """What is said of a run with these rows."""
    history = History(steps, evaluations, run.recipe, facts.compares_within_group(run.about), machine)
    seen = findings(history)
    known = Known(history, summary is not None, groups, seen)
    return Words(answers(known), check_lines(steps), seen)


def thinned(steps: Curves) -> Sequence[str]:
    """What a page says where it does not hold every row."""
    if len(steps.step) <= MOST_ROWS:
        return ()
    return (f"the plots show {MOST_ROWS:,} of the run's {len(steps.step):,} steps, spread evenly",)


def now() -> str:
    return time.strftime("%Y-%m-%d %H:%M")
