"""Answers that need no torch: keys, algorithms in words, and names that a recipe may not have.

Importing the settings takes seconds, since they live beside the code that reads them; `make docs` writes what they
declare to answers.json, and a test holds that file against them.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from groupwise.config.described import Key, KeySection
from groupwise.config.elsewhere import require_own_names
from groupwise.config.recipe_files import find, named_table, set_key
from groupwise.core.errors import UsageError, nearest

ANSWERS = Path(str(files("groupwise.config") / "answers.json"))
#: Faults of one recipe that a message names.
MOST_FAULTS = 3


@cache
def _answers() -> Mapping[str, Any]:
    return json.loads(ANSWERS.read_text(encoding="utf-8"))


def sections() -> list[KeySection]:
    """List the sections of a recipe with their keys."""
    return [
        KeySection(one["name"], one["title"], tuple(Key(**key) for key in one["keys"]))
        for one in _answers()["sections"]
    ]


def family() -> str:
    """List the algorithms of the catalog, a line each."""
    return _answers()["family"]


def explained(algorithm: str) -> str:
    """Explain an algorithm of the catalog; "" if the catalog has none of that name."""
    return _answers()["algorithms"].get(algorithm, "")


def require_known_keys(recipe: str, overrides: Mapping[str, object]) -> None:
    """Raise UsageError if there is no such recipe, or if it or what is set over it holds a key that does not exist."""
    path = find(recipe)
    table = named_table(path)
    for key, value in overrides.items():
        set_key(table, key, value)
    require_known(table, _answers()["keys"], _answers()["algorithm_keys"], path.name)


def require_known(
    table: Mapping[str, Any], known: Mapping[str, Any], algorithm_keys: Sequence[str], where: str
) -> None:
    """Raise UsageError for keys of a recipe's table that are another project's names, or nobody's.

    known  key -> the keys inside it, or an empty table if whoever reads them judges them
    """
    require_own_names(table, {**known, "algorithm": {key: {} for key in algorithm_keys}}, where)
    if faults := list(_unknown(table, known, "", known)):
        raise UsageError(f"{where}: {first_ones(faults)}")


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
