"""The filter of a data set: which rows stay, by the values of their columns."""

from collections.abc import Mapping
from typing import Any

from groupwise.core.errors import UsageError, nearest

#: What a table under a column may say.
_RANGE = ("min", "max")


def require_filter(filter: Mapping[str, Any]) -> None:
    """Raises UsageError where a condition is not one of these: a value, a list of values, or a table of min and max."""
    for column, wanted in filter.items():
        if isinstance(wanted, Mapping):
            for key, bound in wanted.items():
                if key not in _RANGE:
                    raise UsageError(f"task.filter.{column}.{key}: no such bound; {nearest(key, _RANGE)}")
                if isinstance(bound, bool) or not isinstance(bound, (int, float)):
                    raise UsageError(f"task.filter.{column}.{key} = {bound!r}: must be a number")
        if isinstance(wanted, (Mapping, list, tuple)) and not wanted:
            raise UsageError(f"task.filter.{column} = {wanted!r}: nothing would be left")


def keeps(filter: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Whether a row fulfils every condition.

    >>> row = {"level": "Level 2", "points": "3"}
    >>> keeps({"level": ["Level 1", "Level 2"], "points": {"max": 3}}, row), keeps({"points": 2}, row)
    (True, False)
    """
    return all(_fits(wanted, values[column]) for column, wanted in filter.items())


def _fits(wanted: Any, value: Any) -> bool:
    if isinstance(wanted, Mapping):
        number = _number(value)
        return number is not None and wanted.get("min", number) <= number <= wanted.get("max", number)
    if isinstance(wanted, (list, tuple)):
        return any(_fits(one, value) for one in wanted)
    return value == wanted or str(value) == str(wanted)  # in a CSV file every value is text


def _number(value: Any) -> float | None:
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None
