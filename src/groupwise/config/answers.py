"""Answers that need no torch: keys, algorithms in words, and names that a recipe may not have.

Importing the settings takes seconds, since they live beside the code that reads them; `make docs` writes what they
declare to answers.json, and a test holds that file against them.
"""

import json
import os
from collections.abc import Container, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from groupwise.config.described import Key, KeySection
from groupwise.config.elsewhere import option_of, require_own_names
from groupwise.config.recipe_files import find, named_table, set_key
from groupwise.core.errors import UsageError, brief, listed, nearest, no_such_algorithm
from groupwise.core.files.plain import require_plain

ANSWERS = Path(str(files("groupwise.config") / "answers.json"))
#: Faults of one recipe that a message names.
MOST_FAULTS = 3
#: Keys that choose a part: each slot has one of them.
CHOOSING = ("kind", "level", "estimator")
#: Sections whose key `name` people mean when they give a section a value.
NAMED = ("algorithm", "task", "engine", "rewards")


@cache
def _answers() -> Mapping[str, Any]:
    return json.loads(ANSWERS.read_text(encoding="utf-8"))


def sections() -> list[KeySection]:
    """List the sections of a recipe with their keys."""
    return [
        KeySection(one["name"], one["title"], tuple(Key(**key) for key in one["keys"]), one["alike"])
        for one in _answers()["sections"]
    ]


def family() -> str:
    """List the algorithms of the catalog, a line each."""
    return _answers()["family"]


def explained(algorithm: str) -> str:
    """Explain an algorithm of the catalog; "" if it is the path of a run folder.

    Raises UsageError if it is neither.
    """
    if os.sep not in algorithm and not os.path.lexists(algorithm):
        _require_algorithm(algorithm)
    return _answers()["algorithms"].get(algorithm, "")


def _require_algorithm(name: str) -> None:
    """Raise UsageError for a name that is neither in answers.json nor in the catalog's code, where one may be new."""
    known = _answers()["algorithms"]
    if name not in known and f'"{name}"' not in algorithms_code():
        raise UsageError(no_such_algorithm(name, known))


def algorithms_code() -> str:
    """Read the code of the catalog and what lies beside it."""
    code = Path(str(files("groupwise.algorithms"))).rglob("*.py")
    return "".join(path.read_text("utf-8") for path in code)


def require_known_keys(recipe: str, overrides: Mapping[str, object]) -> None:
    """Raise UsageError if there is no such recipe, or if it or what is set over it holds a key that does not exist."""
    path = find(recipe)
    table = named_table(path)
    for key, value in overrides.items():
        set_key(table, key, value)
    for key, value in table.items():
        require_plain(f"{path.name}: {key}", value)
    require_known(table, _answers()["keys"], _answers()["algorithm_keys"], path.name)
    algorithm = table.get("algorithm")
    if isinstance(algorithm, dict) and isinstance(chosen := algorithm.get("name"), str):
        _require_algorithm(chosen)
        _require_keys_of_parts(algorithm, _answers()["rows"].get(chosen, {}))


def _require_keys_of_parts(algorithm: Mapping[str, Any], row: Mapping[str, str]) -> None:
    """Raise UsageError for a key of [algorithm] that it has not, or that the part of its slot has not.

    A part that is not the catalog's, and a key that its code may have had for less time than answers.json, is left to
    who makes the parts.
    """
    for slot, values in algorithm.items():
        if slot not in (known := _answers()["algorithm_keys"]):
            raise UsageError(f"algorithm.{slot}: there is no such key; {nearest(slot, known)}")
        if not isinstance(values, dict) or "use" in values:
            continue
        name = next((values[key] for key in CHOOSING if key in values), row.get(slot))
        keys = _answers()["parts"].get(slot, {}).get(name, []) if isinstance(name, str) else []
        wrong = [key for key in values if key not in (*keys, *CHOOSING)] if keys else []
        if wrong and f" {wrong[0]}:" not in algorithms_code():
            told = f"{slot} {name!r} has no such key; {nearest(wrong[0], keys)}"
            raise UsageError(f"algorithm.{slot}.{wrong[0]}: {told}")


def require_known(
    table: Mapping[str, Any], known: Mapping[str, Any], algorithm_keys: Sequence[str], where: str
) -> None:
    """Raise UsageError for keys of a recipe's table that are another project's names, or nobody's.

    known  key -> the keys inside it, or an empty table if whoever reads them judges them
    """
    for section, value in table.items():
        if (section in NAMED or known.get(section)) and isinstance(value, (str, int, float)):
            raise UsageError(f"{where}: {section} = {brief(value)}: {_of_section(section, value, known)}")
    require_own_names(table, {**known, "algorithm": {key: {} for key in algorithm_keys}}, where)
    if faults := list(_unknown(table, known, "", known)):
        raise UsageError(f"{where}: {first_ones(faults)}")


def in_words(words: Sequence[str], options: Container[str] = ("--set",)) -> str:
    """Say of the first word of a command line that is a key here, or a name of TRL's or verl's, how to write it; "" if
    there is none.

    options  the command's own, of which nothing is said

    >>> in_words(["train", "--steps", "10"])
    'a key is set with --set: --set steps=10'
    """
    for at, word in enumerate(words):
        name, equals, value = word.lstrip("-").partition("=")
        if words[at - 1] == "--set" or word.partition("=")[0] in options or not (equals or word.startswith("--")):
            continue
        following = words[at + 1] if at + 1 < len(words) and not words[at + 1].startswith("--") else "VALUE"
        name, value = name.replace("-", "_"), value if equals else following
        if _has_key(name):
            return f"a key is set with --set: --set {name}={value}"
        if option := option_of(name):
            return f"{name}: {option}"
    return ""


def _has_key(name: str) -> bool:
    first, _, rest = name.partition(".")
    known = _answers()["keys"]
    return first in known and (rest in known[first] if known[first] else bool(rest) or first not in NAMED)


def _of_section(section: str, value: object, known: Mapping[str, Any]) -> str:
    """Say which key of a section a value is meant for, that the section itself was given."""
    if section == "rewards":
        return "this is a section; a reward has a table of its own, such as --set rewards.NAME.use=rewards.py:reward"
    if section in NAMED:
        return f"this is a section; say {section}.name={value}"
    return f"this is a section; its keys are {listed(f'{section}.{key}' for key in known[section])}"


def first_ones(faults: Sequence[str]) -> str:
    """Join the first faults, and say how many more there are.

    >>> first_ones(["a", "b", "c", "d", "e"])
    'a; b; c; and 2 more'
    """
    more = len(faults) - MOST_FAULTS
    return "; ".join([*faults[:MOST_FAULTS], *([f"and {more} more"] if more > 0 else [])])


def _unknown(table: Mapping[str, Any], known: Mapping[str, Any], prefix: str, top: Mapping[str, Any]) -> Iterator[str]:
    """Say of each key that does not exist which is nearest: those inside sections first, as they are declared."""
    for name, inner in known.items():
        if inner and isinstance(value := table.get(name), Mapping):
            yield from _unknown(value, inner, f"{prefix}{name}.", top)
    for name, value in table.items():
        if name not in known:
            near = _section_near(name, value, top) if known is top else []
            yield f"{prefix}{name}: there is no such key; {nearest(name, list(known), near)}"


def _section_near(unknown: str, value: object, top: Mapping[str, Any]) -> list[str]:
    """Find the key of a section that is nearest to the first key of an unknown table; none if none is near."""
    known = [f"{name}.{key}" for name, inside in top.items() for key in inside]
    return get_close_matches(f"{unknown}.{next(iter(value))}", known, n=1) if isinstance(value, dict) and value else []
