"""Events of a run that its charts mark: evaluations, checkpoints, warnings, resumes and returns."""

import re
from collections.abc import Iterator

from groupwise.core.files.atomic import open_regular
from groupwise.reports.folder.lines import count_of, tables
from groupwise.reports.folder.read import LOG, RunFolder
from groupwise.reports.records import Event

#: The folder of a run's checkpoints, and the names in it.
CHECKPOINTS, CHECKPOINT = "checkpoints", re.compile(r"step-(\d{1,15})")
#: A warning in log.txt, with its step and its name.
WARNING = re.compile(r"^step (\d{1,15}): warning, ([^:\n]{1,80}):", re.MULTILINE)
#: Events of one kind beyond which a chart would be all marks.
MOST = 200


def events(run: RunFolder) -> tuple[Event, ...]:
    """Gather what happened, by step. Of a checkpoint that was removed again nothing is known."""
    kinds = (
        [Event(row["step"], "evaluation") for row in run.evaluation_rows],
        [Event(step, "checkpoint") for step in _checkpoints(run)],
        [*_warnings(run)],
        [*_turns_of_fate(run)],
    )
    return tuple(sorted((event for kind in kinds for event in kind[-MOST:]), key=lambda event: event.step))


def _checkpoints(run: RunFolder) -> list[int]:
    try:
        names = [CHECKPOINT.fullmatch(path.name) for path in (run.folder / CHECKPOINTS).iterdir()]
    except OSError:
        return []
    return sorted(int(name[1]) for name in names if name)


def _warnings(run: RunFolder) -> Iterator[Event]:
    try:
        with open_regular(run.folder / LOG) as file:
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return
    for found in WARNING.finditer(text):
        yield Event(int(found[1]), "warning", found[2])


def _turns_of_fate(run: RunFolder) -> Iterator[Event]:
    for row in tables(run.about.get("resumed")):
        if step := count_of(row.get("step")):
            yield Event(step, "resumed")
    for row in tables(run.about.get("rolled_back")):
        if step := count_of(row.get("from_step")):
            yield Event(step, "went back", f"to step {count_of(row.get('to_step')) or 0}")
