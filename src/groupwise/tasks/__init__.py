"""Tasks: where prompts come from and what scores a completion."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from groupwise.core.errors import UsageError, nearest
from groupwise.core.task import Task
from groupwise.tasks.arithmetic import Arithmetic
from groupwise.tasks.code.task import Code
from groupwise.tasks.data.mappings import MAPPINGS
from groupwise.tasks.data.task import Data
from groupwise.tasks.gym.task import Gym

#: A mapping is the task `data` with keys of its own.
TASKS: Mapping[str, Any] = {
    "arithmetic": Arithmetic,
    "reasoning_gym": Gym,
    "code": Code,
    "data": Data,
    **dict.fromkeys(MAPPINGS, Data),
}


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
        _demand_type(f"task.{key}", value, _default(known[key]))
    return kind(**{**MAPPINGS.get(name, {}), **(settings or {})})


def _default(field: dataclasses.Field[Any]) -> object:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _demand_type(where: str, value: object, like: object) -> None:
    """A value must be of the default's type: a whole number may stand for a number, a list for a pair."""
    if isinstance(like, tuple):
        good = isinstance(value, (list, tuple)) and len(value) == len(like) and all(type(v) is int for v in value)
        expected = f"a list of {len(like)} whole numbers"
    elif isinstance(like, float):
        good, expected = isinstance(value, (int, float)) and not isinstance(value, bool), "a number"
    elif isinstance(like, dict):
        good, expected = isinstance(value, Mapping), f"a table, such as [{where}]"
    else:
        good, expected = (
            type(value) is type(like),
            {int: "a whole number", str: "text", bool: "true or false", dict: "a table"}[type(like)],
        )
    if not good:
        raise UsageError(f"{where} = {value!r}: must be {expected}")
