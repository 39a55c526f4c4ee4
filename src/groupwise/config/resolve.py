"""From a recipe to a plan: what one key takes from another, and every part, before anything heavy is loaded."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.settings import algorithm, fields_by_slot, settings
from groupwise.config.measures import default_metric, measured_by
from groupwise.config.plan import Plan
from groupwise.config.recipe import Recipe
from groupwise.config.rewards import mix_of, with_whole_paths
from groupwise.config.validate import require_runnable
from groupwise.core.code.user_code import NO_FILES, Files, Source, source_of
from groupwise.core.errors import UsageError, brief
from groupwise.core.task import Task
from groupwise.journal import code
from groupwise.rewards.functions.user import FromFile
from groupwise.rollout.scoring import Mix, has_answers
from groupwise.tasks.environment.task import EnvironmentTask
from groupwise.tasks.make import TASKS, chosen_by, task
from groupwise.training.critic import CriticSettings
from groupwise.training.rollback import Guard
from groupwise.training.start.initial_policy import TINY

#: A critic without a learning rate of its own learns this many times as fast as the policy.
CRITIC_RATE = 10


def resolve(recipe: Recipe, place: Path | None = None, files: Files = NO_FILES) -> Plan:
    """The recipe with its parts and its derived values.

    place  the folder of a run that is gone on with; its files are those that it keeps
    files  of a new run: what it names and is on no disk yet
    Raises UsageError, one line, where a part does not exist, nothing reads a key, or the run could not work.
    """
    files = code.kept(place) if place else files
    device = _device(recipe.device)
    problems = task(*_name_and_keys("task", recipe.task), files)
    mix = mix_of(recipe.rewards, recipe.scoring.combine == "after", files)
    metric = default_metric(mix, has_answers(problems), recipe.preference is not None)
    row = _algorithm(recipe, metric, files)
    critic = _critic(recipe) if row.advantage.reads_value else None
    _require_all_read(recipe, row, critic)
    keys = dataclasses.asdict(problems)  # type: ignore[call-overload]
    chosen = {"name": recipe.task["name"]} if recipe.task.get("name") in TASKS else chosen_by(problems)
    complete = recipe.replace(
        device=device,
        engine=recipe.engine.placed(),
        passes_per_batch=recipe.passes_per_batch or row.passes,
        task=chosen | {k: list(v) if isinstance(v, tuple) else v for k, v in keys.items()},
        algorithm={"name": row.name, **settings(row)},
        rewards=with_whole_paths(recipe.rewards, mix),
        critic=critic,
        warm_start=recipe.warm_start.fitted(tiny=recipe.model in TINY),
        evaluation=measured_by(recipe.evaluation, metric).with_ends(recipe.sampling),
    )
    plan = Plan(complete, problems, row, mix, place, _own_code(row, problems, mix))
    require_runnable(plan)
    return plan


def resolved_recipe(plan: Plan) -> dict[str, Any]:
    """The recipe's table with nothing left to a default; keys that nothing reads, which would be refused, left out."""
    preference = plan.recipe.preference
    unread: dict[str, Any] = {"engine": plan.recipe.engine.unread}
    if not plan.recipe.adapter.rank:
        unread["adapter"] = True
    if preference:
        unread["preference"] = preference.unread
    unread["evaluation"] = plan.recipe.evaluation.unread
    placement = plan.unread_placement
    unread["placement"] = placement == set(type(plan.recipe.placement).model_fields) or placement
    if plan.recipe.guard is not Guard.ROLLBACK:
        unread["rollback"] = True
    if reference := _unread_of_reference(plan.recipe, plan.algorithm):
        unread["reference"] = True if "model" in reference else reference
    if plan.recipe.start:
        unread |= {"model": True, "warm_start": True}
    return plan.recipe.model_dump(exclude_none=True, exclude=unread)


def _unread_of_reference(recipe: Recipe, row: Algorithm) -> set[str]:
    """The keys of [reference] that nothing reads: all without a reference; of the policy without its adapters, the one
    that says how a copy is held.
    """
    if not row.needs_reference:
        return set(type(recipe.reference).model_fields)
    return {"precision"} if recipe.adapter.rank and recipe.reference.stays_start else set()


def _require_all_read(recipe: Recipe, row: Algorithm, critic: CriticSettings | None) -> None:
    """Raises UsageError naming the keys that were set and that nothing in this run reads.

    A component reads its whole section, but for [critic] where the algorithm reads no values, [reference] where it
    reads none, the keys of [preference] that the reward model's source leaves unread, those of [adapter] where no rank
    is set, those of [engine] that are a child's without one, those of [rollback] without that guard, and those of
    [evaluation] where nothing is evaluated. What `start` stands in for may be there: recipes name a model, and `start`
    is laid over them.
    """
    unread = [f"critic.{key}" for key in recipe.critic.model_fields_set] if recipe.critic and not critic else []
    unread += [f"adapter.{key}" for key in recipe.adapter.unread]
    unread += [f"engine.{key}" for key in recipe.engine.model_fields_set & recipe.engine.unread]
    unwanted = recipe.reference.model_fields_set & _unread_of_reference(recipe, row)
    unread += [f"reference.{key}" for key in unwanted]
    if recipe.guard is not Guard.ROLLBACK:
        unread += [f"rollback.{key}" for key in recipe.rollback.model_fields_set]
    unread += [f"evaluation.{key}" for key in recipe.evaluation.model_fields_set & recipe.evaluation.unread]
    if recipe.preference is not None:
        unread += [f"preference.{key}" for key in recipe.preference.model_fields_set & recipe.preference.unread]
    if unread:
        off = not recipe.evaluation.most and any(key.startswith("evaluation.") for key in unread)
        remedy = "; or set evaluation whole: --set 'evaluation={problems=0}'" if off else ""
        raise UsageError(f"{', '.join(sorted(unread))}: set, but nothing in this run reads it; take it out{remedy}")


def _algorithm(recipe: Recipe, metric: str, files: Files) -> Algorithm:
    """The catalog's row; what its parts take from the rest of the run is filled in unless the recipe says another."""
    name, chosen = _name_and_keys("algorithm", recipe.algorithm)
    if name is None:
        raise UsageError('algorithm.name is missing; such as name = "grpo" under [algorithm]')
    of_the_run = {"limit": recipe.sampling.max_new_tokens, "metric": metric}
    for slot, fields in fields_by_slot(name, chosen, files).items():
        part, taken = chosen.get(slot, {}), {key: value for key, value in of_the_run.items() if key in fields}
        if taken and isinstance(part, dict):
            chosen[slot] = {**taken, **part}
    return algorithm(name, chosen, files)


def _own_code(row: Algorithm, problems: Task, mix: Mix) -> list[Source]:
    """The files of the user's own that a run is made of, each once."""
    kinds = [type(part) for part in (*row.parts.values(), row.kl.estimator, problems)]
    of_rewards = [reward.source for reward in mix.own.values() if isinstance(reward, FromFile)]
    of_task = problems.game.sources if isinstance(problems, EnvironmentTask) else []
    every = [*(source for kind in kinds if (source := source_of(kind))), *of_rewards, *of_task]
    return list({source.path: source for source in every}.values())


def _name_and_keys(section: str, table: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """What a section names, None where it names nothing, and its other keys."""
    keys = dict(table)
    name = keys.pop("name", None)
    if name is not None and not isinstance(name, str):
        raise UsageError(f"{section}.name = {brief(name)}: must be text")
    return name, keys


def _device(name: str) -> str:
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise UsageError('device = \'cuda\': torch sees no CUDA device; use "cpu" or "auto"')
    return ("cuda" if available else "cpu") if name == "auto" else name


def _critic(recipe: Recipe) -> CriticSettings:
    critic = recipe.critic or CriticSettings()
    if "learning_rate" in critic.model_fields_set:
        return critic
    return critic.replace(learning_rate=CRITIC_RATE * recipe.learner.learning_rate)
