"""A run that is read again and again while it goes on, each time for the cost of what is new."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

from groupwise.errors import UsageError
from groupwise.health import findings
from groupwise.report import columns
from groupwise.report.answers import Told, answers, check_lines
from groupwise.report.data import Curves, Fresh, Page, Plot, RolloutGroup, Rollouts
from groupwise.report.lines import ByStep, Tail, told
from groupwise.report.plots import plots_for
from groupwise.report.read import MACHINE, METRICS, ROLLOUTS, place, read, signs, status
from groupwise.report.sample import fresh, sample_to
from groupwise.report.single import page_of

#: Groups that came in since the page was made and are kept for pages that ask late.
MOST_GROUPS = 200
_STEP = re.compile(rb'\{"step":\s*(\d+)')


class Watched:
    """The source of a watched page: `page` reads the folder as a whole, `fresh` tells what came after it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.page()

    def page(self) -> Page:
        """The page as it is now. Raises UsageError where the folder is none of a run, or no longer."""
        self._run = read(self.folder)
        self._rollouts, end = sample_to(self.folder / ROLLOUTS)
        self._metrics, self._machine = Tail(self.folder / METRICS), Tail(self.folder / MACHINE)
        self._lines = Tail(self.folder / ROLLOUTS, end)
        self._steps, self._evaluations, self._memory = ByStep(), ByStep(), ByStep()
        self._odd: Counter[str] = Counter()
        self._first: dict[tuple[str, bool], int] = {}
        self._early: list[bytes] = []
        self._groups: list[RolloutGroup] = []
        self._take()
        return page_of(self._run, self._rollouts)

    def fresh(self, step: int, evaluation: int, rollout: int) -> Fresh:
        """Rows after the steps that a page has, and the words as they are now."""
        if not self.folder.is_dir():
            raise UsageError(f"{self.folder}: the run folder is gone")
        if self._take() or step > self._last:
            self.page()
            return self._told(True, Curves(), Curves(), None, ())
        rows = [row for row in self._steps.rows if row["step"] > step]
        memory = [row for row in self._memory.rows if row["step"] > step]
        held = [row for row in self._evaluations.rows if row["step"] > evaluation]
        groups = [group for group in self._groups if group.step > rollout]
        new = any(first > step for first in self._first.values())
        return self._told(
            False,
            columns.rounded(columns.steps(rows, memory)),
            columns.rounded(columns.evaluations(held)),
            Rollouts(self._rollouts.words, groups) if groups else None,
            self._plots() if new else (),
        )

    @property
    def _last(self) -> int:
        return max((row["step"] for row in self._steps.rows), default=0)

    def _take(self) -> bool:
        """Read what was appended -> whether a file was written anew."""
        # Metrics first: where a step has its row, all of its rollouts are there too.
        rows, memory = self._metrics.take(), self._machine.take()
        self._early += self._lines.take_lines()
        for row in rows:
            place(row, self._steps, self._evaluations, self._odd)
        for row in memory:
            self._memory.add(row, self._odd)
        self._know([row for row in rows if "evaluation" not in row])
        self._show()
        return any(tail.restarted for tail in (self._metrics, self._machine, self._lines))

    def _know(self, rows: list[dict[str, Any]]) -> None:
        """Which columns there are, and the first step that has each: any number, and one that is not 0."""
        curves = columns.steps(rows)
        for name, values in curves.columns.items():
            for at, value in zip(curves.step, values, strict=True):
                if value is not None:
                    self._first.setdefault((name, bool(value)), at)

    def _show(self) -> None:
        """A sample of the rollouts of steps that are done; of the step that is being written, nothing yet."""
        last = self._last
        done = [line for line in self._early if _step_of(line) <= last]
        self._early = [line for line in self._early if _step_of(line) > last]
        if done:
            self._groups = [*self._groups, *fresh(done).groups][-MOST_GROUPS:]

    def _plots(self) -> tuple[Plot, ...]:
        held = columns.evaluations(self._evaluations.rows).columns
        told = {name: [float((name, True) in self._first)] for name, _ in self._first}
        return plots_for(told, held, ())

    def _told(
        self, restart: bool, steps: Curves, held: Curves, rollouts: Rollouts | None, plots: tuple[Plot, ...]
    ) -> Fresh:
        recipe, now = self._run.recipe or {}, signs(self.folder)
        done, evaluated = self._steps.rows, self._evaluations.rows
        found = findings([*done, *evaluated], recipe)
        say = Told(recipe, now.summary, done, evaluated, self._rollouts.groups, found)
        return Fresh(
            restart=restart,
            status=status(self.folder, now, recipe, self._last or None),
            notes=(*self._run.notes, *told(METRICS, self._odd)),
            answers=answers(say),
            checks=check_lines(done),
            findings=found,
            steps=steps,
            evaluations=held,
            rollouts=rollouts,
            plots=plots,
        )


def _step_of(line: bytes) -> int:
    found = _STEP.match(line)
    return int(found[1]) if found else 0
