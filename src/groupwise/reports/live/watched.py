"""A run that is read again and again while it goes on, each time for the cost of what is new."""

import math
import time
from bisect import bisect_right
from collections import Counter
from pathlib import Path
from typing import Any

from groupwise.core.errors import UsageError
from groupwise.core.files.jsonl import BEGINNING
from groupwise.reports.folder import columns
from groupwise.reports.folder.heldout import with_problems
from groupwise.reports.folder.lines import ByStep, Tail, count_of, oddities
from groupwise.reports.folder.read import (
    MACHINE,
    METRICS,
    PROBLEMS,
    ROLLOUTS,
    Signs,
    last_step,
    place,
    read,
    signs,
    status,
)
from groupwise.reports.folder.sample import fresh, points, sample
from groupwise.reports.page.plots import plots_for
from groupwise.reports.page.single import Words, page_of, words_of
from groupwise.reports.records import (
    Curves,
    Fresh,
    Page,
    Plot,
    Rollouts,
    Status,
)

#: Groups that are remembered for pages that ask late.
MOST_GROUPS = 200
#: The words of a run that goes on look at all of its rows, however many: this share of the time is theirs.
SHARE = 1 / 50


class Watched:
    """The source of a watched page: `page` reads the folder from its beginning, `fresh` says what came after it.

    What a step brings is shown at once. The words are written anew as soon as SHARE allows (after seconds in a run of
    thousands of steps), and whenever the run is over: then they are those of the page of the whole run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.page()

    def page(self) -> Page:
        """The page as it is now. Raises UsageError where the folder is none of a run, or no longer."""
        self._run = run = read(self.folder)
        last = run.step_rows[-1]["step"] if run.step_rows else 0
        # The groups of a step that is being written come with `fresh`, when they are all there.
        unfinished = run.status.state == "going"
        rollouts, end = sample(self.folder / ROLLOUTS, last=last if unfinished else None)
        self._metrics, self._machine = Tail(self.folder / METRICS), Tail(self.folder / MACHINE)
        self._heldout, self._lines = Tail(self.folder / PROBLEMS), Tail(self.folder / ROLLOUTS, end)
        self._steps, self._evaluations, self._memory = ByStep(), ByStep(), ByStep()
        self._problems = ByStep()
        self._odd: Counter[str] = Counter()
        self._odd_memory: Counter[str] = Counter()
        self._first: dict[tuple[str, bool], int] = {}
        self._first_held: dict[str, int] = {}
        self._early: list[bytes] = []
        self._rollouts, self._groups, self._example = rollouts, rollouts.groups[-MOST_GROUPS:], rollouts.groups
        self._words, self._words_of, self._next = Words((), (), ()), (-1, -1, ""), 0.0
        self._take()
        return page_of(run, rollouts)

    def fresh(self, step: int, evaluation: int, rollout: int) -> Fresh:
        """Rows after the steps that a page has, and the words."""
        if not self.folder.is_dir():
            raise UsageError(f"{self.folder}: the run folder is gone")
        now = signs(self.folder)  # before the rows, as `read` does: a run that is shown as over has all of them
        restart = self._take() or step > self._last
        if not now.held:
            self._show(math.inf)  # the step that it stopped in: nothing more comes
        if restart:
            self.page()
            step = evaluation = rollout = self._last
        rows, memory = _after(self._steps.rows, step), _after(self._memory.rows, step)
        if now.held and self._memory.rows and rows and rows[-1]["step"] > self._memory.rows[-1]["step"]:
            rows.pop()  # its memory is written a moment later; what was sent once is not sent again
        held = _after(self._evaluations.rows, evaluation)
        groups = [group for group in self._groups if group.step > rollout]
        stands = status(self.folder, now, self._run.recipe, last_step(self._steps.rows, self._evaluations.rows))
        return Fresh(
            restart=restart,
            status=stands,
            notes=self._notes(now),
            **self._say(now, stands)._asdict(),
            steps=columns.rounded(columns.steps(rows, memory)),
            evaluations=columns.rounded(columns.evaluations(held)),
            rollouts=Rollouts(self._rollouts.words, groups) if groups else None,
            plots=self._plots() if self._is_new(step, evaluation) else (),
        )

    def _take(self) -> bool:
        """Read what was appended -> whether a file was written anew."""
        # Metrics first: where a step has its row, all of its rollouts are there too.
        rows, memory = self._metrics.take(), self._machine.take()
        self._early += self._lines.take_lines()
        for row in rows:
            place(row, self._steps, self._evaluations, self._odd)
        for row in memory:
            place(row, self._memory, ByStep(), self._odd_memory)
        for row in self._heldout.take():  # after the metrics: where an evaluation has its row, its problems are there
            place(row, self._problems, ByStep(), Counter())
        new = [row for row in self._evaluations.rows if "by_problem" not in row["evaluation"]]
        with_problems(new, self._problems.rows)
        done = self._steps.rows
        self._last = done[-1]["step"] if done else 0
        self._know(rows, memory)
        self._show(self._last)
        return any(tail.restarted for tail in (self._metrics, self._machine, self._lines))

    def _know(self, rows: list[dict[str, Any]], memory: list[dict[str, Any]]) -> None:
        """Which columns there are, and the first step that has each: any number, and one that is not 0."""
        rows, memory = [[row for row in some if count_of(row.get("step")) is not None] for some in (rows, memory)]
        done = columns.steps([row for row in rows if "evaluation" not in row])
        held = columns.evaluations([row for row in rows if isinstance(row.get("evaluation"), dict)])
        for name, at, value in _numbers(done) + _numbers(
            columns.steps([{"step": row["step"]} for row in memory], memory)
        ):
            self._first.setdefault((name, bool(value)), at)
        for name, at, _ in _numbers(held):
            self._first_held.setdefault(name, at)

    def _is_new(self, step: int, evaluation: int) -> bool:
        """Whether a column got its first number after these steps."""
        first = any(at > step for at in self._first.values())
        return first or any(at > evaluation for at in self._first_held.values())

    def _show(self, last: float) -> None:
        """A sample of the rollouts of steps up to `last`; of the step that is being written, nothing yet."""
        done = [line for line in self._early if _step_of(line) <= last]
        self._early = [line for line in self._early if _step_of(line) > last]
        if done:
            groups = fresh(done).groups
            self._groups = [*self._groups, *groups][-MOST_GROUPS:]
            self._example = self._example or groups

    def _plots(self) -> tuple[Plot, ...]:
        columns_so_far = {name: [float((name, True) in self._first)] for name, _ in self._first}
        return plots_for(columns_so_far, tuple(self._first_held), tuple(points(self._rollouts.groups)))

    def _notes(self, now: Signs) -> tuple[str, ...]:
        """What was odd when the page was written, with the rows' oddities counted up to now."""
        lines: list[str] = []
        for tail, odd in ((self._metrics, self._odd), (self._machine, self._odd_memory)):
            cut = bool(tail.half.strip()) and not now.held
            lines += oddities(tail.path.name, odd + tail.odd + Counter(cut=int(cut)))
        came = [f"{name} is missing" for name in (METRICS, ROLLOUTS) if (self.folder / name).exists()]
        past = (f"{METRICS}: ", f"{MACHINE}: ", *came)
        rest = [note for note in self._run.notes if not note.startswith(past)]
        return (*rest, *lines)

    def _say(self, now: Signs, stands: Status) -> Words:
        """The words: of this moment where the run is over, else of the last time that their turn came."""
        of = (len(self._steps.rows), len(self._evaluations.rows), stands.state)
        began = time.monotonic()
        if of == self._words_of or (stands.state == self._words_of[2] == "going" and began < self._next):
            return self._words
        steps, evaluations = self._steps.rows, self._evaluations.rows
        self._words = words_of(self._run, now.summary, steps, evaluations, self._memory.rows, self._example)
        self._words_of = of
        took = time.monotonic() - began
        self._next = began + took / SHARE
        return self._words


def _after(rows: list[dict[str, Any]], step: int) -> list[dict[str, Any]]:
    return rows[bisect_right(rows, step, key=lambda row: row["step"]) :]


def _numbers(curves: Curves) -> list[tuple[str, int, float]]:
    """Each number of a table: its column, its step, itself."""
    return [
        (name, at, value)
        for name, values in curves.columns.items()
        for at, value in zip(curves.step, values, strict=True)
        if value is not None
    ]


def _step_of(line: bytes) -> int:
    match = BEGINNING.match(line)
    return int(match[1]) if match else 0
