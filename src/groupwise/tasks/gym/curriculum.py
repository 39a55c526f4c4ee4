"""A curriculum: how hard each generator's problems are, moved by the share of them that the policy solves."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from groupwise.core.errors import UsageError, nearest
from groupwise.core.extras import need


@dataclass(frozen=True)
class Curriculum:
    """When a generator's level moves. Without levels nothing does.

    levels        how many there are, level 0 the easiest; a generator that has fewer stays at its last
    up, down      pass rates of a step: at or above `up` one level up, at or below `down` one down
    completions   how many completions a rate must come from, or it moves nothing

    >>> Curriculum(levels=3).moved({"gcd": 1, "lcm": 2}, {"gcd": (0.9, 64), "lcm": (0.9, 64)})
    {'gcd': 2, 'lcm': 2}
    """

    levels: int = 1
    up: float = 0.8
    down: float = 0.2
    completions: int = 32

    def __post_init__(self) -> None:
        if self.levels < 1:
            raise UsageError(f"task.curriculum.levels must be at least 1, not {self.levels}")
        if self.completions < 1:
            raise UsageError(f"task.curriculum.completions must be at least 1, not {self.completions}")
        if not 0 <= self.down < self.up <= 1:
            raise UsageError(
                f"task.curriculum: 0 <= down < up <= 1 must hold, not down = {self.down} and up = {self.up}"
            )

    def moved(self, levels: Mapping[str, int], rates: Mapping[str, tuple[float, int]]) -> dict[str, int]:
        """The levels after a step with these (pass rate, completions); a source without a rate stays."""
        return {name: self._next(level, *rates.get(name, (0.0, 0))) for name, level in levels.items()}

    def _next(self, level: int, rate: float, completions: int) -> int:
        if completions < self.completions:
            return level
        step = (rate >= self.up) - (rate <= self.down)
        return min(max(level + step, 0), self.levels - 1)


def curriculum(table: Mapping[str, Any]) -> Curriculum:
    """From a recipe's [task.curriculum]. Raises UsageError."""
    known = {f.name: f.default for f in dataclasses.fields(Curriculum)}
    for key, value in table.items():
        if key not in known:
            raise UsageError(f"task.curriculum.{key}: there is no such key; {nearest(key, known)}")
        whole = isinstance(known[key], int)
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
            raise UsageError(f"task.curriculum.{key} = {value!r}: must be a {'whole ' if whole else ''}number")
    if table and "levels" not in table:
        raise UsageError("task.curriculum.levels is missing; such as levels = 4")
    return Curriculum(**table)


def parameters_at(generator: str, level: int) -> dict[str, Any]:
    """The parameters that reasoning_gym's own curriculum gives a level: each range from its easiest value up to that
    level's. Empty where the generator has no curriculum.
    """
    factory = need("reasoning_gym.factory", "tasks", "task reasoning_gym")
    if not factory.has_curriculum(generator):
        return {}
    made = factory.create_curriculum(generator)
    made.set_global_level(level)
    config = made.generate_configuration()
    names = [_fields(attribute) for attribute in made.attributes.values()]
    return {name: getattr(config, name) for group in names for name in group}


def _fields(attribute: Any) -> tuple[str, ...]:
    if hasattr(attribute, "field_name"):
        return (attribute.field_name,)
    return attribute.lower_field_name, attribute.upper_field_name
