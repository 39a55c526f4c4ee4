"""Algorithms in words, of the catalog and of runs; and a part of one's own, held to the laws of its slot."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from groupwise.algorithms import explain as words
from groupwise.algorithms.laws import tried
from groupwise.algorithms.own_parts import slot_of
from groupwise.algorithms.settings import own
from groupwise.config import recipe, recipe_files
from groupwise.core.errors import UsageError, brief
from groupwise.journal import kept
from groupwise.journal.kept import RECIPE, whole_recipe


def explain(name: str, chosen: Mapping[str, object], note: Callable[[str], None]) -> str:
    """Explain the row `name` of the catalog, or the algorithm of the run folder `name`, with these settings over it.

    `note` hears of each file of the run's own code that is not what it was.
    """
    if not os.path.lexists(os.path.join(name, RECIPE)):
        if os.sep in name:  # no algorithm is called so
            raise UsageError(f"explain {brief(name)}: no run folder (there is no {RECIPE} in it) and no algorithm")
        return words.explain(name, chosen)
    run = Path(name)
    path = whole_recipe(run)
    table = dict(recipe.parse(recipe_files.read_table(path), str(path)).algorithm)
    for line in kept.differences(run):
        note(line)
    return words.explain(str(table.pop("name", "")), {**table, **chosen}, kept.kept_code(run))


@dataclass(frozen=True)
class Trial:
    """A part, its slot, and each law in words with what was seen that breaks it, "" if it holds."""

    part: object
    slot: str
    laws: tuple[tuple[str, str], ...]

    @property
    def broken(self) -> int:
        """Number of laws that do not hold."""
        return sum(bool(seen) for _, seen in self.laws)


def laws(use: str, fields: Mapping[str, object]) -> Trial:
    """Try the part that `use` names, with these fields. Raises UsageError if it cannot be loaded or made."""
    part = own(use, fields)
    return Trial(part, slot_of(type(part)), tuple((law.words, seen) for law, seen in tried(part)))
