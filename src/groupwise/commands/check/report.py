"""An inspection on a terminal: colours where there are some, marks where there are none."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from groupwise.commands.check.remarks import Level, Row, Section

STYLES = {Level.OK: "green", Level.NOTE: "yellow", Level.FAULT: "bold red"}
#: Where there are no colours, what is trained stands between these.
OPENED, CLOSED = "«", "»"


def report(sections: Iterable[Section], console: Console) -> int:
    """Print every section as it comes, then the faults again. -> how many there are."""
    faults = []
    for section in sections:
        show(section, console)
        faults += [f"{section.title}: {what}" for what in section.faults]
    if not faults:
        console.print("no faults found", style="bold green")
        return 0
    console.print(f"{len(faults)} fault{'s' * (len(faults) > 1)}", style="bold red")
    for what in faults:
        console.print(Text(f"  {what}"))
    return len(faults)


def show(section: Section, console: Console) -> None:
    """Title, text, remarks, rows; an empty line after them."""
    console.print(Text(section.title, style="bold"))
    if section.text:
        console.print(Text(section.text))
    for remark in section.remarks:
        console.print(Text.assemble((f"  {remark.level:<6}", STYLES[remark.level]), remark.what))
    for row in section.rows:
        console.print(_row(row, coloured=console.is_terminal and not console.no_color))
    console.print()


def _row(row: Row, coloured: bool) -> Text:
    head = f"  {row.key}: {row.prompt_tokens} prompt tokens, {row.trained_tokens} trained tokens\n"
    trained = row.trained if coloured else f"{OPENED}{row.trained}{CLOSED}"
    return Text.assemble(head, (row.prompt, "dim"), (trained, "bold green"))
