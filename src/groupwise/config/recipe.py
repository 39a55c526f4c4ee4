"""Recipes: what a TOML file may say, section by section, read and written; nothing is built here."""

import tomllib
from collections.abc import Mapping
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

import tomli_w
from pydantic import ValidationError

from groupwise.algorithms.settings import KINDS
from groupwise.config.elsewhere import require_own_names
from groupwise.core.errors import UsageError, brief, nearest, one_line
from groupwise.core.files.paths import decoded, location, recipe_folder, require_regular
from groupwise.core.files.plain import require_plain
from groupwise.core.settings import Settings, fault
from groupwise.training.settings import RunSettings

#: Bytes of a recipe's file at most, and of what is wrong in one as many things as are said.
LARGEST_FILE, MOST_FAULTS = 1 << 20, 3


class Recipe(RunSettings):
    """Settings of one run as a program loads them, by the name or the path of a recipe."""

    @classmethod
    def load(cls, recipe: str, overrides: Mapping[str, object] | None = None) -> "Recipe":
        """Load the recipe of a name or a path, with dotted keys laid over it. Raises UsageError if anything is off."""
        return load(recipe, overrides)


def shipped() -> list[str]:
    """List the names of the recipes that come with groupwise, those in folders of their own last."""
    every = (p.relative_to(recipe_folder()).with_suffix("").as_posix() for p in recipe_folder().rglob("*.toml"))
    return sorted(every, key=lambda name: ("/" in name, name))


def first_comment(recipe: str) -> str:
    """Return the first line of the comment that a recipe begins with; "" if it begins with none."""
    first = find(recipe).read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""


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


def load(recipe: str, overrides: Mapping[str, object] | None = None) -> Recipe:
    """Load a recipe, the overrides (dotted keys) laid over it. Raises UsageError, one line, if anything is off."""
    path = find(recipe)
    table = named_table(path)
    for key, value in (overrides or {}).items():
        set_key(table, key, value)
    return parse(table, path.name)


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


def parse(table: Mapping[str, Any], where: str) -> Recipe:
    """Check a recipe's table. Raises UsageError, one line, if anything is off."""
    for key, value in table.items():
        require_plain(f"{where}: {key}", value)
    # What is inside of tasks, rewards and parts is judged by them.
    known = {name: {key: {} for key in getattr(kind, "model_fields", ())} for name, kind in section_types().items()}
    known["algorithm"] = {key: {} for key in ("name", "kl", "entropy_coefficient", *KINDS)}
    require_own_names(table, known, where)
    try:
        return Recipe.model_validate(dict(table))
    except ValidationError as error:
        faults = [_in_words(e) for e in error.errors()[:MOST_FAULTS]]
        more = [f"and {error.error_count() - MOST_FAULTS} more"] * (error.error_count() > MOST_FAULTS)
        raise UsageError(f"{where}: {'; '.join(faults + more)}") from None


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


def is_section(kind: Any) -> bool:
    """Check that a type is the settings class of a section."""
    return isinstance(kind, type) and issubclass(kind, Settings)


def section_types() -> dict[str, Any]:
    """Map each key of a recipe to the settings class of its section, or to its own type."""
    return {name: section_type(field.annotation) for name, field in Recipe.model_fields.items()}


def _in_words(error: Any) -> str:
    """Say one of pydantic's errors: the key, its value and, for an unknown key, the nearest known."""
    path = [str(part) for part in error["loc"] if part != "[key]"]
    key = ".".join(path)
    if error["type"] == "extra_forbidden":
        section: Any = Recipe
        for part in path[:-1]:
            section = section_type(section.model_fields[part].annotation)
        near = _nearest_elsewhere(key, error["input"]) if section is Recipe else []
        return f"{key}: there is no such key; {nearest(path[-1], list(section.model_fields), near)}"
    said = fault(error, key)
    if error["type"] == "model_type":  # the section is named, not the class that reads it
        said = said.replace(error["ctx"]["class_name"], f"{path[-1].title().replace('_', '')}Section")
    return said


def _nearest_elsewhere(unknown: str, table: object) -> list[str]:
    """Find the key of a section that is nearest to the first key of an unknown table; none if none is near."""
    known = [f"{name}.{key}" for name, kind in section_types().items() for key in getattr(kind, "model_fields", ())]
    return get_close_matches(f"{unknown}.{next(iter(table))}", known, n=1) if isinstance(table, dict) and table else []


def section_type(annotation: Any) -> Any:
    """Take the class out of `CriticSettings | None`; anything else stays as it is."""
    return next((kind for kind in get_args(annotation) if kind is not type(None)), annotation)
