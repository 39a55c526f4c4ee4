"""A look at a recipe before a run: what the command and the Python surface call."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from groupwise.algorithms.algorithm import Algorithm
from groupwise.commands.build.threads import threads, with_threads
from groupwise.commands.check.findings import Finding, Section
from groupwise.commands.check.sections import sections
from groupwise.config.given import RecipeLike, RewardsLike, given
from groupwise.config.resolve import resolve


@dataclass(frozen=True)
class Checked:
    """What a check says, section by section."""

    sections: tuple[Section, ...]

    @property
    def findings(self) -> list[Finding]:
        """Each with a level, ok, note or fault, and what it says."""
        return [finding for section in self.sections for finding in section.findings]

    @property
    def faults(self) -> list[str]:
        """What is to be put right, its section first; empty where a run may begin."""
        return [line for section in self.sections for line in section.faults]


def check(
    recipe: RecipeLike,
    overrides: Mapping[str, object] | None = None,
    *,
    algorithm: Algorithm | None = None,
    rewards: RewardsLike | None = None,
    rows: int = 3,
    model: bool = True,
) -> Checked:
    """Look at a recipe's problems, rewards, lengths and model; `groupwise.train` takes the same. Trains nothing.

    rows   problems that are shown as the model will see them
    model  whether the model is loaded too, and the engine's interpreter or address looked for
    Raises UsageError where the recipe is wrong, or a reward cannot be called.
    """
    return Checked(tuple(check_sections(recipe, overrides, algorithm, rewards, rows, model)))


def check_sections(
    recipe: RecipeLike,
    overrides: Mapping[str, object] | None = None,
    algorithm: Algorithm | None = None,
    rewards: RewardsLike | None = None,
    rows: int = 3,
    model: bool = True,
) -> Iterator[Section]:
    """The same, each section as soon as it is known."""
    given_recipe = given(recipe, overrides, algorithm, rewards)
    loaded, notes = with_threads(given_recipe.recipe)
    loaded, files = given_recipe.placed(loaded)
    plan = resolve(loaded, files=files)
    if model:
        plan.recipe.engine.require_place()
    with threads(plan.recipe):
        yield from sections(plan, rows, model, notes)
