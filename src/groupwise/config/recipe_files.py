"""Recipe files: found by name, read and written as tables, with keys set over them; imports no torch.

What a key's value must be is known by the settings that read it (`recipe`).
"""

import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

import tomli_w

from groupwise.core.errors import UsageError, brief, nearest, one_line
from groupwise.core.files.paths import decoded, location, recipe_folder, require_regular

#: Bytes of a recipe's file at most.
LARGEST_FILE = 1 << 20


def shipped() -> list[str]:
    """List the names of the recipes that come with groupwise, those in folders of their own last."""
    every = (p.relative_to(recipe_folder()).with_suffix("").as_posix() for p in recipe_folder().rglob("*.toml"))
    return sorted(every, key=lambda name: ("/" in name, name))


def listing() -> list[str]:
    """List the recipes that come with groupwise, a line each: name, model, steps and the first sentence about it.

    Recipes in a folder of their own are one line.
    """
    names = shipped()
    folders = sorted({name.partition("/")[0] for name in names if "/" in name})
    rows = [_row(name) for name in names if "/" not in name]
    for folder in folders:
        inside = [name for name in names if name.startswith(f"{folder}/")]
        _, model, _, words = _row(inside[0])
        rows.append((f"{folder}/*", model, f"{len(inside)} recipes", f"{words} Such as {inside[0]}."))
    rows = [("recipe", "model", "steps", "what it does"), *rows]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=False)] for row in rows)
    return ["  ".join([*cells, row[-1]]) for cells, row in zip(padded, rows, strict=True)]


def _row(name: str) -> tuple[str, str, str, str]:
    path = find(name)
    table = read_table(path)
    return name, str(table.get("model", "")), f"{table.get('steps', '')}", first_sentence(path)


def first_sentence(path: Path) -> str:
    """Read the first sentence of the comment that a recipe begins with; "" if it begins with none."""
    lines = takewhile(lambda line: line.startswith("#"), path.read_text(encoding="utf-8").splitlines())
    comment = " ".join(line.removeprefix("#").strip() for line in lines)
    return re.split(r"(?<=[.])\s(?=[A-Z`]|groupwise )", comment, maxsplit=1)[0]


def find(recipe: str) -> Path:
    """Find a recipe's file by its name or its path. Raises UsageError listing those that exist."""
    path = location(recipe, "recipe")
    if path.suffix == ".toml" or path.is_file():
        require_regular(path, f"recipe {brief(recipe)}")
        return path
    known = shipped()
    if recipe not in known:
        raise UsageError(f"recipe {brief(recipe)}: there is no such recipe; {nearest(recipe, known)}")
    return recipe_folder() / f"{recipe}.toml"


def named_table(path: Path) -> dict[str, Any]:
    """Read the table of a recipe's file, with the file's name where it has none of its own.

    Files of code that a recipe of groupwise's own names under [task] lie beside it, whatever the folder that a command
    is given in.
    """
    table = {"name": path.stem, **read_table(path)}
    if isinstance(task := table.get("task"), dict) and path.resolve().is_relative_to(recipe_folder().resolve()):
        uses = {key: use for key in ("use", "reward") if isinstance(use := task.get(key), str) and ".py:" in use}
        table["task"] = {**task, **{key: str(path.resolve().parent / use) for key, use in uses.items()}}
    return table


def read_table(path: Path) -> dict[str, Any]:
    """Read the table of a TOML file. Raises UsageError if it cannot be read."""
    require_regular(path, str(path))
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise UsageError(f"{path}: longer than {LARGEST_FILE >> 20} MiB; no recipe is")
        return tomllib.loads(decoded(path.read_bytes()))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of brackets
        raise UsageError(f"{path}: not a TOML file: {one_line(error)}") from None


def dump(table: Mapping[str, Any], comment: str = "") -> str:
    """Write a recipe's table as TOML, with a comment in front; `parse` reads it back equal."""
    head = "".join(f"# {line}\n" for line in comment.splitlines())
    return head + tomli_w.dumps(table)


def assignment(text: str) -> tuple[str, object]:
    """Read `key=value` of the command line; the value is TOML, or a bare word taken as text."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"--set {brief(text)}: expected key=value, such as --set algorithm.name=dapo")
    value = value.strip()
    try:
        table = tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError:
        return key.strip(), value
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--set {brief(text)}: cannot be read: {one_line(error)}") from None
    with suppress(tomllib.TOMLDecodeError, RecursionError):
        tomllib.loads(f"value = [{value}]")  # a comment after the value would hide the bracket
        if len(table) == 1:
            return key.strip(), table["value"]
    raise UsageError(f"--set {brief(text)}: more than one value; --set takes one key and its value")


def require_overrides(overrides: object) -> None:
    """Raise UsageError if a program lays something else than a dictionary of dotted keys over a recipe."""
    if not isinstance(overrides, Mapping):
        raise UsageError(f'overrides = {brief(overrides)}: give a dictionary of dotted keys, such as {{"steps": 20}}')
    for key in overrides:
        if not isinstance(key, str):
            raise UsageError(f"overrides: the key {brief(key)} is no text")


def set_key(table: dict[str, Any], key: str, value: object) -> None:
    """Put a dotted key's value into nested tables."""
    *sections, last = key.split(".")
    for section in sections:
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            raise UsageError(f"{key}: {section} is a value, not a section")
    table[last] = value
