"""Findings of a check in sections, problems as the model will see them, and how a terminal shows both."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from groupwise.core.machine.terminal import Part, Terminal


class Level(StrEnum):
    """Weight of a finding: ok is right, a note is worth knowing in a sound run, a fault is to be put right."""

    OK = "ok"
    NOTE = "note"
    FAULT = "fault"


STYLES = {Level.OK: "green", Level.NOTE: "yellow", Level.FAULT: "bold red"}
#: Where there are no colours, what is trained stands between these.
OPENED, CLOSED = "«", "»"


@dataclass(frozen=True)
class Remark:
    """Line about one thing."""

    level: Level
    what: str


@dataclass(frozen=True)
class ShownProblem:
    """A problem as the model sees it: the prompt's text, then what is trained, end id included; empty where no
    completion is known.

    key                            the sample's
    prompt, trained                text, special tokens visible
    prompt_tokens, trained_tokens  how many ids each is
    """

    key: str
    prompt: str
    trained: str
    prompt_tokens: int
    trained_tokens: int


@dataclass(frozen=True)
class CheckSection:
    """A part of the check. `text` and `problems` are shown as they are; faults are among the findings alone."""

    title: str
    findings: Sequence[Remark] = ()
    text: str = ""
    problems: Sequence[ShownProblem] = ()

    @property
    def faults(self) -> list[str]:
        """Lines about the faults."""
        return [f"{self.title}: {finding.what}" for finding in self.findings if finding.level is Level.FAULT]


ok = partial(Remark, Level.OK)
note = partial(Remark, Level.NOTE)
fault = partial(Remark, Level.FAULT)


def graded(share: float, limit: float, what: str) -> Remark:
    """Grade a share of something unwanted: none is ok, up to the limit a note, beyond it a fault.

    >>> graded(0.0, 0.05, "0 of 9 too long").level, graded(0.5, 0.05, "5 of 10 too long").level
    (<Level.OK: 'ok'>, <Level.FAULT: 'fault'>)
    """
    return Remark(Level.FAULT if share > limit else Level.NOTE if share > 0 else Level.OK, what)


def listed(words: Sequence[str], shown: int = 3) -> str:
    """List the first few, and say that there are more.

    >>> listed(["a", "b", "c", "d"]), listed(["a"])
    ('a, b, c, ...', 'a')
    """
    return ", ".join([*words[:shown], *["..."] * (len(words) > shown)])


def print_sections(sections: Iterable[CheckSection], terminal: Terminal) -> int:
    """Print every section as it comes, then the faults again. The number of faults."""
    faults: list[str] = []
    for section in sections:
        _print_section(section, terminal)
        faults += section.faults
    if not faults:
        terminal.print(("no faults found", "bold green"))
        return 0
    terminal.print((f"{len(faults)} fault{'s' * (len(faults) > 1)}", "bold red"))
    for what in faults:
        terminal.print(f"  {what}")
    return len(faults)


def _print_section(section: CheckSection, terminal: Terminal) -> None:
    terminal.print((section.title, "bold"))
    if section.text:
        terminal.print(section.text)
    for finding in section.findings:
        terminal.print((f"  {finding.level:<6}", STYLES[finding.level]), finding.what)
    for problem in section.problems:
        terminal.print(*_problem(problem, terminal.coloured))
    terminal.print()


def _problem(problem: ShownProblem, coloured: bool) -> tuple[Part, ...]:
    head = f"  {problem.key}: {problem.prompt_tokens} prompt tokens"
    if not problem.trained:
        return f"{head}\n", (problem.prompt, "dim")
    head = f"{head}, {problem.trained_tokens} trained tokens\n"
    trained = problem.trained if coloured else f"{OPENED}{problem.trained}{CLOSED}"
    return head, (problem.prompt, "dim"), (trained, "bold green")
