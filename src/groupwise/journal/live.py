"""Panel of a run that goes on, which stays in place in a terminal or in a notebook."""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import Any, NamedTuple

from rich.console import Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table

from groupwise.core.records import Evaluation
from groupwise.journal.lines import (
    Checked,
    Row,
    checks_in_short,
    details,
    duration,
    in_thousands,
    number,
    step_seconds,
    step_tokens,
    wrapped,
)
from groupwise.journal.terminal import View, shortened

BARS = "▁▂▃▄▅▆▇█"
#: Characters of the panel, at most, and of a completion and its prompt in it.
PANEL, COMPLETION, PROMPT = 84, 200, 60
#: Lines of the panel beside what was said; lines for that, at least, and of each sentence, at most.
OTHERS, FEWEST, SENTENCE = 20, 3, 5
#: Space at which no line is broken.
TIED = "\N{NO-BREAK SPACE}"
#: Of a terminal with fewer characters only the numbers are shown, without curves.
NARROW = 72


class One(NamedTuple):
    """One completion of a step."""

    prompt: str
    text: str
    score: float


@dataclass(eq=False)
class LiveView(View):
    """A panel that stays in place: the step, the numbers, one completion, and what was said of the run last."""

    rows: list[Row] = field(default_factory=list, init=False)
    heldout: list[tuple[int, Evaluation]] = field(default_factory=list, init=False)
    said: list[str] = field(default_factory=list, init=False)
    one: One | None = field(default=None, init=False)
    warming: str = field(default="", init=False)
    opened: float = field(default_factory=time.perf_counter, init=False)
    shown: bool = field(default=False, init=False)

    @cached_property
    def live(self) -> Live:
        console = self.terminal.console
        return Live(console=console, refresh_per_second=8, transient=False, get_renderable=self.render)

    @property
    def panel_width(self) -> int:
        return min(PANEL, self.terminal.console.width)

    def note(self, text: str) -> None:
        """Say a line: below the numbers while the panel is there, so that it stays in sight."""
        if self.shown:
            self.said.append(text)
            self.show()
        else:
            super().note(text)

    def preparing(self, what: str, step: int, steps: int, loss: float) -> None:
        super().preparing(what, step, steps, loss)
        if step == 1:
            self.started = time.perf_counter()
        left = (time.perf_counter() - self.started) / step * (steps - step)
        self.warming = f"{what} {bar(step / steps, 30)} {step}/{steps}  loss {loss:.3f}  {duration(left)} left"
        self.show()

    def step(self, row: Row) -> None:
        super().step(row)
        self.rows.append(row)
        self.show()

    def evaluation(self, step: int, evaluation: Evaluation) -> None:
        super().evaluation(step, evaluation)
        self.heldout.append((step, evaluation))
        self.show()

    def checks(self, checks: Sequence[Checked]) -> None:
        super().checks(checks)
        self.head({"checks": checks_in_short(checks)})

    def completion(self, prompt: str, text: str, score: float) -> None:
        self.one = One(prompt, text, score)

    def cut_back(self, step: int) -> None:
        self.rows = [row for row in self.rows if row["step"] <= step]
        self.heldout = [held for held in self.heldout if held[0] <= step]

    def show(self) -> None:
        """Begin to show the panel, which is then made anew several times a second."""
        self.shown = True
        with suppress(OSError):
            self.live.start()

    def close(self) -> None:
        with suppress(OSError):
            if self.shown:
                self.live.stop()
        self.shown = False

    def _show(self, lines: Sequence[str]) -> None:
        """Show no lines: the panel has their numbers."""

    def render(self) -> Panel:
        text, parts = self.terminal.text, list[Any]()
        if self.warming and not self.rows:
            parts.append(text(self.warming))
        if self.rows:
            parts += [text(self._progress()), self._numbers(), *self._of_the_step()]
        for step, evaluation in self.heldout[:1] + self.heldout[1:][-1:]:
            rate = f"{self.what.words} {number(getattr(evaluation, self.what.column))}  {details(evaluation)}"
            rows = f"rows: loss {number(evaluation.supervised_loss)} nats a token"
            line = f"held out after step {step:>3}  {rate if evaluation.problems else rows}"
            parts += [text((each, "bold" if step else "")) for each in wrapped(line, self.panel_width - 4)]
        parts += [text((line, "yellow")) for line in self._pinned()]
        title = text(f"groupwise · {self.name}")
        return Panel(Group(*parts), title=title, title_align="left", width=self.panel_width)

    def _pinned(self) -> list[str]:
        """Choose the last things that were said, as many as a terminal of this height has room for."""
        room, lines = max(FEWEST, self.terminal.console.height - OTHERS), list[str]()
        for shown, said in enumerate(reversed(self.said)):
            sentence = wrapped(said, self.panel_width - 4)
            if len(sentence) > SENTENCE:
                sentence = [*sentence[: SENTENCE - 1], "    ... all of it is in log.txt"]
            if lines and len(lines) + len(sentence) > room:
                return [f"{len(self.said) - shown} earlier in log.txt", *lines]
            lines = [*sentence, *lines]
        return lines

    def _progress(self) -> str:
        row = self.rows[-1]
        step, width = row["step"], max(10, self.panel_width - 54)
        elapsed = duration(time.perf_counter() - self.opened)
        return (
            f"step {step}/{self.steps}  {bar(step / self.steps, width)}  {elapsed} elapsed, "
            f"{duration(self.left(row))} left"
        )

    def _of_the_step(self) -> list[Any]:
        """Show what the step took, and one completion of it with its score."""
        text, seconds = self.terminal.text, self.rows[-1]["seconds"]
        width = self.panel_width - 4
        # A phase stays on one line with its seconds.
        phases = "  ".join(f"{phase}{TIED}{value:.2f}s" for phase, value in seconds.items() if value >= 0.005)
        parts: list[Any] = [text((line.replace(TIED, " "), "dim")) for line in wrapped(phases, width)]
        if self.one is not None:
            prompt, answer = (" ".join(each.split()) for each in (self.one.prompt, self.one.text))
            asked = prompt if len(prompt) <= PROMPT else f"...{prompt[3 - PROMPT :]}"
            score = number(self.one.score, 2)
            parts += map(text, wrapped(f"score {score}: {asked} {shortened(answer, COMPLETION)}", width))
        return parts

    def _numbers(self) -> Table:
        table = Table.grid(padding=(0, 2))
        row, room = self.rows[-1], self.panel_width - 50 if self.panel_width >= NARROW else 0
        sampled = (
            (self.what.words, self.what.training_column, 3),
            (self.lines.trained, "reward_mean", 3),
            ("completion length, tokens", "length_mean", 1),
            *[("groups with signal", "groups_signal_share", 2)] * self.compares_within_group,
            ("gradient not clipped", "share_passed", 3),
            *[("KL to the reference", "kl_mean", 4)] * ("kl_mean" in row),
            *[("entropy", "entropy_mean", 3)] * ("entropy_mean" in row),
            *((label, key, 3) for key, label in self.lines.extras(row)),
        )
        alone = (("supervised loss", "supervised_loss", 3), ("gradient norm", "gradient_norm", 3))
        for label, key, digits in sampled if "length_mean" in row else alone:
            values = [each.get(key, float("nan")) for each in self.rows]
            table.add_row(label, number(row[key], digits), self.terminal.text((curve(values, room), "cyan")))
        speeds = [step_tokens(each) / max(1e-9, step_seconds(each)) for each in self.rows]
        table.add_row("tokens a second", in_thousands(speeds[-1]), self.terminal.text((curve(speeds, room), "cyan")))
        return table


@dataclass(eq=False)
class NotebookView(LiveView):
    """A panel in the output of a notebook's cell, changed in place."""

    _handle: Any = field(default=None, init=False)
    _shown_at: float = field(default=0.0, init=False)

    @cached_property
    def _display(self) -> Any:
        return import_module("IPython.display")

    @property
    def panel_width(self) -> int:
        return PANEL

    def show(self) -> None:
        """Show the panel as it is now, unless it was shown a quarter of a second ago: a warm start has fast steps."""
        self.shown = True
        if time.perf_counter() - self._shown_at >= 0.25:
            self._update()

    def close(self) -> None:
        if self._handle is not None:
            self._update()
        self.shown = False

    def _update(self) -> None:
        self._shown_at = time.perf_counter()
        page = self._display.HTML(self.terminal.html(self.render()))
        if self._handle is None:
            self._handle = self._display.display(page, display_id=True)
        else:
            self._handle.update(page)


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
    if len(values) > width > 1:
        values = [values[round(i * (len(values) - 1) / (width - 1))] for i in range(width)]
    known = [v for v in values if v == v]
    if not known or width < 2:
        return ""
    low, span = min(known), (max(known) - min(known)) or 1.0
    return "".join(" " if v != v else BARS[min(7, int((v - low) / span * 8))] for v in values)
