"""What a check says: findings in sections, and problems as the model will see them; how a terminal shows them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from groupwise.core.machine.terminal import Part, Terminal


class Level(StrEnum):
    """ok: looked at and right. note: worth knowing, and a run is sound all the same. fault: to be put right."""

    OK = "ok"
    NOTE = "note"
    FAULT = "fault"


STYLES = {Level.OK: "green", Level.NOTE: "yellow", Level.FAULT: "bold red"}
#: Where there are no colours, what is trained stands between these.
OPENED, CLOSED = "«", "»"


@dataclass(frozen=True)
class Finding:
    """One line about one thing."""

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
class Section:
    """A part of the check. `text` and `problems` are shown as they are; faults are among the findings alone."""

    title: str
    findings: Sequence[Finding] = ()
    text: str = ""
    problems: Sequence[ShownProblem] = ()

    @property
    def faults(self) -> list[str]:
        """A line for each."""
        return [f"{self.title}: {finding.what}" for finding in self.findings if finding.level is Level.FAULT]


ok = partial(Finding, Level.OK)
note = partial(Finding, Level.NOTE)
fault = partial(Finding, Level.FAULT)


def graded(share: float, limit: float, what: str) -> Finding:
    """A share of something unwanted: none is ok, up to the limit a note, beyond it a fault.

    >>> graded(0.0, 0.05, "0 of 9 too long").level, graded(0.5, 0.05, "5 of 10 too long").level
    (<Level.OK: 'ok'>, <Level.FAULT: 'fault'>)
    """
    return Finding(Level.FAULT if share > limit else Level.NOTE if share > 0 else Level.OK, what)


def listed(words: Sequence[str], shown: int = 3) -> str:
    """The first few, and that there are more.

    >>> listed(["a", "b", "c", "d"]), listed(["a"])
    ('a, b, c, ...', 'a')
    """
    return ", ".join([*words[:shown], *["..."] * (len(words) > shown)])


def print_sections(sections: Iterable[Section], terminal: Terminal) -> int:
    """Print every section as it comes, then the faults again. -> how many there are."""
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


def _print_section(section: Section, terminal: Terminal) -> None:
    """Title, text, findings, problems; an empty line after them."""
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
