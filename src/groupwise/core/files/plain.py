"""Values that a recipe can hold: text, finite numbers of 64 bits, dates, and lists and tables of these."""

import datetime
import math
import os
from collections.abc import Mapping
from typing import Any

from groupwise.core.errors import UsageError, brief

#: Tables and lists inside one another, at most.
DEEPEST = 16


def require_plain(key: str, value: object, depth: int = 0) -> None:
    """Raise UsageError naming the key of the first value, inside this one too, that no recipe can hold."""
    why = f"more than {DEEPEST} tables and lists inside one another" if depth > DEEPEST else _refusal(value)
    if why:
        raise UsageError(f"{key} = {brief(value)}: {why}")
    if isinstance(value, Mapping):
        for name, inner in value.items():
            require_plain(key, name, depth)
            require_plain(f"{key}.{name}", inner, depth + 1)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            require_plain(key, inner, depth + 1)


def of_program(value: Any, depth: int = 0) -> Any:
    """Return a program's value as a recipe holds it, in new tables: a path is its text, a number of numpy is Python's,
    of 32 bits the shortest decimal that is the same. Tables too deep for a recipe stay, for `require_plain` to refuse.

    >>> import numpy, pathlib
    >>> of_program({"path": pathlib.Path("a.jsonl"), "rates": [numpy.float32(0.1), numpy.int64(3)]})
    {'path': 'a.jsonl', 'rates': [0.1, 3]}
    """
    if depth > DEEPEST:
        return value
    if isinstance(value, Mapping):
        return {key: of_program(inner, depth + 1) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(of_program(inner, depth + 1) for inner in value)
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        own = value.item()
        return float(str(value)) if isinstance(own, float) else own
    if isinstance(value, os.PathLike) and isinstance(path := os.fspath(value), str):
        return path
    return value


def _refusal(value: object) -> str:
    """Say why no recipe can hold the value itself; "" if one can."""
    if value is None:
        return "a recipe has no such value; leave the key out to have its default"
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "a whole number beyond 64 bits"
    if isinstance(value, float) and not math.isfinite(value):
        return "must be a finite number"
    if isinstance(value, str) and not value.isascii() and value != value.encode(errors="ignore").decode():
        return "half of a surrogate pair is no character"
    known = (str, int, float, Mapping, list, tuple, datetime.date, datetime.time)
    return "" if isinstance(value, known) else f"a {type(value).__name__} is no value of a recipe"
