"""What data says to a terminal is shown there and steers nothing: no markup, no escape, no turned line."""

from __future__ import annotations

import ast
import io
from pathlib import Path

import pytest

import groupwise
from groupwise.core.machine.terminal import Terminal, clean
from groupwise.journal.live import LiveView
from groupwise.journal.terminal import View

SOURCE = Path(groupwise.__file__).parent
HOSTILE = "[/x] [bold]b[/] :smile: \x1b[2J\x1b]0;title\x07 \x9b31m \x7f \r \u202e \udc80"
SHOWN = r"[/x] [bold]b[/] :smile: \x1b[2J\x1b]0;title\x07 \x9b31m \x7f \r \u202e \udc80"


@pytest.mark.parametrize("character", [*map(chr, [*range(9), *range(11, 32), *range(127, 160)]), "\u2066", "\u061c"])
def test_every_control_character_becomes_its_escape(character: str) -> None:
    shown = clean(f"a{character}b")
    assert shown == f"a{character.encode('unicode_escape').decode()}b"
    assert shown.isprintable()


def test_what_a_terminal_shows_stays_as_it_is() -> None:
    for text in ("a\tb\nc", "é 漢字 العربية \U0001f600", "▁▂█ · «x»", ""):
        assert clean(text) == text


@pytest.mark.parametrize("colours", [True, False])
def test_a_terminal_prints_data_as_text(colours: bool) -> None:
    out = io.StringIO()
    terminal = Terminal(file=out, force_terminal=colours, color_system="standard" if colours else None, width=20)
    terminal.print(HOSTILE)
    assert out.getvalue() == f"{SHOWN}\n", "neither markup nor a break at the terminal's width"
    terminal.print("a ", (HOSTILE, "bold red"))
    styled = f"\x1b[1;31m{SHOWN}\x1b[0m" if colours else SHOWN
    assert out.getvalue() == f"{SHOWN}\na {styled}\n"


def test_a_stream_that_knows_few_characters_shows_the_rest_as_escapes() -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    Terminal(file=out).print("é \udc80 a")
    out.flush()
    assert out.buffer.getvalue() == b"\\xe9 \\udc80 a\n"  # type: ignore[attr-defined]


def test_neither_view_of_a_run_lets_data_through() -> None:
    out = io.StringIO()
    terminal = Terminal(file=out, force_terminal=True, color_system=None)
    View(4, terminal).note(HOSTILE)
    live = LiveView(4, terminal, name=HOSTILE)
    live.warming = HOSTILE
    terminal.console.print(live.render())
    assert out.getvalue().count("[/x] [bold]b[/]") == 3
    assert "&lt;script&gt;" in terminal.html(terminal.text("<script>"))
    assert not set("\x1b\x07\x9b\r\u202e\udc80") & set(out.getvalue())


@pytest.mark.parametrize("compares", [True, False])
def test_both_views_show_groups_with_signal_where_completions_of_a_prompt_are_compared(compares: bool) -> None:
    row = {
        "step": 1,
        "pass_rate": 0.5,
        "reward_mean": 0.5,
        "length_mean": 4.0,
        "groups_signal_share": 0.0,
        "share_passed": 1.0,
        "seconds": {"update": 1.0},
    }
    out = io.StringIO()
    terminal = Terminal(file=out, force_terminal=True, color_system=None, width=100)
    View(4, terminal, compares_within_group=compares).step(row)
    assert ("sig 0%" in out.getvalue()) == compares
    live = LiveView(4, terminal, compares_within_group=compares, name="run")
    live.rows = [row]
    terminal.console.print(live.render())
    assert ("groups with signal" in out.getvalue()) == compares


def imported(tree: ast.AST) -> set[str]:
    """The names that a module takes from rich."""
    parts = [
        node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rich")
    ]
    whole = [name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names]
    return {name.name for node in parts for name in node.names} | {name for name in whole if name.startswith("rich")}


def test_no_other_module_makes_a_console_or_a_text_of_its_own() -> None:
    """Whoever prints data prints it cleaned: rich's own texts and consoles, and a bare print, are in one module."""
    for path in SOURCE.rglob("*.py"):
        tree, name = ast.parse(path.read_text()), path.relative_to(SOURCE).as_posix()
        if name != "core/machine/terminal.py":
            assert imported(tree) <= {"Group", "Live", "Panel", "Table"}, name
        if name.startswith(("cli/", "commands/", "journal/", "reports/", "training/")):
            calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
            assert not [call for call in calls if isinstance(call, ast.Name) and call.id == "print"], name
