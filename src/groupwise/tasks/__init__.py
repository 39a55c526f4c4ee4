"""Tasks: where prompts come from and what scores a completion."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from groupwise.errors import UsageError, nearest
from groupwise.tasks.arithmetic import Arithmetic
from groupwise.tasks.base import Task
from groupwise.tasks.code import Code

TASKS: Mapping[str, Any] = {"arithmetic": Arithmetic, "code": Code}


def task(name: str, settings: Mapping[str, object] | None = None) -> Task:
    """The task `name` with a recipe's own keys under [task].

    Raises UsageError for a name or key that does not exist, and for a value of another type.
    """
    if name not in TASKS:
        raise UsageError(f"task.name = {name!r}: there is no such task; {nearest(name, list(TASKS))}")
    kind = TASKS[name]
    known = {f.name: f for f in dataclasses.fields(kind)}
    for key, value in (settings or {}).items():
        if key not in known:
            raise UsageError(f"task.{key}: {name} has no such key; {nearest(key, ['name', *known])}")
        _demand_type(f"task.{key}", value, known[key].default)
    return kind(**(settings or {}))


def _demand_type(where: str, value: object, like: object) -> None:
    """A value must be of the default's type: a whole number may stand for a number, a list for a pair."""
    if isinstance(like, tuple):
        good = isinstance(value, (list, tuple)) and len(value) == len(like) and all(type(v) is int for v in value)
        expected = f"a list of {len(like)} whole numbers"
    elif isinstance(like, float):
        good, expected = isinstance(value, (int, float)) and not isinstance(value, bool), "a number"
    else:
        good, expected = (
            type(value) is type(like),
            {int: "a whole number", str: "text", bool: "true or false"}[type(like)],
        )
    if not good:
        raise UsageError(f"{where} = {value!r}: must be {expected}")
