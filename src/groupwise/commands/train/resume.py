"""Recipe of a run that is resumed: as groupwise wrote it, with the changes that are asked for and allowed."""

import copy
import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from groupwise.config import recipe
from groupwise.config.changes import UNSET, Change, differences, require_changeable
from groupwise.config.plan import Plan
from groupwise.config.recipe import Recipe
from groupwise.config.resolve import resolved_recipe
from groupwise.core.errors import UsageError
from groupwise.journal.journal import METRICS, SUMMARY, Journal, read_log, sound_metrics
from groupwise.journal.kept import COPY, RECIPE, as_written, whole_recipe
from groupwise.training.checkpoint import CHECKPOINTS
from groupwise.training.optimizer import learning_rate
from groupwise.training.rollback import Guard, Rollback, rate_after

#: What log.txt says of a checkpoint that was made at another step than every so many.
SAVED = re.compile(r"stopped after step \d+, saved|\bSaved\b")


@dataclasses.dataclass(frozen=True)
class Continuation:
    """Recipe of a run as it was and as the run is resumed, and what changed."""

    before: Recipe
    recipe: Recipe
    changes: tuple[Change, ...]


def continuation(run: Path, overrides: Mapping[str, object], step: int) -> Continuation:
    """Lay dotted keys over the recipe of a run folder after `step`.

    Raises UsageError if recipe.toml was edited by hand, a key may not change, or the run is beyond its last step.
    """
    recipe.require_overrides(overrides)
    path = whole_recipe(run)
    table = recipe.read_table(path)
    require_as_written(path, table)
    changed = copy.deepcopy(table)
    for key, value in overrides.items():
        recipe.set_key(changed, key, value)
    asked = {key.partition(".")[0] for key in overrides}
    if "guard" in asked and "rollback" not in asked and changed.get("guard") != Guard.ROLLBACK:
        changed.pop("rollback", None)  # nothing reads it without that guard, and a recipe says nothing unread
    before, after = recipe.parse(table, str(path)), recipe.parse(changed, "--set")
    changes = differences(table, changed)
    require_changeable(changes, run)
    if after.steps < step:
        raise UsageError(f"steps = {after.steps}: {run} is after step {step} already; set steps = {step} or more")
    return Continuation(before, after, changes)


def made_again(run: Path, every: int, damaged: Sequence[str]) -> list[str]:
    """Say which steps of a run without a good checkpoint are made again; nothing if it has made none.

    every    steps between its checkpoints
    damaged  a line about each checkpoint that is no good
    Raises UsageError if it had a checkpoint: nothing is then thrown away that could not be had again.
    """
    last = max((row["step"] for row in sound_metrics(run)), default=0)
    if not last:
        return []
    if damaged or last > every or (run / SUMMARY).exists() or SAVED.search(read_log(run)):
        bad = f"no checkpoint of it is good ({damaged[0].partition(';')[0]})" if damaged else ""
        raise UsageError(
            f"{run}: {bad or 'its checkpoints are gone'}, and all {last} steps in {METRICS} would be made again from "
            f"the start; put a copy of {CHECKPOINTS}/ back, or begin a new run: "
            f"groupwise train {quote(str(run / RECIPE))} --set name=NEW"
        )
    return [f"{run} was ended before its first checkpoint: the {last} steps in {METRICS} are made again"]


def require_as_written(path: Path, table: Mapping[str, Any]) -> None:
    """Raise UsageError with what differs if a recipe.toml, whose table this is, was edited by hand.

    Another comment or order of the keys is no difference.
    """
    if as_written(path):
        return
    copy = path.with_name(COPY)
    try:
        changes = differences(recipe.read_table(copy), table)
    except UsageError:
        raise UsageError(
            f"{path}: edited by hand, and what it was is not known, for {COPY} beside it cannot be read; put back what "
            "it was, and change keys with train --resume RUN --set KEY=VALUE"
        ) from None
    if changes:
        settings = " ".join(change.setting for change in changes if change.after != UNSET)
        raise UsageError(
            f"{path}: edited by hand ({'; '.join(map(str, changes))}); put it back: cp {quote(str(copy))} "
            f"{quote(str(path))}, then change keys with: groupwise train --resume {quote(str(path.parent))} {settings}"
        )


def record_changes(then: Continuation, plan: Plan, book: Journal, state: Mapping[str, Any]) -> list[str]:
    """Write the changes into log.txt and recipe.toml, and say a line of each; `state` is the checkpoint's.

    The learning rate of an update depends on its number and on the number of all updates as it is now, so other
    `steps` move a run to another place of its schedule.
    """
    if not then.changes:
        return []
    step = state["step"]
    lines = [f"changed after step {step}: {change}" for change in then.changes]
    returns = rate_after([Rollback.model_validate(one) for one in state.get("rollbacks", ())])
    lines += [
        f"learner.ranks = {change.after}: the numbers from here on are those of {change.before} up to rounding alone"
        for change in then.changes
        if change.key == "learner.ranks"
    ]
    lines += _moved_rate(then.before, plan.recipe, state.get("updates"), returns)
    for line in lines:
        book.log(line)
    remark = f"after step {step}: {', '.join(map(str, then.changes))}"
    book.replace_recipe(recipe.dump(resolved_recipe(plan)), remark)
    return lines


def _moved_rate(before: Recipe, after: Recipe, updates: object, factor: float) -> list[str]:
    """Say what the changes do to the learning rate of the next update, if there is one and its rate is another.

    factor  what returns from collapses have multiplied the rate by
    """
    if not isinstance(updates, int) or updates >= after.total_updates:
        return []
    old, new = (factor * _rate(recipe, updates) for recipe in (before, after))
    return [] if old == new else [f"the learning rate of the next update is {new:.3g}, and would have been {old:.3g}"]


def _rate(recipe: Recipe, update: int) -> float:
    """Compute the policy's learning rate in an update, counted from 0; adapters learn faster."""
    adapter = recipe.adapter
    faster = adapter.rate_factor if adapter.rank else 1.0
    return faster * learning_rate(recipe.learner, update, recipe.total_updates)
