"""Policies of a run: the one that it starts from, and those of its checkpoints."""

import os
import shlex
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from groupwise.config import recipe as recipes
from groupwise.config import recipe_files
from groupwise.config.plan import OWN_CRITIC, OWN_START, REWARD_MODEL
from groupwise.config.recipe import Recipe
from groupwise.config.resolve import resolve
from groupwise.core.errors import UsageError
from groupwise.core.files.atomic import make_folder
from groupwise.core.task import Task
from groupwise.journal.kept import whole_recipe
from groupwise.journal.run_policy import RunPolicy, run_policy
from groupwise.models.adapters.lora import Adapters, holds_adapters, read_adapters
from groupwise.models.adapters.packed import round_base
from groupwise.models.adapters.settings import adapted_weights
from groupwise.models.chat.prompts import Chat
from groupwise.models.load import Policy, load_policy, model_folder, save_policy
from groupwise.models.scalar_heads import (
    POLICY_START,
    REWARD_START,
    RewardModel,
    from_folder,
    from_policy,
    load_reward_model,
)
from groupwise.rollout.scoring import Scorer
from groupwise.training import checkpoint
from groupwise.training.critic import CriticSettings
from groupwise.training.optimizer import OnStep, silent
from groupwise.training.start.cached_reward_model import REPORT, cached_reward_model, read_report
from groupwise.training.start.initial_policy import starting_policy

#: Function that says a line.
Note = Callable[[str], None]
#: Function that adds to a folder of the policy after a step.
Finish = Callable[[Path, int], None]


def pinned(recipe: Recipe, note: Note) -> Recipe:
    """Add the step to each run that a recipe names: that run may go on, and its newest policy be another one."""

    def runs(settings: Any, *keys: str) -> dict[str, str]:
        return of_steps({key: getattr(settings, key) for key in keys})

    def of_steps(models: Mapping[str, str | None]) -> dict[str, str]:
        named = {key: run_policy(value) for key, value in models.items() if value is not None}
        found = {key: (s.run, checkpoint_of(s.run, s.step, note)) for key, s in named.items() if s is not None}
        return {key: str(RunPolicy(run, step_of(folder))) for key, (run, folder) in found.items()}

    by_source = recipe.reference.by_source
    teachers = {"by_source": {**by_source, **of_steps(by_source)}} if by_source else {}
    sections: dict[str, dict[str, Any]] = {"reference": {**runs(recipe.reference, "model"), **teachers}}
    sections["critic"] = runs(recipe.critic, "start") if recipe.critic is not None else {}
    changed = {name: getattr(recipe, name).replace(**keys) for name, keys in sections.items() if keys}
    return recipe.replace(**runs(recipe, "start", "model"), **changed)


def named_model(model: str, own: Path, note: Note) -> str:
    """Return the model that a recipe's key names; a run's policy is copied once into `own`, of the run that uses it."""
    source = run_policy(model)
    if source is not None and not own.is_dir():
        write_policy(source.run, checkpoint_of(source.run, source.step, note), own, note)
    return str(own) if own.is_dir() else model


def write_policy(run: Path, source: Path, folder: Path, note: Note, finish: Finish | None = None) -> None:
    """Write the policy of a run's checkpoint, `source`, as an ordinary Hugging Face folder; adapters are merged."""

    def write(place: Path) -> None:
        if holds_adapters(source / checkpoint.POLICY):
            policy = checkpoint_policy(run, source, note)
            save_policy(policy.model, policy.tokenizer, place)
        else:
            shutil.copytree(source / checkpoint.POLICY, place)
        if finish is not None:
            finish(place, step_of(source))

    make_folder(folder, write, "the policy")


def export(run: Path, folder: Path, step: int | None, note: Note, finish: Finish | None = None) -> int:
    """Write the policy after `step` (None: the newest checkpoint's) into `folder`, whole or not at all; its step.

    finish  adds to the folder, which is given with the step, before it is in its place
    `from_pretrained` loads it, without peft. Raises UsageError if the folder exists, or there is no such policy.
    """
    whole_recipe(run)
    if os.path.lexists(folder):
        raise UsageError(f"{folder}: it exists already, and is not written over; name another folder")
    source = checkpoint_of(run, step, note)
    write_policy(run, source, folder, note, finish)
    return step_of(source)


def start_device(recipe: Recipe) -> str:
    """Name the device on which a run's models are whole at its start: of several ranks, whose GPUs take parts of them,
    the processor; a reward model that is trained first needs the run's own.
    """
    return "cpu" if recipe.learner.ranks > 1 and recipe.preference is None else recipe.device


def base_policy(recipe: Recipe, task: Task, model: str, cache: Path, note: Note, on_step: OnStep = silent) -> Policy:
    """Load the policy that a run starts from, or make it; `note` hears if a damaged one is made again.

    model  a tiny model's name, a hub's id or a folder
    Raises UsageError, before a warm start, if there is none or a target of adapters does not fit it.
    """
    require = partial(adapted_weights, settings=recipe.adapter)
    start = start_device(recipe)
    policy = starting_policy(
        model,
        task,
        recipe.warm_start,
        seed=recipe.seed,
        cache=cache,
        device=recipe.device if recipe.warm_start.steps else start,
        on_step=on_step,
        chat=recipe.chat,
        note=note,
        require=require,
        adapter=recipe.adapter,
        in_files=bool(recipe.in_files),
    )
    require(policy.model)
    round_base(policy.model, recipe.adapter)
    if policy.device.type != start:
        policy.model.to(start)
    return policy


def checkpoint_policy(run: Path, folder: Path, note: Note, device: str | None = None) -> Policy:
    """Load the policy of a checkpoint's folder; if that holds adapters, the run's starting policy with them merged.

    device  where it is loaded; None is where the run has it
    Raises UsageError if it does not load, or the run does not start from the policy that the adapters are of.
    """
    place, table = folder / checkpoint.POLICY, whole_recipe(run)
    loaded = recipe_files.read_table(table)
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


def policy_after(run: Path, step: int | None, note: Note, device: str | None = None) -> tuple[int, Policy]:
    """Load the policy of a run after a step, None for its newest good checkpoint; adapters are merged. And the step.

    device  where it is loaded; None is where the run has it
    Raises UsageError if there is none, or it does not load.
    """
    folder = checkpoint_of(run, step, note)
    return step_of(folder), checkpoint_policy(run, folder, note, device)


def step_of(folder: Path) -> int:
    """Read the step that a checkpoint is of."""
    return int(checkpoint.read_state(folder)["step"])


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


def other_policy(recipe: Recipe, note: Note, model: str, own: Path) -> Policy:
    """Load a policy that stands beside the run's own; a run's is copied once into `own`."""
    folder = model_folder(named_model(model, own, note))
    return load_policy(folder, device=start_device(recipe), in_files=bool(recipe.in_files))


def value_model(critic: CriticSettings | None, policy: Policy, folder: Path, note: Note) -> nn.Module | None:
    """Make the model of the critic, if the run has one."""
    if critic is None:
        return None
    if critic.start == POLICY_START:
        return from_policy(policy.model)
    if critic.start == REWARD_START:
        return from_folder(folder / REWARD_MODEL, policy.model)
    return from_folder(Path(named_model(critic.start, folder / OWN_CRITIC, note)), policy.model)


def reward_model(
    recipe: Recipe,
    policy: Policy,
    chat: Chat,
    scorer: Scorer,
    folder: Path,
    cache: Path,
    on_step: OnStep,
    say: Note,
) -> RewardModel | None:
    """Load the run's reward model, kept in its folder, so that a resumed run scores with the very same one."""
    preference, own = recipe.preference, folder / REWARD_MODEL
    if preference is None:
        return None

    def bring(place: Path) -> None:
        if preference.model is None:
            shutil.copytree(
                cached_reward_model(
                    policy,
                    chat,
                    scorer,
                    recipe.sampling,
                    preference,
                    seed=recipe.seed,
                    cache=cache,
                    engine_settings=recipe.engine,
                    on_step=on_step,
                    note=say,
                ),
                place,
            )
        else:
            load_reward_model(Path(preference.model))
            shutil.copytree(preference.model, place)

    make_folder(own, bring, "the reward model")
    report = read_report(own / REPORT) if (own / REPORT).is_file() else None
    for line in report.in_words() if report else ():
        say(line)
    judge = load_reward_model(own, device=recipe.device)
    if judge.tokenizer.get_vocab() != policy.tokenizer.get_vocab():
        raise UsageError(
            f"reward model {preference.source!r}: its tokenizer is not the policy's, it would read other words; "
            "take one that shares it"
        )
    return judge
