"""From a recipe to a plan: what one key takes from another, and every part, before anything heavy is loaded."""

import dataclasses
from collections.abc import Mapping
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
from groupwise.tasks.make import task
from groupwise.training.critic import CriticSettings

#: A critic without a learning rate of its own learns this many times as fast as the policy.
CRITIC_RATE = 10
#: Parts with a completion limit, slot and kind: the sampling's, unless the recipe says another.
LIMITED = (("shaping", "outcome"), ("aggregate", "constant"))


def resolve(recipe: Recipe, place: Path | None = None) -> Plan:
    """The recipe with its parts and its derived values; `place` is the folder of a run that is gone on with.

    Raises UsageError, one line, where a part does not exist, nothing reads a key, or the run could not work.
    """
    row, device = _algorithm(recipe), _device(recipe.device)
    problems = task(*_name_and_keys("task", recipe.task, "arithmetic"))
    critic = _critic(recipe) if row.advantage.reads_value else None
    mix = mix_of(recipe.rewards, recipe.scoring.combine == "after")
    _require_all_read(recipe, row, critic)
    keys = dataclasses.asdict(problems)  # type: ignore[call-overload]
    complete = recipe.replace(
        device=device,
        passes_per_batch=recipe.passes_per_batch or row.passes,
        task={"name": recipe.task["name"]} | {k: list(v) if isinstance(v, tuple) else v for k, v in keys.items()},
        algorithm={"name": row.name, **settings(row)},
        critic=critic,
    )
    plan = Plan(complete, problems, row, mix, place)
    require_runnable(plan)
    return plan


def resolved_recipe(plan: Plan) -> dict[str, Any]:
    """The recipe's table with nothing left to a default; keys that nothing reads, which would be refused, left out."""
    preference = plan.recipe.preference
    unread: dict[str, Any] = {"adapter": plan.recipe.adapter.unread}
    if preference:
        unread["preference"] = preference.unread
    unread["evaluation"] = plan.recipe.evaluation.unread
    if not _reads_reference(plan.recipe, plan.algorithm):
        unread["reference"] = True
    return plan.recipe.model_dump(exclude_none=True, exclude=unread)


def _reads_reference(recipe: Recipe, row: Algorithm) -> bool:
    """Whether a copy of the policy is kept as the reference: with adapters it is the policy without them."""
    return row.needs_reference and not recipe.adapter.rank


def _require_all_read(recipe: Recipe, row: Algorithm, critic: CriticSettings | None) -> None:
    """Raises UsageError naming the keys that were set and that nothing in this run reads.

    A component reads its whole section, but for [critic] where the algorithm reads no values, [reference] where it
    reads none or the reference is the policy without its adapters, the keys of [preference] that the reward model's
    source leaves unread, those of [adapter] without a rank, and those of [evaluation] where nothing is evaluated.
    """
    unread = [f"critic.{key}" for key in recipe.critic.model_fields_set] if recipe.critic and not critic else []
    unread += [f"adapter.{key}" for key in recipe.adapter.model_fields_set & recipe.adapter.unread]
    unread += [f"evaluation.{key}" for key in recipe.evaluation.model_fields_set & recipe.evaluation.unread]
    if not _reads_reference(recipe, row):
        unread += [f"reference.{key}" for key in recipe.reference.model_fields_set]
    if recipe.preference is not None:
        unread += [f"preference.{key}" for key in recipe.preference.model_fields_set & recipe.preference.unread]
    if unread:
        raise UsageError(f"{', '.join(sorted(unread))}: set, but nothing in this run reads it; take it out")


def _algorithm(recipe: Recipe) -> Algorithm:
    """The catalog's row; parts that know a completion limit get the sampling's unless the recipe says another."""
    name, chosen = _name_and_keys("algorithm", recipe.algorithm, example="grpo")
    row = settings(algorithm(name))
    for slot, kind in LIMITED:
        part = chosen.get(slot, {})
        if isinstance(part, dict) and part.get("kind", row[slot]["kind"]) == kind:  # type: ignore[index]
            chosen[slot] = {"limit": recipe.sampling.max_new_tokens, **part}
    return algorithm(name, chosen)


def _name_and_keys(section: str, table: Mapping[str, Any], example: str) -> tuple[str, dict[str, Any]]:
    """What a section names, and its other keys. Raises UsageError where it names nothing."""
    keys = dict(table)
    name = keys.pop("name", None)
    if not isinstance(name, str):
        raise UsageError(f'{section}.name is missing; such as name = "{example}" under [{section}]')
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
