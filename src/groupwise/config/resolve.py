"""From a recipe to a plan: what one key takes from another, and every part, before anything heavy is loaded."""

import dataclasses
from pathlib import Path
from typing import Any

import torch

from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.settings import algorithm, settings
from groupwise.config.plan import Plan
from groupwise.config.recipe import Recipe
from groupwise.config.rewards import mix_of
from groupwise.config.validate import require_runnable
from groupwise.core.errors import UsageError
from groupwise.core.task import Task
from groupwise.tasks.make import task
from groupwise.training.critic import CriticSettings

#: A critic without a learning rate of its own learns this many times as fast as the policy.
CRITIC_RATE = 10
#: Parts with a completion limit, slot and kind: the sampling's, unless the recipe says another.
LIMITED = (("shaping", "outcome"), ("aggregate", "constant"))


def resolve(recipe: Recipe) -> Plan:
    """The recipe with its parts and its derived values.

    Raises UsageError, one line, where a part does not exist, nothing reads a key, or the run could not work.
    """
    row = _algorithm(recipe)
    sections = {key: value for key, value in vars(recipe).items() if key not in ("algorithm", "task", "rewards")}
    derived: dict[str, Any] = {
        "device": _device(recipe.device),
        "runs": Path(recipe.runs),
        "passes_per_batch": recipe.passes_per_batch or row.passes,
        "task": _task(recipe),
        "critic": _critic(recipe) if row.advantage.reads_value else None,
        "mix": mix_of(recipe.rewards, recipe.scoring.combine == "after"),
    }
    plan = Plan(recipe=recipe, algorithm=row, **{**sections, **derived})
    _require_all_read(plan)
    require_runnable(plan)
    return plan


def resolved_recipe(plan: Plan) -> dict[str, Any]:
    """The recipe's table with nothing left to a default: task, parts and derived values as they are used."""
    values = {"name": plan.recipe.task["name"], **dataclasses.asdict(plan.task)}  # type: ignore[call-overload]
    table: dict[str, Any] = {
        **plan.recipe.model_dump(exclude_none=True, exclude={"critic", "preference"}),
        "device": plan.device,
        "passes_per_batch": plan.passes_per_batch,
        "task": {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()},
        "algorithm": {"name": plan.algorithm.name, **settings(plan.algorithm)},
    }
    if plan.critic is not None:
        table["critic"] = plan.critic.model_dump()
    if plan.preference is not None:  # without what nothing reads, which could not be read again
        table["preference"] = plan.preference.model_dump(exclude_none=True, exclude=plan.preference.unread)
    return {key: table[key] for key in Recipe.model_fields if key in table}


def _require_all_read(plan: Plan) -> None:
    """Raises UsageError naming the keys that were set and that nothing in this run reads.

    A component reads its whole section, but for [critic] where the algorithm reads no values, and for the keys of
    [preference] that the reward model's source leaves unread.
    """
    critic, preference = plan.recipe.critic, plan.recipe.preference
    unread = [f"critic.{key}" for key in critic.model_fields_set] if critic and not plan.critic else []
    if preference is not None:
        unread += [f"preference.{key}" for key in preference.model_fields_set & preference.unread]
    if unread:
        raise UsageError(f"{', '.join(sorted(unread))}: set, but nothing in this run reads it; take it out")


def _algorithm(recipe: Recipe) -> Algorithm:
    """The catalog's row; parts that know a completion limit get the sampling's unless the recipe says another."""
    chosen = dict(recipe.algorithm)
    name = chosen.pop("name", None)
    if not isinstance(name, str):
        raise UsageError('algorithm.name is missing; such as name = "grpo" under [algorithm]')
    row = settings(algorithm(name))
    for slot, kind in LIMITED:
        part = chosen.get(slot, {})
        if isinstance(part, dict) and part.get("kind", row[slot]["kind"]) == kind:  # type: ignore[index]
            chosen[slot] = {"limit": recipe.sampling.max_new_tokens, **part}
    return algorithm(name, chosen)


def _task(recipe: Recipe) -> Task:
    chosen = dict(recipe.task)
    name = chosen.pop("name", None)
    if not isinstance(name, str):
        raise UsageError('task.name is missing; such as name = "arithmetic" under [task]')
    return task(name, chosen)


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
