"""A curriculum: how hard each generator's problems are, moved by the share of them that the policy solves."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from groupwise.core.errors import UsageError, nearest
from groupwise.tasks.gym.generators import library
from groupwise.tasks.settings import field_defaults, require_type


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
        if not 1 <= self.levels <= 100:
            raise UsageError(f"task.curriculum.levels must be at least 1 and at most 100, not {self.levels}")
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
    defaults = field_defaults(Curriculum)
    for key, value in table.items():
        if key not in defaults:
            raise UsageError(f"task.curriculum.{key}: there is no such key; {nearest(key, defaults)}")
        require_type(f"task.curriculum.{key}", value, defaults[key])
    if table and "levels" not in table:
        raise UsageError("task.curriculum.levels is missing; such as levels = 4")
    return Curriculum(**table)


def parameters_at(generator: str, level: int) -> dict[str, Any]:
    """Name -> value of the parameters that reasoning_gym's own curriculum gives a level: each range from its easiest
    value up to that level's. Empty where the generator has no curriculum.
    """
    factory = library("reasoning_gym.factory")
    if not factory.has_curriculum(generator):
        return {}
    schedule = factory.create_curriculum(generator)
    schedule.set_global_level(level)
    parameters = schedule.generate_configuration()
    # A range has two fields, any other attribute one.
    fields = ("field_name", "lower_field_name", "upper_field_name")
    names = [getattr(a, field) for a in schedule.attributes.values() for field in fields if hasattr(a, field)]
    return {name: getattr(parameters, name) for name in names}
