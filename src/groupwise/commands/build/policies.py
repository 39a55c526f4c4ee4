"""The policies of a run: the one that it starts from, its reference, and those of its checkpoints."""

import os
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from groupwise.config import recipe as recipes
from groupwise.config.plan import OWN_REFERENCE, OWN_START, Plan
from groupwise.config.recipe import Recipe
from groupwise.config.resolve import resolve
from groupwise.core.errors import UsageError
from groupwise.core.files.atomic import make_folder
from groupwise.journal.recipe_file import whole_recipe
from groupwise.models.adapters.files import holds_adapters, read_adapters
from groupwise.models.adapters.lora import Adapters
from groupwise.models.adapters.targets import adapted_weights
from groupwise.models.load import Policy, load_policy, model_folder, save_policy
from groupwise.training import checkpoint
from groupwise.training.optimizer import OnStep, silent
from groupwise.training.reference import START
from groupwise.training.start.initial_policy import starting_policy
from groupwise.training.start.run_policy import RunPolicy, run_policy

#: Says a line.
Note = Callable[[str], None]


def pinned(recipe: Recipe, note: Note) -> Recipe:
    """The recipe with the step of each run that it names: that run may go on, and its newest policy be another one."""

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
    """What a recipe's key names: of a run's policy the folder `own`, written where it is not there; else itself.

    The policy of a run is taken once, and stays in the folder of the run that uses it.
    """
    source = run_policy(model)
    if source is not None and not own.is_dir():
        write_policy(source.run, checkpoint_of(source.run, source.step, note), own, note)
    return str(own) if own.is_dir() else model


def write_policy(run: Path, source: Path, folder: Path, note: Note) -> None:
    """The policy of a run's checkpoint, `source`, as an ordinary Hugging Face folder; adapters are merged."""

    def write(place: Path) -> None:
        if not holds_adapters(source / checkpoint.POLICY):
            shutil.copytree(source / checkpoint.POLICY, place)
            return
        policy = checkpoint_policy(plan_of(run), source, note)
        save_policy(policy.model, policy.tokenizer, place)

    make_folder(folder, write, "the policy")


def plan_of(run: Path) -> Plan:
    """The plan of a run folder, wherever it was moved and whatever it is called."""
    table = whole_recipe(run)
    return resolve(recipes.parse(recipes.read_table(table), str(table)), place=Path(os.path.realpath(run)))


def starting_model(plan: Plan, note: Note) -> str:
    """What the policy is begun with: a tiny model's name, a hub's id or a folder; of another run, the copy here."""
    return named_model(plan.origin, plan.folder / OWN_START, note)


def base_policy(plan: Plan, note: Callable[[str], None], on_step: OnStep = silent) -> Policy:
    """The policy that a run starts from, made again or loaded; `note` says a line where a damaged one is made again.

    Raises UsageError, before a warm start, where there is none or a target of adapters does not fit it.
    """
    recipe = plan.recipe
    require = partial(adapted_weights, settings=recipe.adapter)
    policy = starting_policy(
        starting_model(plan, note),
        plan.task,
        plan.warm_start,
        seed=recipe.seed,
        cache=plan.cache,
        device=recipe.device,
        on_step=on_step,
        chat=recipe.chat,
        note=note,
        require=require,
        adapter=recipe.adapter,
    )
    require(policy.model)
    return policy


def reference_policy(plan: Plan, policy: Policy, note: Note) -> Policy:
    """The policy that the run's reference begins as, before a cast.

    Raises UsageError where it does not read the policy's tokens, or cannot be renewed from it.
    """
    settings = plan.recipe.reference
    if settings.model == START:
        return policy
    name = named_model(settings.model, plan.folder / OWN_REFERENCE, note)
    other = load_policy(model_folder(name), device=plan.recipe.device)
    where = f"reference.model = {settings.model!r}"
    embeddings = [p.model.get_input_embeddings().weight.shape[0] for p in (policy, other)]
    if policy.tokenizer.get_vocab() != other.tokenizer.get_vocab() or embeddings[1] < embeddings[0]:
        raise UsageError(f"{where}: its tokenizer is another than the policy's, whose tokens it is to read")
    shapes = [{name: p.shape for name, p in model.named_parameters()} for model in (policy.model, other.model)]
    if settings.every and shapes[0] != shapes[1]:
        raise UsageError(f"{where}: its weights have other shapes than the policy's; set reference.every = 0")
    return other


def checkpoint_policy(plan: Plan, folder: Path, note: Callable[[str], None]) -> Policy:
    """The policy of a checkpoint's folder; where that holds adapters, the run's starting policy with them merged.

    Raises UsageError where it does not load, or the run does not start from the policy that the adapters are of.
    """
    place = folder / checkpoint.POLICY
    if not holds_adapters(place):
        return load_policy(place, device=plan.recipe.device)
    policy = base_policy(plan, note)
    adapters = Adapters(policy.model, plan.recipe.adapter, plan.recipe.seed)
    read_adapters(place, adapters)
    adapters.merge()
    return policy


@dataclass(frozen=True)
class PolicyAfter:
    """A policy of a run, and the step that it is of."""

    step: int
    policy: Policy


def policy_after(run: Path, step: int | None, note: Note, device: str | None = None) -> PolicyAfter:
    """The policy of a run after a step, None for its newest good checkpoint; adapters are merged.

    device  where it is loaded; None is where the run has it
    Raises UsageError where there is none, or it does not load.
    """
    folder = checkpoint_of(run, step, note)
    place = folder / checkpoint.POLICY
    where = device or str(recipes.read_table(whole_recipe(run))["device"])
    if holds_adapters(place):
        policy = checkpoint_policy(plan_of(run), folder, note)
        policy.model.to(where)
    else:
        policy = load_policy(place, device=where)
    return PolicyAfter(checkpoint.read_state(folder)["step"], policy)


def checkpoint_of(run: Path, step: int | None, note: Callable[[str], None]) -> Path:
    """The checkpoint of a step, or the newest good one of a run; `note` says a line of each damaged one that is newer.

    Raises UsageError where there is none.
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
