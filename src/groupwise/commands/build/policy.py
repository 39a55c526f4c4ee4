"""Policies of a run: the one that it starts from, and those of its checkpoints."""

import os
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from groupwise.config import recipe as recipes
from groupwise.config.plan import OWN_START
from groupwise.config.recipe import Recipe
from groupwise.config.resolve import resolve
from groupwise.core.errors import UsageError
from groupwise.core.files.atomic import make_folder
from groupwise.core.task import Task
from groupwise.journal.kept import whole_recipe
from groupwise.models.adapters.files import holds_adapters, read_adapters
from groupwise.models.adapters.lora import Adapters
from groupwise.models.adapters.targets import adapted_weights
from groupwise.models.load import Policy, load_policy, save_policy
from groupwise.training import checkpoint
from groupwise.training.optimizer import OnStep, silent
from groupwise.training.start.initial_policy import starting_policy
from groupwise.training.start.run_policy import RunPolicy, run_policy

#: Function that says a line.
Note = Callable[[str], None]


def pinned(recipe: Recipe, note: Note) -> Recipe:
    """Add the step to each run that a recipe names: that run may go on, and its newest policy be another one."""

    def runs(settings: Any, *keys: str) -> dict[str, str]:
        named = {key: run_policy(value) for key in keys if (value := getattr(settings, key)) is not None}
        return {key: _with_step(source, note) for key, source in named.items() if source is not None}

    sections = {"reference": runs(recipe.reference, "model")}
    sections["critic"] = runs(recipe.critic, "start") if recipe.critic is not None else {}
    changed = {name: getattr(recipe, name).replace(**keys) for name, keys in sections.items() if keys}
    return recipe.replace(**runs(recipe, "start", "model"), **changed)


def _with_step(source: RunPolicy, note: Note) -> str:
    state = checkpoint.read_state(checkpoint_of(source.run, source.step, note))
    return str(RunPolicy(source.run, state["step"]))


def named_model(model: str, own: Path, note: Note) -> str:
    """Return the model that a recipe's key names; a run's policy is copied once into `own`, of the run that uses it."""
    source = run_policy(model)
    if source is not None and not own.is_dir():
        write_policy(source.run, checkpoint_of(source.run, source.step, note), own, note)
    return str(own) if own.is_dir() else model


def write_policy(run: Path, source: Path, folder: Path, note: Note) -> None:
    """Write the policy of a run's checkpoint, `source`, as an ordinary Hugging Face folder; adapters are merged."""

    def write(place: Path) -> None:
        if not holds_adapters(source / checkpoint.POLICY):
            shutil.copytree(source / checkpoint.POLICY, place)
            return
        policy = checkpoint_policy(run, source, note)
        save_policy(policy.model, policy.tokenizer, place)

    make_folder(folder, write, "the policy")


def export(run: Path, folder: Path, step: int | None, note: Note) -> int:
    """Write the policy after `step` (None: the newest checkpoint's) into `folder`, whole or not at all; its step.

    `from_pretrained` loads it, without peft. Raises UsageError if the folder exists, or there is no such policy.
    """
    whole_recipe(run)
    if os.path.lexists(folder):
        raise UsageError(f"{folder}: it exists already, and is not written over; name another folder")
    source = checkpoint_of(run, step, note)
    write_policy(run, source, folder, note)
    return int(checkpoint.read_state(source)["step"])


def base_policy(recipe: Recipe, task: Task, model: str, cache: Path, note: Note, on_step: OnStep = silent) -> Policy:
    """Load the policy that a run starts from, or make it; `note` hears if a damaged one is made again.

    model  a tiny model's name, a hub's id or a folder
    Raises UsageError, before a warm start, if there is none or a target of adapters does not fit it.
    """
    require = partial(adapted_weights, settings=recipe.adapter)
    policy = starting_policy(
        model,
        task,
        recipe.warm_start,
        seed=recipe.seed,
        cache=cache,
        device=recipe.device,
        on_step=on_step,
        chat=recipe.chat,
        note=note,
        require=require,
        adapter=recipe.adapter,
    )
    require(policy.model)
    return policy


def checkpoint_policy(run: Path, folder: Path, note: Note, device: str | None = None) -> Policy:
    """Load the policy of a checkpoint's folder; if that holds adapters, the run's starting policy with them merged.

    device  where it is loaded; None is where the run has it
    Raises UsageError if it does not load, or the run does not start from the policy that the adapters are of.
    """
    place, table = folder / checkpoint.POLICY, whole_recipe(run)
    loaded = recipes.read_table(table)
    where = device or str(loaded["device"])
    if not holds_adapters(place):
        return load_policy(place, device=where)
    plan = resolve(recipes.parse(loaded, str(table)), place=Path(os.path.realpath(run)))
    recipe = plan.recipe
    model = named_model(recipe.origin, plan.folder / OWN_START, note)
    policy = base_policy(recipe, plan.task, model, plan.cache, note)
    adapters = Adapters(policy.model, recipe.adapter, recipe.seed)
    read_adapters(place, adapters)
    adapters.merge()
    policy.model.to(where)
    return policy


@dataclass(frozen=True)
class PolicyAfter:
    """Policy of a run, and the step that it is of."""

    step: int
    policy: Policy


def policy_after(run: Path, step: int | None, note: Note, device: str | None = None) -> PolicyAfter:
    """Load the policy of a run after a step, None for its newest good checkpoint; adapters are merged.

    device  where it is loaded; None is where the run has it
    Raises UsageError if there is none, or it does not load.
    """
    folder = checkpoint_of(run, step, note)
    return PolicyAfter(checkpoint.read_state(folder)["step"], checkpoint_policy(run, folder, note, device))


def checkpoint_of(run: Path, step: int | None, note: Note) -> Path:
    """Find the checkpoint of a step, or the newest good one of a run; `note` hears of each damaged one that is newer.

    Raises UsageError if there is none.
    """
    root = run / checkpoint.CHECKPOINTS
    if step is None:
        newest, damaged = checkpoint.newest_good(root)
        for line in damaged:
            note(line)
        if newest is None:
            raise UsageError(f"{run}: no checkpoint in it, so it has no policy yet")
        return newest
    steps = checkpoint.steps(root)
    if step not in steps:
        there = f"there are {', '.join(map(str, steps))}" if steps else "there is none"
        raise UsageError(f"{shlex.quote(str(run))}: it has no checkpoint of step {step}; {there}")
    if damage := checkpoint.damaged(checkpoint.folder_of(root, step)):
        raise UsageError(f"{checkpoint.folder_of(root, step)} is damaged ({damage}); take another step")
    return checkpoint.folder_of(root, step)
