"""Recipe of a run that is resumed: as groupwise wrote it, with the changes that are asked for and allowed."""

import copy
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from shlex import quote
from typing import Any

import tomli_w

from groupwise.config import recipe, recipe_files
from groupwise.config.plan import Plan
from groupwise.config.recipe import Recipe, is_section, section_type
from groupwise.config.resolve import resolved_recipe
from groupwise.core.errors import UsageError, shortened
from groupwise.core.machine.facts import where
from groupwise.core.settings import Fixed, MayChange
from groupwise.journal.journal import (
    METRICS,
    STEP_FILES,
    SUMMARY,
    Journal,
    last_step,
    read_about,
    read_log,
    read_metrics,
    read_summary,
    sound_metrics,
)
from groupwise.journal.kept import COPY, RECIPE, as_written, whole_recipe
from groupwise.training.checkpoint import CHECKPOINTS, steps
from groupwise.training.optimizer import learning_rate
from groupwise.training.settings import Guard
from groupwise.training.state import Rollback, rate_after

#: What log.txt says of a checkpoint that was made at another step than every so many.
SAVED = re.compile(r"^(?:stopped after step \d+, saved|error: .*\bSaved\b)", re.MULTILINE)
#: Of a key that no declaration speaks of.
UNSAID = "the run depends on it from its first step"
#: The value of a key that a recipe does not have.
UNSET = "unset"


@dataclass(frozen=True)
class Change:
    """A key of a recipe with its value before and after, as TOML; UNSET where there is none."""

    key: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.key} {shortened(self.before, 80)} -> {shortened(self.after, 80)}"

    @property
    def setting(self) -> str:
        """Option of a command line that makes the change."""
        return f"--set {quote(f'{self.key}={self.after}')}"


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
    recipe_files.require_overrides(overrides)
    path = whole_recipe(run)
    table = recipe_files.read_table(path)
    require_as_written(path, table)
    changed = copy.deepcopy(table)
    for key, value in overrides.items():
        recipe_files.set_key(changed, key, value)
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
    last, where = _farthest(run)
    if not last:
        return []
    if damaged or last > every or _has_saved(run):
        bad = f"no checkpoint of it is good ({damaged[0].partition(';')[0]})" if damaged else ""
        raise UsageError(
            f"{run}: {bad or 'its checkpoints are gone'}, and all {last} steps in {where} would be made again from "
            f"the start; put a copy of {CHECKPOINTS}/ back, or begin a new run: "
            f"groupwise train {quote(str(run / RECIPE))} --set name=NEW"
        )
    return [f"{run} was ended before its first checkpoint: the {last} steps in {where} are made again"]


def _farthest(run: Path) -> tuple[int, str]:
    """Return the last step that a run is known to have made, and what in its folder says so; 0 if nothing does."""
    told = [(last_step(run / name), name) for name in STEP_FILES]
    told.append((max(steps(run / CHECKPOINTS), default=0), CHECKPOINTS))
    summary = read_summary(run).get("steps")
    told.append((summary if isinstance(summary, int) else 0, SUMMARY))
    return max(told, key=itemgetter(0))


def _has_saved(run: Path) -> bool:
    """Tell if anything in a run's folder says that it had a checkpoint."""
    resumed_after = [entry.get("step") for entry in read_about(run).get("resumed", []) if isinstance(entry, dict)]
    return (
        (run / SUMMARY).exists()
        or SAVED.search(read_log(run)) is not None
        or any(resumed_after)
        or any("save" in row.get("seconds", {}) for row in sound_metrics(run))
    )


def missing_rows(run: Path, step: int) -> list[str]:
    """Say which steps up to that of a checkpoint have no row, as after a copy that was cut off."""
    have = {row.get("step") for row in read_metrics(run)}
    missing = [each for each in range(1, step + 1) if each not in have]
    if not missing:
        return []
    which = f"step {missing[0]}" if len(missing) == 1 else f"{len(missing)} steps from {missing[0]} to {missing[-1]}"
    return [f"{run / METRICS} has no row of {which}: the run goes on from its checkpoint, and what they were is lost"]


def require_as_written(path: Path, table: Mapping[str, Any]) -> None:
    """Raise UsageError with what differs if a recipe.toml, whose table this is, was edited by hand.

    Another comment or order of the keys is no difference.
    """
    if as_written(path):
        return
    copy = path.with_name(COPY)
    try:
        changes = differences(recipe_files.read_table(copy), table)
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
    book.replace_recipe(recipe_files.dump(resolved_recipe(plan)), remark)
    return lines


def _moved_rate(before: Recipe, after: Recipe, updates: object, factor: float) -> list[str]:
    """Say what the changes do to the learning rate of the next update, if there is one and its rate is another.

    factor  what returns from collapses have multiplied the rate by
    """
    if not isinstance(updates, int) or updates >= after.total_updates:
        return []
    old, new = (
        factor
        * (recipe.adapter.rate_factor if recipe.adapter.rank else 1.0)
        * learning_rate(recipe.learner, updates, recipe.total_updates)
        for recipe in (before, after)
    )
    return [] if old == new else [f"the learning rate of the next update is {new:.3g}, and would have been {old:.3g}"]


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Change, ...]:
    """List the keys in which two recipes' tables differ, in the order of the second.

    >>> differences({"steps": 4, "learner": {"clip_norm": 1.0}}, {"steps": 8, "learner": {"clip_norm": 1.0}})
    (Change(key='steps', before='4', after='8'),)
    """
    old, new = dict(_values(before)), dict(_values(after))
    keys = dict.fromkeys([*new, *old])
    return tuple(Change(k, _toml(old.get(k)), _toml(new.get(k))) for k in keys if old.get(k) != new.get(k))


def require_changeable(changes: tuple[Change, ...], run: Path) -> None:
    """Raise UsageError for the first key that may not change: the reason, what may, and what to do instead."""
    for change in changes:
        if reason := fixed_because(change.key):
            place = quote(str(run))
            raise UsageError(
                f"{change}: cannot change in a run that goes on: {reason}. What may: {changeable_in_words()}. "
                f"For another {change.key} begin a run with this one's weights: "
                f"groupwise train {quote(str(run / 'recipe.toml'))} --set start={place} {change.setting}"
            )


def fixed_because(key: str) -> str:
    """Say why a key of a recipe stays as it is in a run that is resumed; "" if it may change.

    >>> fixed_because("learner.learning_rate"), fixed_because("runs")
    ('', 'the run is its folder: rename or move that')
    """
    section, reason = Recipe, UNSAID
    for part in key.split("."):
        field = section.model_fields.get(part) if is_section(section) else None
        if field is None:
            break
        if any(isinstance(mark, MayChange) for mark in field.metadata):
            return ""
        reason = next((mark.reason for mark in field.metadata if isinstance(mark, Fixed)), reason)
        section = section_type(field.annotation)
    return reason


def changeable_keys(section: Any = Recipe, prefix: str = "") -> Iterator[str]:
    """List the keys that may change, dotted, in the order of declaration."""
    for name, field in section.model_fields.items():
        inner = section_type(field.annotation)
        if any(isinstance(mark, MayChange) for mark in field.metadata):
            yield prefix + name
        elif is_section(inner):
            yield from changeable_keys(inner, f"{prefix}{name}.")


def changeable_in_words() -> str:
    """Say the keys that may change in one line, by section."""
    sections: dict[str, list[str]] = {}
    for key in changeable_keys():
        section, _, name = key.rpartition(".")
        sections.setdefault(section, []).append(name)
    words = {section: ", ".join(names) for section, names in sections.items()}
    return "; ".join(f"{section}: {names}" if section else names for section, names in words.items())


def _values(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _values(value, f"{prefix}{name}.")
        elif value is not None:
            yield prefix + name, list(value) if isinstance(value, tuple) else value


def _toml(value: Any) -> str:
    if isinstance(value, list):  # in one line
        return f"[{', '.join(map(_toml, value))}]"
    return UNSET if value is None else tomli_w.dumps({"v": value}).removeprefix("v = ").strip()


def resumed(
    before: Mapping[str, Any],
    step: int,
    now: float,
    device: str,
    changes: Sequence[Change] = (),
    rollbacks: Sequence[Mapping[str, Any]] = (),
    lost: str = "",
) -> dict[str, Any]:
    """Add to about.json that the run was resumed after `step` at `now`, unix seconds.

    changes    those of its recipe
    rollbacks  the returns that the checkpoint has
    lost       the process after whose loss it was resumed by itself
    """
    entry: dict[str, Any] = {"step": step, "started": round(now, 3), **where(device)}
    if lost:
        entry["lost"] = lost
    if changes:
        entry["changed"] = {change.key: [change.before, change.after] for change in changes}
    rest = {key: value for key, value in before.items() if key != "rolled_back"}
    returns = {"rolled_back": [*rollbacks]} if rollbacks else {}
    return {**rest, "resumed": [*before.get("resumed", []), entry], **returns}
