"""An algorithm that a program made -> the keys of a recipe that make it again."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.settings import KIND_KEY, algorithm, settings
from groupwise.core.code.live_code import located
from groupwise.core.errors import UsageError


def as_keys(row: Algorithm) -> dict[str, Any]:
    """The section [algorithm]: the row's name, and what differs from the catalog's row of that name.

    What is as the catalog has it is not said, so the run fills it in as it does for the name alone. A part of the
    user's own is named by its file. Raises UsageError where no other process could find that.

    >>> as_keys(algorithm("grpo", {"trust.epsilon_high": 0.28}))
    {'name': 'grpo', 'trust': {'epsilon_high': 0.28}}
    """
    known = settings(algorithm(row.name))
    keys: dict[str, Any] = {"name": row.name}
    for slot, values in settings(row).items():
        if isinstance(values, Mapping):
            part = row.kl.estimator if slot == "kl" else getattr(row, slot)
            changed: Any = _changed(slot, part, values, known[slot])
            if changed:
                keys[slot] = changed
        elif values != known[slot]:
            keys[slot] = values
    return keys


def _changed(slot: str, part: object, values: Mapping[str, Any], known: Any) -> dict[str, Any]:
    """What a slot's keys have that the catalog's row, or the part's own defaults, do not give them."""
    key = KIND_KEY.get(slot, "kind")
    chosen: dict[str, Any] = {}
    if "use" in values:
        chosen["use"] = _file_of(slot, type(part))
    elif values[key] != known[key]:
        chosen[key] = values[key]
    fields = {field.name: field.default for field in dataclasses.fields(part)}  # type: ignore[arg-type]
    usual = {**known, **fields} if chosen else known
    others = {name: value for name, value in values.items() if name not in (key, "use")}
    return chosen | {name: value for name, value in others.items() if value != usual[name]}


def _file_of(slot: str, kind: type) -> str:
    use = located(kind)
    if use:
        return use
    name = kind.__name__
    raise UsageError(
        f"algorithm.{slot}: {name} is a class of this program, so no other process can have it; write it into a file "
        f'parts.py and give groupwise.algorithm(NAME, {{"{slot}.use": "parts.py:{name}"}})'
    )
