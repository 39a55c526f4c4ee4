"""Lines of a run for a log file or a pipe: a step, an evaluation, the checks; none is longer than a width."""

import math
import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from groupwise.core.machine.clock import BEFORE
from groupwise.core.records import Evaluation
from groupwise.health.checks import of_limit
from groupwise.health.symptoms.base import PASS_RATE, Measured

Row = Mapping[str, Any]

#: Characters of a line in a log file or a pipe, at most.
WIDTH = 110
#: Each of so many first steps has a line; of the later ones so many that there are about a hundred in all.
FIRST, LATER = 20, 80
#: Half the width of a 95 % interval, in standard errors.
HALF_WIDTH = 1.96
#: Shown if a run has them: a reward model's score beside the true pass rate, a critic's grasp of the returns.
EXTRAS = {
    "learned_mean": "learned score",
    "explained_variance": "explained variance",
    "supervised_loss": "supervised loss",
}


class Shown(Enum):
    """Amount that a run prints.

    BRIEF    a head, the steps, the result
    WHOLE    the whole plan and every check as well
    RESULT   the result alone
    JSON     one JSON object a line: steps, evaluations, checks, end
    NOTHING  nothing
    """

    BRIEF = "brief"
    WHOLE = "whole"
    RESULT = "result"
    JSON = "json"
    NOTHING = "nothing"


class Checked(Protocol):
    """A check with what was measured; NaN if it was not."""

    @property
    def name(self) -> str: ...

    @property
    def failed(self) -> bool: ...

    @property
    def value(self) -> float: ...

    @property
    def limit(self) -> float: ...


@dataclass(frozen=True)
class Cell:
    """A number with its name. Of a line that is too long the cells of the highest rank go first, those of 0 never."""

    text: str
    rank: int = 0


@dataclass(frozen=True)
class Lines:
    """Lines of one run.

    what                   what the run is measured by
    compares_within_group  the algorithm compares the completions of a prompt; if not, a group of equal rewards trains
                           as any other does, and how many groups have a signal is not shown
    """

    steps: int
    what: Measured = PASS_RATE
    compares_within_group: bool = True

    def due(self, step: int) -> bool:
        """Tell whether a step has a line.

        >>> [step for step in range(1, 1001) if Lines(1000).due(step)][18:23], sum(map(Lines(1000).due, range(1, 1001)))
        ([19, 20, 33, 46, 59], 96)
        """
        every = max(1, math.ceil((self.steps - FIRST) / LATER))
        return step <= FIRST or step == self.steps or (step - FIRST) % every == 0

    def step(self, row: Row, left: float, width: int = WIDTH) -> str:
        """Write a step's numbers; `left` is the seconds that the run still takes."""
        seconds = step_seconds(row)
        speed = step_tokens(row) / seconds if seconds else math.nan
        sampled = "length_mean" in row
        length = [Cell(f"len {number(row['length_mean'], 1)}", 4)] if sampled else []
        every = [
            [*self._learned(row), *length, *self._signal(row)] if sampled else list(_imitated(row)),
            list(_drift(row)),
            [
                Cell(f"{seconds:.2f}s" if seconds < 10 else f"{seconds:.1f}s"),
                *([] if math.isnan(speed) else [Cell(f"{in_thousands(speed)} tok/s", 5)]),
                Cell(f"eta {duration(left)}"),
            ],
        ]
        return fitted(self._head("step", row["step"]), every, width)

    def evaluation(self, step: int, evaluation: Evaluation, width: int = WIDTH) -> list[str]:
        """Write what was measured on held-out problems, and what does not fit behind it into lines of its own."""
        loss = evaluation.supervised_loss
        if not evaluation.problems:
            return [f"{self._head('eval', step)} | held-out rows: loss {number(loss)} nats a token"]
        value = getattr(evaluation, self.what.column)
        error = HALF_WIDTH * evaluation.standard_error
        within = "" if math.isnan(error) or math.isnan(value) else f" +-{error:.3f}"
        counts = f"({evaluation.problems} x {evaluation.samples})"
        head = self._head("eval", step)
        said = f"held-out {self.what.words} {number(value)}{within} {counts} | {details(evaluation)}"
        return wrapped(f"{head} | {said}", width)

    def checks(self, checks: Sequence[Checked], width: int = WIDTH) -> list[str]:
        """Write how many checks hold, and which one came nearest to its limit."""
        return wrapped(f"{clock()} check {checks_in_short(checks)}", width)

    def preparing(self, what: str, step: int, steps: int, loss: float) -> str:
        """Write how far a training before step 1 is, such as the warm start."""
        return f"{clock()} {what} {step}/{steps} | loss {loss:.3f}"

    def _head(self, kind: str, step: int) -> str:
        return f"{clock()} {kind} {step:>{len(str(self.steps))}}/{self.steps}"

    def _learned(self, row: Row) -> Iterator[Cell]:
        value, reward = row[self.what.training_column], row["reward_mean"]
        words = "pass" if self.what is PASS_RATE else self.what.words
        yield Cell(f"{words} {number(value)}")
        if number(value) != number(reward):
            yield Cell(f"{self.trained} {number(reward)}", 1)
        for key, label in self.extras(row):
            yield Cell(f"{label} {number(row[key])}", 3)

    def _signal(self, row: Row) -> Iterator[Cell]:
        if self.compares_within_group:
            share = row["groups_signal_share"]
            yield Cell("sig -" if _missing(share) else f"sig {share:.0%}", 2)

    @property
    def trained(self) -> str:
        """The name of the trained batch's mean after shaping, beside what is measured."""
        return "reward" if self.what is PASS_RATE else "trained reward"

    def extras(self, row: Row) -> list[tuple[str, str]]:
        """Choose (column, label) of what the row has and the line does not show yet."""
        return [(key, label) for key, label in EXTRAS.items() if key in row and label != self.what.words]


def _imitated(row: Row) -> Iterator[Cell]:
    """Choose what a step of supervised rows alone has to say."""
    yield Cell(f"supervised loss {number(row['supervised_loss'])}")
    yield Cell(f"gradient norm {number(row['gradient_norm'])}", 1)
    yield Cell(f"rate {row['learning_rate']:.3g}", 2)


def _drift(row: Row) -> Iterator[Cell]:
    """Choose how far the policy went from its reference, how open it is, and what the trust region clipped."""
    if not _missing(row.get("kl_mean")):
        yield Cell(f"kl {row['kl_mean']:.3f}", 6)
    if not _missing(row.get("entropy_mean")):
        yield Cell(f"ent {row['entropy_mean']:.2f}", 7)
    if not _missing(row.get("share_passed")):
        share = max(0.0, 1 - row["share_passed"])
        yield Cell(f"clip {share:.0%}" if share >= 0.0995 else f"clip {share:.1%}", 8)


def checks_in_short(checks: Sequence[Checked]) -> str:
    """Write "6/6 ok (worst: learner = engine 1.1e-06 of 0.0001)"."""
    measured = [check for check in checks if not math.isnan(check.value)]
    if not measured:
        return "none measured"
    held = sum(not check.failed for check in measured)
    worst = max(measured, key=lambda check: of_limit(check.value, check.limit))
    near = f"{worst.name} {worst.value:.2g} of {worst.limit:.3g}"
    return f"{held}/{len(measured)} {'ok' if held == len(measured) else 'hold'} (worst: {near})"


def details(evaluation: Evaluation) -> str:
    """Write the length, the teachers, the mean of each reward and source if there are several, and what has no score:
    "len 9.0 | gcd 0.380".
    """
    parts = [f"len {evaluation.length_mean:.1f}"]
    parts += [f"{name} {number(teacher['measured_mean'])}" for name, teacher in evaluation.teachers.items()]
    if evaluation.rewards:
        parts.append(", ".join(f"{name} {number(mean)}" for name, mean in evaluation.rewards.items()))
    if evaluation.by_source:
        sources = evaluation.by_source.items()
        parts.append(", ".join(f"{source} {number(row['measured_mean'])}" for source, row in sources))
    if evaluation.supervised_loss is not None:
        parts.append(f"held-out rows: loss {number(evaluation.supervised_loss)}")
    if evaluation.unscored:
        one = evaluation.unscored == 1
        counted = f"count{'s' * one} as not passed" if evaluation.pass_at_k else f"{'is' if one else 'are'} in no mean"
        parts.append(f"{evaluation.unscored} {'has' if one else 'have'} no score and {counted}")
    return " | ".join(parts)


def fitted(head: str, groups: Iterable[Sequence[Cell]], width: int) -> str:
    """Join cells behind a head; while that is too long, cells of the highest rank are left out.

    >>> fitted("step 1", [[Cell("pass 1.0")], [Cell("kl 0.1", 1), Cell("ent 0.2", 2)]], 26)
    'step 1 | pass 1.0 | kl 0.1'
    """
    groups = [list(group) for group in groups]
    while True:
        line = " | ".join([head, *(" ".join(cell.text for cell in group) for group in groups if group)])
        last = max((cell.rank for group in groups for cell in group), default=0)
        if len(line) <= width or not last:
            return line
        groups = [[cell for cell in group if cell.rank != last] for group in groups]


def wrapped(text: str, width: int = WIDTH) -> list[str]:
    """Break a line at spaces; what goes on is indented."""
    return textwrap.wrap(
        text, width, subsequent_indent="    ", break_on_hyphens=False, replace_whitespace=False, drop_whitespace=True
    )


def clock() -> str:
    """Write the time of day."""
    return time.strftime("%H:%M:%S")


def duration(seconds: float) -> str:
    """Write a time.

    >>> duration(8.4), duration(3723)
    ('0:08', '1:02:03')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def in_thousands(value: float) -> str:
    """Write a number in three digits.

    >>> in_thousands(950.4), in_thousands(8_400), in_thousands(110_300), in_thousands(2_500_000)
    ('950', '8.4k', '110k', '2.5M')
    """
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.1f}{unit}" if value < 10 * size else f"{value / size:.0f}{unit}"
    return f"{value:.0f}"


def step_seconds(row: Row) -> float:
    """Add up the seconds of a step, without what came before the first one."""
    return math.fsum(value for phase, value in row["seconds"].items() if phase not in BEFORE)


def step_tokens(row: Row) -> float:
    """Count the tokens of a step: those that it generated, or if it generates none the supervised ones."""
    return row.get("generated_tokens", row.get("supervised_tokens", math.nan))


def number(value: float | None, digits: int = 3) -> str:
    """Write a number, "-" if it is missing."""
    return "-" if value is None or value != value else f"{value:.{digits}f}"


def _missing(value: float | None) -> bool:
    return value is None or value != value
