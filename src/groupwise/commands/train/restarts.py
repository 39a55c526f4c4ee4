"""A run that goes on by itself after a process of it was lost: each time a resume, and not for ever."""

import gc
from collections.abc import Callable
from functools import partial
from pathlib import Path

from groupwise.commands.train.run import Run
from groupwise.config import recipe
from groupwise.core.errors import ProcessLost, RunError
from groupwise.journal.journal import sound_metrics
from groupwise.journal.recipe_file import whole_recipe


def with_restarts(folder: Path, first: Callable[[], Run], again: Callable[[str], Run]) -> Run:
    """What `first` returns; where it loses a process, what `again` does, which resumes the run and is told why.

    A loss counts as one more in a row where the run has not come further than at the loss before it.
    Raises ProcessLost, or RunError after restarts, where the run is not to go on by itself again.
    """
    go, in_a_row, farthest = first, 0, -1
    while True:
        try:
            return go()
        except ProcessLost as lost:
            if lost.final or not folder.is_dir():
                raise
            step, most = _last_step(folder), _restarts(folder)
            in_a_row, farthest = (1, step) if step > farthest else (in_a_row + 1, farthest)
            if not most:
                raise
            if in_a_row > most:
                times = f"{in_a_row} times in a row, the last of them"
                raise RunError(f"a process was lost {times}: {lost.loss}; {lost.remedy}") from None
            go = partial(again, f"{lost.loss}; restart {in_a_row} of {most} in a row")
        gc.collect()  # the models of the process that has ended go before others are loaded


def _last_step(folder: Path) -> int:
    """The last step that stands in metrics.jsonl; -1 where there is none."""
    return max((row["step"] for row in sound_metrics(folder)), default=-1)


def _restarts(folder: Path) -> int:
    """What the run's recipe says as it is in force."""
    path = whole_recipe(folder)
    return recipe.parse(recipe.read_table(path), str(path)).placement.restarts
