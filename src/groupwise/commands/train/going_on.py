"""The recipe of a run that goes on: as groupwise wrote it, with the changes that are asked for and allowed."""

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
from groupwise.journal.recipe_file import COPY, RECIPE, as_written, whole_recipe
from groupwise.training.checkpoint import CHECKPOINTS
from groupwise.training.optimizer import learning_rate
from groupwise.training.rollback import Guard, Rollback, rate_after

#: What log.txt says of a checkpoint that was made at another step than every so many.
SAVED = re.compile(r"stopped after step \d+, saved|\bSaved\b")


@dataclasses.dataclass(frozen=True)
class Continuation:
    """A run's recipe as it was and as it goes on, and what changed."""

    before: Recipe
    recipe: Recipe
    changes: tuple[Change, ...]


def continuation(run: Path, overrides: Mapping[str, object], step: int) -> Continuation:
    """The recipe of a run folder after `step`, with dotted keys laid over it.

    Raises UsageError where recipe.toml was edited by hand, a key may not change, or the run is beyond its last step.
    """
    recipe.require_overrides(overrides)
    path = whole_recipe(run)
    table = recipe.read_table(path)
    require_as_written(path, table)
    changed = copy.deepcopy(table)
    for key, value in overrides.items():
        recipe.set_key(changed, key, value)
    if "guard" in overrides and not any(key.partition(".")[0] == "rollback" for key in overrides):
        _leave_out_unread(changed)
    before, after = recipe.parse(table, str(path)), recipe.parse(changed, "--set")
    changes = differences(table, changed)
    require_changeable(changes, run)
    if after.steps < step:
        raise UsageError(f"steps = {after.steps}: {run} is after step {step} already; set steps = {step} or more")
    return Continuation(before, after, changes)


def made_again(run: Path, every: int, damaged: Sequence[str]) -> list[str]:
    """A line of the steps of a run without a good checkpoint that are made again; none where it has made none.

    every    steps between its checkpoints
    damaged  a line about each checkpoint that is no good
    Raises UsageError where it had a checkpoint: nothing is then thrown away that could not be had again.
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


def _leave_out_unread(table: dict[str, Any]) -> None:
    """Without the guard that goes back nothing reads [rollback], and a recipe says nothing that is not read."""
    if table.get("guard") != Guard.ROLLBACK:
        table.pop("rollback", None)


def require_as_written(path: Path, table: Mapping[str, Any]) -> None:
    """Raises UsageError with what differs where a recipe.toml, whose table this is, was edited by hand.

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
    """Writes the changes into log.txt and recipe.toml -> a line of each. `state` is the checkpoint's.

    The learning rate of an update depends on its number and on the number of all updates as it is now, so other
    `steps` move a run to another place of its schedule.
    """
    if not then.changes:
        return []
    step = state["step"]
    lines = [f"changed after step {step}: {change}" for change in then.changes]
    returns = rate_after([Rollback.model_validate(one) for one in state.get("rollbacks", ())])
    lines += _other_ranks(then.changes)
    lines += _moved_rate(dataclasses.replace(plan, recipe=then.before), plan, state.get("updates"), returns)
    for line in lines:
        book.log(line)
    remark = f"after step {step}: {', '.join(map(str, then.changes))}"
    book.replace_recipe(recipe.dump(resolved_recipe(plan)), remark)
    return lines


def _moved_rate(before: Plan, after: Plan, updates: object, factor: float) -> list[str]:
    """What the changes do to the rate of the next update, where there is one and it is another.

    factor  what returns from collapses have multiplied the rate by
    """
    if not isinstance(updates, int) or updates >= after.total_updates:
        return []
    old, new = (factor * _rate(plan, updates) for plan in (before, after))
    return [] if old == new else [f"the learning rate of the next update is {new:.3g}, and would have been {old:.3g}"]


def _other_ranks(changes: Sequence[Change]) -> list[str]:
    """What another number of ranks does to the numbers."""
    return [
        f"learner.ranks = {change.after}: the numbers from here on are those of {change.before} up to rounding alone"
        for change in changes
        if change.key == "learner.ranks"
    ]


def _rate(plan: Plan, update: int) -> float:
    """The policy's learning rate in an update, counted from 0; adapters learn faster."""
    adapter = plan.recipe.adapter
    faster = adapter.rate_factor if adapter.rank else 1.0
    return faster * learning_rate(plan.recipe.learner, update, plan.total_updates)
