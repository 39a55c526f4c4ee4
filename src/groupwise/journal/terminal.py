"""Views of a run that goes on: lines for a log file or a pipe, JSON for a program, or nothing."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import orjson

from groupwise.core.files import jsonl
from groupwise.core.machine.terminal import Terminal
from groupwise.core.records import Evaluation
from groupwise.health.symptoms.base import PASS_RATE, Measured
from groupwise.journal.lines import WIDTH, Checked, Lines, Row, step_seconds

#: Lines of a training before step 1.
PREPARING = 5
#: Width of the names in the head.
LABEL = 12


def unlogged(line: str) -> None:
    """Take a line that is kept nowhere."""


@dataclass(eq=False)
class View:
    """A view in lines, for a log file or a pipe. Each line is in the run's log as well, and the log has the plan.

    what, compares_within_group  as in Lines
    name   the run's, where the view has a title
    log    keeps a line
    whole  the whole plan and every check are shown too
    """

    steps: int
    terminal: Terminal
    what: Measured = PASS_RATE
    compares_within_group: bool = True
    name: str = ""
    log: Callable[[str], None] = unlogged
    whole: bool = False
    started: float = field(default_factory=time.perf_counter, init=False)
    made: int = field(default=0, init=False)

    @cached_property
    def lines(self) -> Lines:
        return Lines(self.steps, self.what, self.compares_within_group)

    @property
    def width(self) -> int:
        """Characters of a line: a terminal may have fewer than a log file."""
        return min(WIDTH, self.terminal.console.width) if self.terminal.console.is_terminal else WIDTH

    def head(self, lines: Mapping[str, str]) -> None:
        """Show in short what the run is, unless its whole plan is shown."""
        for name, text in lines.items() if not self.whole else ():
            self._print(shortened(f"{name:<{LABEL}} {text}", self.width))

    def plan(self, text: str) -> None:
        """Put what the run will do into the log, and show it if all is shown."""
        for line in text.splitlines():
            self.log(line)
        if self.whole:
            self._print(text)

    def preparing(self, what: str, step: int, steps: int, loss: float) -> None:
        """Show what is trained before the first step, such as the warm start."""
        if step % max(1, steps // PREPARING) == 0 or step == steps:
            self._line(lambda width: [self.lines.preparing(what, step, steps, loss)])

    def note(self, text: str) -> None:
        """Say a line. A terminal or a pipe that has gone is no reason for a run to end: its log has the line too."""
        self._print(text)

    def step(self, row: Row) -> None:
        if not self.made:
            self.started = time.perf_counter() - step_seconds(row)
        self.made += 1
        if self.lines.due(row["step"]) or self.made == 1:
            left = self.left(row)
            self._line(lambda width: [self.lines.step(row, left, width)])

    def left(self, row: Row) -> float:
        """Estimate the seconds that the run still takes, from the steps of this process."""
        return (time.perf_counter() - self.started) / max(1, self.made) * (self.steps - row["step"])

    def evaluation(self, step: int, evaluation: Evaluation) -> None:
        self._line(lambda width: self.lines.evaluation(step, evaluation, width))

    def checks(self, checks: Sequence[Checked]) -> None:
        """Show whether the checks hold; the log has each of them."""
        if self.whole:
            for check in checks:
                self._print(f"check        {check}")
        self._line(lambda width: self.lines.checks(checks, width))

    def completion(self, prompt: str, text: str, score: float) -> None:
        """Take one completion of the step; lines have no room for it."""

    def cut_back(self, step: int) -> None:
        """Forget later steps: the run goes on after an earlier one."""

    def close(self) -> None:
        pass

    def _print(self, text: str) -> None:
        with suppress(OSError):
            self.terminal.print(text)

    def _line(self, written: Callable[[int], list[str]]) -> None:
        """Log lines, as they are written in so many characters, and show them."""
        lines = written(WIDTH)
        for line in lines:
            self.log(line)
        self._show(lines if self.width == WIDTH else written(self.width))

    def _show(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._print(line)


class QuietView(View):
    """A view that shows nothing; the log has what is said of a run."""

    def _print(self, text: str) -> None:
        pass


class JsonView(QuietView):
    """A view for programs: one JSON object a line, which says with "event" what it is of."""

    def step(self, row: Row) -> None:
        super().step(row)
        self._event("step", row)

    def evaluation(self, step: int, evaluation: Evaluation) -> None:
        super().evaluation(step, evaluation)
        self._event("evaluation", {"step": step, **evaluation.row})

    def checks(self, checks: Sequence[Checked]) -> None:
        super().checks(checks)
        for check in checks:
            self._event("check", {"name": check.name, "value": check.value, "limit": check.limit, "ok": _ok(check)})

    def _event(self, name: str, row: Mapping[str, Any]) -> None:
        with suppress(OSError):
            self.terminal.print(event(name, row))


def _ok(check: Checked) -> bool | None:
    """Tell whether a check holds; None if it was not measured."""
    return None if check.value != check.value else not check.failed


def event(name: str, row: Mapping[str, Any]) -> str:
    """Write an object of --json; a number that is not finite becomes null.

    >>> event("step", {"step": 1, "kl_mean": float("nan")})
    '{"event":"step","step":1,"kl_mean":null}'
    """
    known = orjson.loads(jsonl.encoded({"event": name, **row}))
    return json.dumps(known, separators=(",", ":"))  # ASCII, which a terminal prints as it is


def shortened(text: str, width: int) -> str:
    """Cut a line to a width.

    >>> shortened("a long line", 8)
    'a lon...'
    """
    return text if len(text) <= width else f"{text[: width - 3]}..."
