"""What a check says: findings in sections, and problems as the model will see them; how a terminal shows them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from rich.console import Console
from rich.text import Text


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
    """A problem as the model sees it: the prompt's text, then what is trained, end id included.

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


def print_sections(sections: Iterable[Section], console: Console) -> int:
    """Print every section as it comes, then the faults again. -> how many there are."""
    faults = []
    for section in sections:
        _print_section(section, console)
        faults += [f"{section.title}: {finding.what}" for finding in section.findings if finding.level is Level.FAULT]
    if not faults:
        console.print("no faults found", style="bold green")
        return 0
    console.print(f"{len(faults)} fault{'s' * (len(faults) > 1)}", style="bold red")
    for what in faults:
        console.print(Text(f"  {what}"))
    return len(faults)


def _print_section(section: Section, console: Console) -> None:
    """Title, text, findings, problems; an empty line after them."""
    console.print(Text(section.title, style="bold"))
    if section.text:
        console.print(Text(section.text))
    for finding in section.findings:
        console.print(Text.assemble((f"  {finding.level:<6}", STYLES[finding.level]), finding.what))
    for problem in section.problems:
        console.print(_problem(problem, coloured=console.is_terminal and not console.no_color))
    console.print()


def _problem(problem: ShownProblem, coloured: bool) -> Text:
    head = f"  {problem.key}: {problem.prompt_tokens} prompt tokens, {problem.trained_tokens} trained tokens\n"
    trained = problem.trained if coloured else f"{OPENED}{problem.trained}{CLOSED}"
    return Text.assemble(head, (problem.prompt, "dim"), (trained, "bold green"))
