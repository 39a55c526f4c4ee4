"""A run's page, made anew while the run goes on."""

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from groupwise.core.errors import UsageError
from groupwise.reports.folder.read import (
    HELDOUT,
    LOCK,
    LOG,
    MACHINE,
    METRICS,
    PROBLEMS,
    ROLLOUTS,
    SUMMARY,
    RunFolder,
    is_held,
    read,
)
from groupwise.reports.folder.sample import sample, with_heldout
from groupwise.reports.page.single import page_of
from groupwise.reports.records import Page, Rollouts

#: Groups that are kept for pages that ask late.
MOST_GROUPS = 200
#: Groups that one look adds at most, and their bytes.
NEW_GROUPS, NEW_BYTES = 40, 200_000
#: Making the page anew while the run goes on takes at most this share of a core, however long the run is.
SHARE = 1 / 10


class _File(NamedTuple):
    inode: int
    size: int


class Watched:
    """The source of a watched page: `page` begins a page, `fresh` tells how it is now.

    The groups of a step are shown once the step has its row in metrics.jsonl. Pages of one edition show one run without
    a break; a resume, which cuts the run's files back, begins another, and older pages have to be loaded again.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._edition = folder, 0
        self._seen: tuple[dict[str, _File], bool] = {}, False
        self.page()

    def page(self) -> Page:
        """Begin a page. Raises UsageError if the folder is none of a run, or no longer."""
        self._is_new()
        run = read(self.folder)
        self._first, self._end = sample(self.folder / ROLLOUTS, last=_last_whole(run))
        self._groups = self._first.groups[-MOST_GROUPS:]
        self._page, self._next = self._made(run), 0.0
        return _showing(self._page, with_heldout(self._first, self.folder / HELDOUT))

    def fresh(self, rollout: int) -> Page:
        """Tell how the page is now, with the groups of steps after step `rollout` alone."""
        if not self.folder.is_dir():
            raise UsageError(f"{self.folder}: the run folder is gone")
        if time.monotonic() >= self._next and self._is_new():
            began = time.thread_time()
            run = read(self.folder)
            more, self._end = sample(self.folder / ROLLOUTS, NEW_BYTES, NEW_GROUPS, _last_whole(run), self._end)
            self._groups = [*self._groups, *more.groups][-MOST_GROUPS:]
            self._page = self._made(run)
            self._next = time.monotonic() + (time.thread_time() - began) / SHARE
        late = [group for group in self._groups if group.step > rollout]
        return _showing(self._page, Rollouts(self._first.words, late) if late else None)

    def _is_new(self) -> bool:
        """Look whether the run went on; a file of rows that was cut back or replaced begins an edition."""
        before, self._seen = self._seen, (_files(self.folder), is_held(self.folder / LOCK))
        old, new = before[0], self._seen[0]
        kept = [name for name in (METRICS, ROLLOUTS) if name in old and name in new]
        self._edition += any(new[name].inode != old[name].inode or new[name].size < old[name].size for name in kept)
        return self._seen != before

    def _made(self, run: RunFolder) -> Page:
        return replace(page_of(run, self._first.groups or self._groups, None), edition=self._edition)


def _files(folder: Path) -> dict[str, _File]:
    found = {}
    for name in (METRICS, ROLLOUTS, MACHINE, PROBLEMS, LOG, SUMMARY):
        with suppress(OSError):  # not written yet, or gone
            status = (folder / name).stat()
            found[name] = _File(status.st_ino, status.st_size)
    return found


def _last_whole(run: RunFolder) -> int | None:
    """The last step whose rollouts are all written; None if nothing more is written."""
    if run.status.state != "going":
        return None
    return run.step_rows[-1]["step"] if run.step_rows else 0


def _showing(page: Page, rollouts: Rollouts | None) -> Page:
    return replace(page, runs=tuple(replace(run, rollouts=rollouts) for run in page.runs))
