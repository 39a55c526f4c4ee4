"""Views of a run that goes on: a panel in a terminal or a notebook, lines elsewhere, or nothing."""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table

from groupwise.core.machine.clock import BEFORE
from groupwise.core.machine.terminal import Terminal
from groupwise.core.records import Evaluation
from groupwise.health.symptoms.base import PASS_RATE, Measured

#: Shown if a run has them: a reward model's score beside the true pass rate, a critic's grasp of the returns.
EXTRAS = {"learned_mean": "learned score", "explained_variance": "explained variance"}
BARS = "▁▂▃▄▅▆▇█"
Row = Mapping[str, Any]


@dataclass(eq=False)
class View:
    """A view of one line a step, for logs and pipes.

    what                   what the run is measured by
    compares_within_group  the algorithm compares the completions of a prompt; if not, a group of equal rewards trains
                           as any other does, and how many groups have a signal is not shown
    name                   the run's, where the view has a title
    """

    steps: int
    terminal: Terminal
    what: Measured = PASS_RATE
    compares_within_group: bool = True
    name: str = ""
    started: float = field(default_factory=time.perf_counter, init=False)

    @property
    def trained(self) -> str:
        """The name of the trained batch's mean after shaping, beside what is measured."""
        return "reward" if self.what is PASS_RATE else "trained reward"

    def _extras(self, row: Row) -> list[tuple[str, str]]:
        """Choose (column, label) of what the row has and the line does not show yet."""
        return [(key, label) for key, label in EXTRAS.items() if key in row and label != self.what.words]

    def preparing(self, what: str, step: int, steps: int, loss: float) -> None:
        """Show what is trained before the first step, such as the warm start."""
        if step % max(1, steps // 5) == 0 or step == steps:
            self.note(f"{what} {step}/{steps}  loss {loss:.3f}")

    def note(self, text: str) -> None:
        """Say a line. A terminal or a pipe that has gone is no reason for a run to end: its log has the line too."""
        with suppress(OSError):
            self.terminal.print(text)

    def step(self, row: Row) -> None:
        signal = f"signal {_number(row['groups_signal_share'])}  " if self.compares_within_group else ""
        self.note(
            f"step {row['step']:>4}/{self.steps}  {self.what.words} {_number(row[self.what.training_column])}  "
            f"{self.trained} {_number(row['reward_mean'])}  length {_number(row['length_mean'], 1)}  "
            f"{signal}passed {_number(row['share_passed'])}  "
            f"{''.join(f'{label} {_number(row[key])}  ' for key, label in self._extras(row))}"
            f"{_phases(row['seconds'])}"
        )

    def evaluation(self, step: int, evaluation: Evaluation) -> None:
        self.note(
            f"held out after step {step}: {rate(evaluation, self.what)} on {evaluation.problems} problems x "
            f"{evaluation.samples}, {details(evaluation)}"
        )

    def cut_back(self, step: int) -> None:
        """Forget later steps: the run goes on after an earlier one."""

    def close(self) -> None:
        pass


@dataclass(eq=False)
class LiveView(View):
    """A panel that stays in place: the step, the numbers, what each phase costs, how long the run still takes."""

    rows: list[Row] = field(default_factory=list, init=False)
    heldout: list[tuple[int, Evaluation]] = field(default_factory=list, init=False)
    warming: str = field(default="", init=False)

    @cached_property
    def live(self) -> Live:
        console = self.terminal.console
        return Live(console=console, refresh_per_second=8, transient=False, get_renderable=self.render)

    def preparing(self, what: str, step: int, steps: int, loss: float) -> None:
        if step == 1:
            self.started = time.perf_counter()
        left = (time.perf_counter() - self.started) / step * (steps - step)
        self.warming = f"{what} {bar(step / steps, 30)} {step}/{steps}  loss {loss:.3f}  about {left:.0f} s left"
        self.show()

    def step(self, row: Row) -> None:
        if not self.rows:
            own = sum(value for phase, value in row["seconds"].items() if phase not in BEFORE)
            self.started = time.perf_counter() - own
        self.rows.append(row)
        self.show()

    def evaluation(self, step: int, evaluation: Evaluation) -> None:
        self.heldout.append((step, evaluation))
        self.show()

    def cut_back(self, step: int) -> None:
        self.rows = [row for row in self.rows if row["step"] <= step]
        self.heldout = [held for held in self.heldout if held[0] <= step]

    def show(self) -> None:
        """Begin to show the panel, which is then made anew several times a second."""
        with suppress(OSError):
            self.live.start()

    def close(self) -> None:
        with suppress(OSError):
            self.live.stop()

    def render(self) -> Panel:
        text = self.terminal.text
        parts: list[Any] = []
        if self.warming and not self.rows:
            parts.append(text(self.warming))
        if self.rows:
            step, seconds = self.rows[-1]["step"], time.perf_counter() - self.started
            left = int(seconds / len(self.rows) * (self.steps - step))
            clock = f"{left // 60}:{left % 60:02d} left"
            parts.append(text(f"step {step}/{self.steps}  {bar(step / self.steps, 40)}  {clock}"))
            parts += [self._numbers(), text((_phases(self.rows[-1]["seconds"]), "dim"))]
        for step, evaluation in self.heldout[:1] + self.heldout[1:][-1:]:
            line = f"held out after step {step:>3}  {rate(evaluation, self.what)}  {details(evaluation)}"
            parts.append(text((line, "bold" if step else "")))
        return Panel(Group(*parts), title=text(f"groupwise · {self.name}"), title_align="left", width=84)

    def _numbers(self) -> Table:
        table = Table.grid(padding=(0, 2))
        row = self.rows[-1]
        for label, key, digits in (
            (self.what.words, self.what.training_column, 3),
            (self.trained, "reward_mean", 3),
            ("completion length, tokens", "length_mean", 1),
            *[("groups with signal", "groups_signal_share", 2)] * self.compares_within_group,
            ("gradient the trust region passes", "share_passed", 3),
            *((label, key, 3) for key, label in self._extras(row)),
        ):
            line = self.terminal.text((curve([r[key] for r in self.rows], 34), "cyan"))
            table.add_row(label, _number(row[key], digits), line)
        return table


@dataclass(eq=False)
class NotebookView(LiveView):
    """A panel in the output of a notebook's cell, changed in place."""

    _handle: Any = field(default=None, init=False)
    _shown: float = field(default=0.0, init=False)

    @cached_property
    def _display(self) -> Any:
        return import_module("IPython.display")

    def show(self) -> None:
        """Show the panel as it is now, unless it was shown a quarter of a second ago: a warm start has fast steps."""
        if time.perf_counter() - self._shown >= 0.25:
            self._show()

    def close(self) -> None:
        if self._handle is not None:
            self._show()

    def _show(self) -> None:
        self._shown = time.perf_counter()
        page = self._display.HTML(self.terminal.html(self.render()))
        if self._handle is None:
            self._handle = self._display.display(page, display_id=True)
        else:
            self._handle.update(page)


class QuietView(View):
    """A view that shows nothing; the log has what is said of a run."""

    def note(self, text: str) -> None:
        pass


def bar(share: float, width: int) -> str:
    """Draw a bar of `width` characters.

    >>> bar(0.5, 4)
    '██░░'
    """
    full = round(min(1.0, max(0.0, share)) * width)
    return "█" * full + "░" * (width - full)


def curve(values: list[float], width: int) -> str:
    """Draw values as a line of bars between their smallest and largest; a gap for each that is no number.

    >>> curve([0.0, 0.5, 1.0], 3)
    '▁▅█'
    """
    if len(values) > width:
        values = [values[round(i * (len(values) - 1) / (width - 1))] for i in range(width)]
    known = [v for v in values if v == v]
    if not known:
        return ""
    low, span = min(known), (max(known) - min(known)) or 1.0
    return "".join(" " if v != v else BARS[min(7, int((v - low) / span * 8))] for v in values)


def rate(evaluation: Evaluation, what: Measured) -> str:
    """Write what is measured: "pass rate 0.250"."""
    return f"{what.words} {getattr(evaluation, what.column):.3f}"


def details(evaluation: Evaluation) -> str:
    """Write the length, the mean of each reward and source if there are several, and what has no score:
    "length 9.0; gcd 0.380".
    """
    parts = [f"length {evaluation.length_mean:.1f}"]
    if evaluation.rewards:
        parts.append(", ".join(f"{name} {_number(mean)}" for name, mean in evaluation.rewards.items()))
    if evaluation.by_source:
        sources = evaluation.by_source.items()
        parts.append(", ".join(f"{source} {_number(row['measured_mean'])}" for source, row in sources))
    if evaluation.unscored:
        counted = "count as not passed" if evaluation.pass_at_k else "are in no mean"
        parts.append(f"{evaluation.unscored} have no score and {counted}")
    return "; ".join(parts)


def _number(value: float, digits: int = 3) -> str:
    return "-" if value != value else f"{value:.{digits}f}"


def _phases(seconds: Mapping[str, float]) -> str:
    return "  ".join(f"{phase} {value:.2f}s" for phase, value in seconds.items() if value >= 0.005)
