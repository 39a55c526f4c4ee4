"""Where the processes of a run live, by its recipe."""

from collections.abc import Callable

from groupwise.actors.place import RayPlace
from groupwise.config.plan import Plan
from groupwise.core.processes.place import HERE, Place


def place_of(plan: Plan, note: Callable[[str], None]) -> Place:
    """This machine, or a Ray that has all that the run asks for. Close it after use.

    note  hears where each process lives
    Raises UsageError where there is no such Ray, or it has less.
    """
    settings = plan.recipe.placement
    return RayPlace(settings, plan.processes, note) if settings.ray else HERE
