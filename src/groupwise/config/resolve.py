"""The way from a recipe to a plan: what one key takes from another, and every part; nothing heavy is loaded."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.settings import algorithm, fields_by_slot, settings
from groupwise.config.plan import Plan
from groupwise.config.recipe import Recipe, section_types
from groupwise.config.rewards import default_metric, measured_by, read_reward_weights, with_whole_paths
from groupwise.config.validate import require_runnable
from groupwise.core.code.user_code import NO_FILES, Files, Source, source_of
from groupwise.core.errors import UsageError, brief
from groupwise.core.machine.gpu import device_of
from groupwise.core.task import Task
from groupwise.journal import kept
from groupwise.rewards.functions.form import FromFile
from groupwise.rollout.scoring import RewardWeights, has_answers
from groupwise.tasks.agent import SessionTask
from groupwise.tasks.environment import EnvironmentTask
from groupwise.tasks.make import chosen_by, names, task
from groupwise.training.critic import CriticSettings
from groupwise.training.start.initial_policy import TINY
from groupwise.training.start.warm_start import WarmStart
from groupwise.training.supervised import SupervisedSettings

#: Tokens of the completions on which an engine that samples nothing else is tried.
TRIED_TOKENS = 16
#: The task of supervised rows alone, and the keys that such a run does not read, whatever its task.
CHATS = "chats"
SAMPLED = ("algorithm", "prompts_per_step", "samples_per_prompt", "updates_per_batch", "passes_per_batch", "logp_old")
#: A critic without a learning rate of its own learns this many times as fast as the policy.
CRITIC_RATE = 10


def resolve(recipe: Recipe, place: Path | None = None, files: Files = NO_FILES) -> Plan:
    """Make a recipe's parts and its derived values.

    place  the folder of a run that is resumed; its files are those that it keeps
    files  files of a new run that it names and that are on no disk yet
    Raises UsageError, one line, if a part does not exist, nothing reads a key, or the run could not work.
    """
    files, recipe = kept.kept_code(place) if place else files, _mixed(recipe)
    device = device_of(recipe.device, "device = 'cuda'")
    problems = task(*_name_and_keys("task", recipe.task), files)
    rewards = read_reward_weights(recipe.rewards, recipe.scoring.combine == "after", files)
    metric = default_metric(rewards, has_answers(problems), recipe.preference is not None)
    row = _algorithm(recipe, metric, files)
    teaches = row.kl.in_loss and not recipe.reference.stays_start
    if recipe.mix.distilled != 1 and not teaches:
        raise UsageError(
            f"mix.distilled = {recipe.mix.distilled:g}: the loss has no KL term to a teacher; set algorithm.kl.place = "
            '"loss" with a beta above 0 and reference.model to a teacher, or take it out'
        )
    rewards = dataclasses.replace(rewards, each=rewards.each or (row.advantage.by_reward and len(rewards.weights) > 1))
    keys = dataclasses.asdict(problems)  # type: ignore[call-overload]
    chosen = {"name": recipe.task["name"]} if recipe.task.get("name") in names() else chosen_by(problems)
    critic = recipe.critic or CriticSettings()
    if "learning_rate" not in critic.model_fields_set:
        critic = critic.replace(learning_rate=CRITIC_RATE * recipe.learner.learning_rate)
    complete = recipe.replace(
        device=device,
        engine=recipe.engine.placed(),
        passes_per_batch=recipe.passes_per_batch or row.passes,
        task=chosen | {k: list(v) if isinstance(v, tuple) else v for k, v in keys.items()},
        algorithm={"name": row.name, **settings(row)},
        rewards=with_whole_paths(recipe.rewards, rewards),
        critic=critic if row.advantage.reads_value else None,
        warm_start=WarmStart() if recipe.start else recipe.warm_start.fitted(tiny=recipe.model in TINY),
        evaluation=measured_by(recipe.evaluation, metric).with_ends(recipe.sampling),
    )
    reinforced = 1.0 if complete.mix.reinforced is None else complete.mix.reinforced
    if not complete.supervised_alone:
        row = row.mixed(reinforced, complete.mix.distilled if teaches else reinforced)
    plan = Plan(complete, problems, row, rewards, place, _own_code(row, problems, rewards))
    _require_all_read(recipe, plan.unread)
    require_runnable(plan)
    return plan


def resolved_recipe(plan: Plan) -> dict[str, Any]:
    """Write the recipe's table with nothing left to a default, without the keys that nothing reads."""
    exclude: dict[str, Any] = {
        section: keys == set(section_types()[section].model_fields) or keys for section, keys in plan.unread.items()
    }
    if plan.recipe.start:
        exclude |= {"model": True, "warm_start": True}
    if plan.recipe.supervised_alone:
        exclude |= dict.fromkeys(SAMPLED, True)
    return plan.recipe.model_dump(exclude_none=True, exclude=exclude)


def _require_all_read(recipe: Recipe, unread: Mapping[str, set[str]]) -> None:
    """Raise UsageError naming the keys that were set and that nothing in this run reads.

    What `start` stands in for may be there, for recipes name a model, and `start` is laid over them; so may the other
    keys of [adapter] beside a rank of 0 that is laid over them.
    """
    given = {name: section.model_fields_set for name in unread if (section := getattr(recipe, name)) is not None}
    if "rank" in given["adapter"]:
        del given["adapter"]
    keys = sorted(f"{name}.{key}" for name, fields in given.items() for key in fields & unread[name])
    if keys:
        off = any(key.startswith("evaluation.") for key in keys)
        remedy = "; or set evaluation whole: --set 'evaluation={problems=0}'" if off else ""
        raise UsageError(f"{', '.join(keys)}: set, but nothing in this run reads it; take it out{remedy}")


def _mixed(recipe: Recipe) -> Recipe:
    """Fill in what a recipe with supervised rows leaves open: task, rows and weights; where rows alone train, it has
    an algorithm without a reference or a critic, which nothing reads.
    """
    mix, rows, task = recipe.mix, recipe.supervised, recipe.task
    if rows is not None and rows.path and not task:
        task = {"name": CHATS, "path": rows.path}
    if task.get("name") == CHATS and rows is None:
        rows = SupervisedSettings(path=str(task.get("path", "")))
    if rows is None and not mix.model_fields_set:
        return recipe
    weights = {
        "reinforced": float(task.get("name") != CHATS) if mix.reinforced is None else mix.reinforced,
        "supervised": float(rows is not None) if mix.supervised is None else mix.supervised,
    }
    if weights["supervised"] and rows is None:
        raise UsageError(f"mix.supervised = {mix.supervised:g}: there are no rows; add [supervised] with a path")
    if task.get("name") == CHATS and weights["reinforced"]:
        raise UsageError(
            f"mix.reinforced = {mix.reinforced:g}: nothing scores chats; set it to 0, or take another task"
        )
    whole = recipe.replace(mix=mix.replace(**weights), supervised=rows, task=task)
    if task.get("name") == CHATS and "max_new_tokens" not in recipe.sampling.model_fields_set:
        whole = whole.replace(sampling=recipe.sampling.replace(max_new_tokens=TRIED_TOKENS))
    if not whole.supervised_alone:
        return whole
    if not weights["supervised"]:
        raise UsageError("mix: all its weights are 0, so nothing trains; set one of them above 0")
    return whole.replace(algorithm={"name": "reinforce"}, updates_per_batch=1, passes_per_batch=1)


def _algorithm(recipe: Recipe, metric: str, files: Files) -> Algorithm:
    """Make the catalog's row; what its parts take from the rest of the run is filled in unless the recipe says it."""
    name, chosen = _name_and_keys("algorithm", recipe.algorithm)
    if name is None:
        raise UsageError('algorithm.name is missing; such as name = "grpo" under [algorithm]')
    of_the_run = {"limit": recipe.sampling.max_new_tokens, "metric": metric}
    for slot, fields in fields_by_slot(name, chosen, files).items():
        part, taken = chosen.get(slot, {}), {key: value for key, value in of_the_run.items() if key in fields}
        if taken and isinstance(part, dict):
            chosen[slot] = {**taken, **part}
    return algorithm(name, chosen, files)


def _own_code(row: Algorithm, problems: Task, rewards: RewardWeights) -> list[Source]:
    """List the files of the user's own that a run is made of, each once."""
    kinds = [type(part) for part in (*row.parts.values(), row.kl.estimator, problems)]
    of_rewards = [reward.source for reward in rewards.own.values() if isinstance(reward, FromFile)]
    of_task = problems.game.sources if isinstance(problems, EnvironmentTask) else []
    of_task = problems.agent.sources if isinstance(problems, SessionTask) else of_task
    every = [*(source for kind in kinds if (source := source_of(kind))), *of_rewards, *of_task]
    return list({source.path: source for source in every}.values())


def _name_and_keys(section: str, table: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """Take a section's name, None if it has none, and its other keys."""
    keys = dict(table)
    name = keys.pop("name", None)
    if name is not None and not isinstance(name, str):
        raise UsageError(f"{section}.name = {brief(name)}: must be text")
    return name, keys
