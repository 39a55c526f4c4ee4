"""A check on a terminal: colours where there are some, marks where there are none."""

from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from groupwise.commands.check.findings import Level, Section, ShownProblem

STYLES = {Level.OK: "green", Level.NOTE: "yellow", Level.FAULT: "bold red"}
#: Where there are no colours, what is trained stands between these.
OPENED, CLOSED = "«", "»"


def print_sections(sections: Iterable[Section], console: Console) -> int:
    """Print every section as it comes, then the faults again. -> how many there are."""
    faults = []
    for section in sections:
        print_section(section, console)
        faults += [f"{section.title}: {what}" for what in section.faults]
    if not faults:
        console.print("no faults found", style="bold green")
        return 0
    console.print(f"{len(faults)} fault{'s' * (len(faults) > 1)}", style="bold red")
    for what in faults:
        console.print(Text(f"  {what}"))
    return len(faults)


def print_section(section: Section, console: Console) -> None:
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
