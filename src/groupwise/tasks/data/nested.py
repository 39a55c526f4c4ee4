"""Columns inside columns: `reward_model.ground_truth` is what the column `reward_model` holds as `ground_truth`."""

from collections.abc import Mapping
from typing import Any

from groupwise.core.errors import listed
from groupwise.tasks.data.formats import kind_of


class MissingColumn(LookupError):
    """A path that ends nowhere; its message says at which part, and what is there instead."""


def value_at(values: Mapping[str, Any], path: str) -> Any:
    """Return the value of a column, or inside one: names of tables and places in lists (from 0), with dots between.

    A column whose whole name is the path comes first. Raises MissingColumn.

    >>> row = {"reward_model": {"ground_truth": "72", "style": "rule"}, "prompt": [{"content": "6 * 12?"}]}
    >>> value_at(row, "reward_model.ground_truth"), value_at(row, "prompt.0.content")
    ('72', '6 * 12?')
    >>> value_at(row, "reward_model.truth")
    Traceback (most recent call last):
    groupwise.tasks.data.nested.MissingColumn: has no 'truth' in its column 'reward_model'; there: ground_truth, style
    """
    if path in values:
        return values[path]
    first, *inner = path.split(".")
    if first not in values:
        raise MissingColumn(f"has no column {first!r}; columns there: {listed(values) or 'none'}")
    value, above = values[first], first
    for name in inner:
        value, above = _inside(value, name, above), f"{above}.{name}"
    return value


def has_value(values: Mapping[str, Any], path: str) -> bool:
    """Tell whether `value_at` finds something, null included."""
    try:
        value_at(values, path)
    except MissingColumn:
        return False
    return True


def _inside(value: Any, name: str, above: str) -> Any:
    """Return what a table holds under the name, or a list at the place; `above` is the path to it, for the message."""
    if isinstance(value, Mapping) and name in value:
        return value[name]
    if isinstance(value, list) and name.isdecimal() and int(name) < len(value):
        return value[int(name)]
    size = f"a list of {len(value)}" if isinstance(value, list) else kind_of(value)
    there = f"there: {listed(value)}" if isinstance(value, Mapping) and value else f"it holds {size}"
    raise MissingColumn(f"has no {name!r} in its column {above!r}; {there}")
