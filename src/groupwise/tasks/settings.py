"""Settings of tasks: a frozen dataclass a task, whose fields are the keys under [task]. Checks that several share."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from groupwise.core.errors import UsageError


class PickledSettings:
    """Base of tasks that pickle as their settings alone: another process reads or makes its own problems."""

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]


def field_defaults(settings: Any) -> dict[str, Any]:
    """Name -> default of a dataclass's fields, in their order; None where a field has none."""
    return {field.name: _default(field) for field in dataclasses.fields(settings)}


def require_type(key: str, value: object, default: object) -> None:
    """Raises UsageError where a value is not of its default's type. A whole number may stand for a number, and a list
    for a pair.
    """
    if isinstance(default, tuple):
        fits = isinstance(value, (list, tuple)) and len(value) == len(default) and all(type(v) is int for v in value)
        expected = f"a list of {len(default)} whole numbers"
    elif isinstance(default, float):
        fits, expected = isinstance(value, (int, float)) and not isinstance(value, bool), "a number"
    elif isinstance(default, dict):
        fits, expected = isinstance(value, Mapping), f"a table, such as [{key}]"
    else:
        fits = type(value) is type(default)
        expected = {int: "a whole number", str: "text", bool: "true or false"}[type(default)]
    if not fits:
        raise UsageError(f"{key} = {value!r}: must be {expected}")


def require_shares(heldout: float, worked: float) -> None:
    """Raises UsageError unless both splits get a share of the problems, and `worked` is a share of demonstrations."""
    if not 0 < heldout < 1:
        raise UsageError(f"task.heldout_share must lie between 0 and 1, not {heldout}")
    if not 0 <= worked <= 1:
        raise UsageError(f"task.worked_share must be from 0 to 1, not {worked}")


def fewest_and_most(key: str, numbers: Sequence[int], limit: int) -> tuple[int, int]:
    """The pair as a tuple, for a recipe writes a list. Raises UsageError unless 2 <= fewest <= most <= limit."""
    pair = tuple(numbers)
    if len(pair) != 2 or not 2 <= pair[0] <= pair[1] <= limit:
        raise UsageError(f"task.{key} must be [fewest, most] with 2 <= fewest <= most <= {limit}, not {pair}")
    return pair[0], pair[1]


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default
