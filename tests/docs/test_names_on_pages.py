"""Every command, option and key that a page names exists."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer

from groupwise.cli import __main__ as cli  # registers every command
from groupwise.config.answers import sections
from groupwise.config.elsewhere import option_of
from tests.docs.pages import PAGES, ROOT, blocks, commands

COMMANDS: Mapping[str, Any] = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
KEYS = {key.name for section in sections() for key in section.keys} | {section.name for section in sections()}
#: The first words of keys that have a dot.
SECTIONS = {key.partition(".")[0] for key in KEYS if "." in key}
#: What looks like a key and is a method, with the page that speaks of it.
METHODS = {("architecture.md", "engine.load_weights")}
#: Tables whose names are a user's own.
THEIRS = re.compile(r"(task\.(settings|generators?)|rewards)\.")
pages = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)


def options(command: Any) -> set[str]:
    """Every way to write an option of a command."""
    return {name for one in command.params for name in (*one.opts, *one.secondary_opts)} | {"--help"}


@cache
def options_of_scripts() -> set[str]:
    """The options of the programs beside the package: those that they declare, and arguments of typer's."""
    files = [*(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "tests" / "faults").glob("*.py")]
    text = "\n".join(file.read_text() for file in files)
    arguments = re.findall(r"^    (\w+): (?:Annotated\[|bool|int|str|Path)", text, re.MULTILINE)
    return {*re.findall(r'"(--[a-z][\w-]*)"', text), *(f"--{name.replace('_', '-')}" for name in arguments)}


def is_key(name: str, text: str) -> bool:
    """Whether a recipe may have the key: its own, or a field of a part that the page writes."""
    if name in KEYS or THEIRS.match(f"{name}."):
        return True
    slot, _, field = name.rpartition(".")
    return slot in KEYS and slot.startswith("algorithm.") and bool(re.search(rf"^    {field}: \w+", text, re.MULTILINE))


def unknown_in_commands(text: str) -> Iterator[str]:
    """Verbs, options and keys of the page's commands that do not exist."""
    for words in commands(text):
        verb = next((word for word in words if not word.startswith("--")), "")
        if verb and verb not in COMMANDS:
            yield f"groupwise {verb}"
            continue
        known = options(COMMANDS[verb]) if verb else {"--version", "--help"}
        yield from (
            f"groupwise {verb} {one}"
            for word in words
            if (one := word.partition("=")[0])[:2] == "--" and one not in known
        )
        keys = [after.partition("=")[0] for word, after in pairwise(words) if word == "--set"]
        yield from (key for key in keys if verb not in ("laws", "explain") and not is_key(key, text))


def unknown_in_text(page: Path, text: str) -> Iterator[str]:
    """Keys and options in code marks that are neither groupwise's nor TRL's or verl's, of which a page may speak."""
    metrics = (ROOT / "docs").rglob("metrics.md")
    measured = {name for file in metrics for name in re.findall(r"\b\w+\.\w+\b", file.read_text())} - KEYS
    for name in re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)(?: = [^`]*)?`", text):
        if name.partition(".")[0] not in SECTIONS or name.endswith((".py", ".toml", ".safetensors", ".json")):
            continue
        theirs = option_of(name) is not None or (page.name, name) in METHODS or name in measured
        if not theirs and not is_key(name, text):
            yield name
    ours = options_of_scripts().union(*map(options, COMMANDS.values()))
    yield from (name for name in re.findall(r"`(--[a-z][\w-]*)", text) if name not in ours)


def unknown_in_recipes(text: str) -> Iterator[str]:
    """Keys of the page's TOML that no recipe may have."""
    for block in blocks(text):
        table = tomllib.loads(block.text) if block.kind == "toml" else {}
        if table.keys() & (SECTIONS | KEYS):  # else a package's own file, or a device's
            yield from (key for key in flat(table) if not is_key(key, text))


def flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The keys of nested tables, with dots; a table that a key itself takes is not looked into."""
    for name, value in table.items():
        key = f"{prefix}{name}"
        yield from flat(value, f"{key}.") if isinstance(value, dict) and inside(key) else [key]


def inside(name: str) -> bool:
    """Whether there are keys inside of a table."""
    return any(key.startswith(f"{name}.") for key in KEYS)


@pages
def test_every_command_option_and_key_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    assert [*unknown_in_commands(text), *unknown_in_text(page, text), *unknown_in_recipes(text)] == []


def test_what_does_not_exist_is_seen() -> None:
    text = """# A page

    groupwise trane quickstart
    groupwise eval RUN --model FOLDER
    groupwise train quickstart --set lerner.rate=1

`learner.rat`, `learner.learning_rate`, `--nowhere`, `--set`, `groupwise reprot RUN`, `sampling.py`

    [sampling]
    temprature = 1.0

    [rewards.mine]
    use = "mine.py:mine"
"""
    assert [*unknown_in_commands(text)] == [
        "groupwise trane",
        "groupwise eval --model",
        "lerner.rate",
        "groupwise reprot",
    ]
    assert [*unknown_in_text(Path("page.md"), text)] == ["learner.rat", "--nowhere"]
    assert [*unknown_in_recipes(text)] == ["sampling.temprature"]
