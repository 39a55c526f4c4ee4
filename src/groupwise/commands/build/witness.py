"""Witness of a run: the readings that it makes of each step, by the recipe."""

from groupwise.config.recipe import Recipe
from groupwise.diagnostics.checks import WitnessAction
from groupwise.diagnostics.witness.reading import Reading
from groupwise.diagnostics.witness.witness import Witness


def witness_of(recipe: Recipe) -> Witness:
    """Make the witness of a run; one that makes no reading where the recipe wants none."""
    settings = recipe.checks
    readings: list[Reading] = []
    if settings.witness is WitnessAction.OFF:
        readings = []
    return Witness(readings, settings.witness_every, stops=settings.witness is WitnessAction.STOP)
