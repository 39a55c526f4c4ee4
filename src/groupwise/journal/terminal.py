"""What a person sees while a run goes on: a live view in a terminal, plain lines anywhere else."""

import time
from collections.abc import Mapping
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from groupwise.core.clock import BEFORE
from groupwise.core.records import Evaluation

#: Shown where a run has them: a reward model's score beside the true pass rate, a critic's grasp of the returns.
EXTRAS = {"learned_mean": "learned score", "explained_variance": "explained variance"}
BARS = "▁▂▃▄▅▆▇█"
Row = Mapping[str, Any]


class View(Protocol):
    """Shows what a run does; changes nothing."""

    def plan(self, text: str) -> None: ...

    def warm_start(self, step: int, steps: int, loss: float) -> None: ...

    def reward_model(self, step: int, steps: int, loss: float) -> None: ...

    def note(self, text: str) -> None: ...

    def step(self, row: Row) -> None: ...

    def evaluation(self, step: int, evaluation: Evaluation) -> None: ...

    def close(self) -> None: ...


class PlainView:
    """One line a step, for logs and pipes."""

    def __init__(self, steps: int, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False, soft_wrap=True)
        self.steps, self.started = steps, time.perf_counter()

    def plan(self, text: str) -> None:
        self.say(text)

    def warm_start(self, step: int, steps: int, loss: float) -> None:
        self._preparing("warm start", step, steps, loss)

    def reward_model(self, step: int, steps: int, loss: float) -> None:
        self._preparing("reward model", step, steps, loss)

    def _preparing(self, what: str, step: int, steps: int, loss: float) -> None:
        if step % max(1, steps // 5) == 0 or step == steps:
            self.say(f"{what} {step}/{steps}  loss {loss:.3f}")

    def note(self, text: str) -> None:
        self.say(text)

    def step(self, row: Row) -> None:
        self.say(
            f"step {row['step']:>4}/{self.steps}  pass rate {_number(row['pass_rate'])}  "
            f"reward {_number(row['reward_mean'])}  length {_number(row['length_mean'], 1)}  "
            f"signal {_number(row['groups_mixed_share'])}  passed {_number(row['share_passed'])}  "
            f"{_extras(row)}"
            f"{_phases(row['seconds'])}"
        )

    def evaluation(self, step: int, evaluation: Evaluation) -> None:
        self.say(
            f"held out after step {step}: {rate(evaluation)} on {evaluation.problems} problems x "
            f"{evaluation.samples}, length {evaluation.length_mean:.1f}{sources(evaluation)}{unscored(evaluation)}"
        )

    def close(self) -> None:
        pass

    def say(self, text: str) -> None:
        self.console.print(text, markup=False)


class LiveView(PlainView):
    """A panel that stays in place: where the run is, how it goes, what each phase costs, how long it still takes."""

    def __init__(self, steps: int, name: str, console: Console | None = None) -> None:
        super().__init__(steps, console)
        self.name = name
        self.rows: list[Row] = []
        self.heldout: list[tuple[int, Evaluation]] = []
        self.warming = ""
        self.live = Live(console=self.console, refresh_per_second=8, transient=False, get_renderable=self.render)
        self.opened = False

    def _preparing(self, what: str, step: int, steps: int, loss: float) -> None:
        if step == 1:
            self.started = time.perf_counter()
        left = (time.perf_counter() - self.started) / step * (steps - step)
        self.warming = f"{what} {bar(step / steps, 30)} {step}/{steps}  loss {loss:.3f}  about {left:.0f} s left"
        self.open()

    def step(self, row: Row) -> None:
        if not self.rows:
            own = sum(value for phase, value in row["seconds"].items() if phase not in BEFORE)
            self.started = time.perf_counter() - own
        self.rows.append(row)
        self.open()

    def evaluation(self, step: int, evaluation: Evaluation) -> None:
        self.heldout.append((step, evaluation))
        self.open()

    def open(self) -> None:
        if not self.opened:
            self.live.start()
            self.opened = True

    def close(self) -> None:
        if self.opened:
            self.live.stop()
            self.opened = False

    def render(self) -> Panel:
        parts: list[Any] = []
        if self.warming and not self.rows:
            parts.append(Text(self.warming))
        if self.rows:
            parts += [self._progress(), self._numbers(), Text(_phases(self.rows[-1]["seconds"]), style="dim")]
        for step, evaluation in self.heldout[:1] + self.heldout[1:][-1:]:
            parts.append(
                Text(
                    f"held out after step {step:>3}  {rate(evaluation)}  length {evaluation.length_mean:.1f}"
                    f"{sources(evaluation)}{unscored(evaluation)}",
                    style="bold" if step else "",
                )
            )
        return Panel(Group(*parts), title=f"groupwise · {self.name}", title_align="left", width=84)

    def _progress(self) -> Text:
        step = self.rows[-1]["step"]
        done = len(self.rows)
        left = (time.perf_counter() - self.started) / done * (self.steps - step)
        return Text(f"step {step}/{self.steps}  {bar(step / self.steps, 40)}  {_clock(left)} left")

    def _numbers(self) -> Table:
        table = Table.grid(padding=(0, 2))
        row = self.rows[-1]
        for label, key, digits in (
            ("pass rate", "pass_rate", 3),
            ("reward", "reward_mean", 3),
            ("completion length, tokens", "length_mean", 1),
            ("groups with signal", "groups_mixed_share", 2),
            ("gradient the trust region passes", "share_passed", 3),
            *((label, key, 3) for key, label in EXTRAS.items() if key in row),
        ):
            table.add_row(label, _number(row[key], digits), Text(curve([r[key] for r in self.rows], 34), style="cyan"))
        return table


def bar(share: float, width: int) -> str:
    """A bar of `width` characters.

    >>> bar(0.5, 4)
    '██░░'
    """
    full = round(min(1.0, max(0.0, share)) * width)
    return "█" * full + "░" * (width - full)


def curve(values: list[float], width: int) -> str:
    """The last values as a line of bars between their smallest and largest; gaps where there is no number.

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


def rate(evaluation: Evaluation) -> str:
    """The pass rate, or the learned score where the right answers are unknown."""
    known = evaluation.avg_at_k == evaluation.avg_at_k
    return f"pass rate {evaluation.avg_at_k:.3f}" if known else f"learned score {evaluation.learned_mean:.3f}"


def sources(evaluation: Evaluation) -> str:
    """The mean score of each source, where a task mixes several: "; chain_sum 0.41, gcd 0.38"."""
    scores = ", ".join(f"{source} {row['score_mean']:.3f}" for source, row in evaluation.by_source.items())
    return f"; {scores}" if scores else ""


def unscored(evaluation: Evaluation) -> str:
    return f"; {evaluation.unscored} could not be scored and count as wrong" if evaluation.unscored else ""


def _extras(row: Row) -> str:
    return "".join(f"{label} {_number(row[key])}  " for key, label in EXTRAS.items() if key in row)


def _number(value: float, digits: int = 3) -> str:
    return "-" if value != value else f"{value:.{digits}f}"


def _phases(seconds: Mapping[str, float]) -> str:
    return "  ".join(f"{phase} {value:.2f}s" for phase, value in seconds.items() if value >= 0.005)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
