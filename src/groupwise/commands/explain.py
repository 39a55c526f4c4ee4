"""What the algorithm of a catalog row, or of a run, is in words."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from groupwise.algorithms import explain as words
from groupwise.config import recipe
from groupwise.core.errors import UsageError, brief
from groupwise.journal import code
from groupwise.journal.recipe_file import RECIPE, whole_recipe


def explain(name: str, chosen: Mapping[str, object], note: Callable[[str], None]) -> str:
    """The row `name` of the catalog, or the algorithm of the run folder `name`, with these settings laid over it.

    `note` says a line of each file of the run's own code that is not what it was.
    """
    if not os.path.lexists(os.path.join(name, RECIPE)):
        if os.sep in name:  # no algorithm is called so
            raise UsageError(f"explain {brief(name)}: no run folder (there is no {RECIPE} in it) and no algorithm")
        return words.explain(name, chosen)
    run = Path(name)
    path = whole_recipe(run)
    table = dict(recipe.parse(recipe.read_table(path), str(path)).algorithm)
    for line in code.differences(run):
        note(line)
    return words.explain(str(table.pop("name", "")), {**table, **chosen}, code.kept(run))
