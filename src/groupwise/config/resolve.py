"""From a recipe to a plan: every key is read and every part made, before anything heavy is loaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel

from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.settings import algorithm, settings
from groupwise.config.plan import SAMPLED_PAIRS, Blueprint, JournalSettings, ScoringSettings
from groupwise.config.recipe import CriticSection, PreferenceSection, Recipe
from groupwise.config.rewards import mix_of
from groupwise.config.validate import demand_possible
from groupwise.core.engine import Sampling
from groupwise.core.errors import UsageError
from groupwise.core.task import Task
from groupwise.models.chat import ChatSettings
from groupwise.models.moe.settings import ReplayFrom, RoutingSettings
from groupwise.tasks.make import task
from groupwise.training.critic import CriticSettings
from groupwise.training.learner import LearnerSettings, Schedule
from groupwise.training.reward_model import PreferenceSettings
from groupwise.training.warm_start import WarmStart

#: A critic without a learning rate of its own learns this many times as fast as the policy.
CRITIC_RATE = 10
#: Keys of [preference] that nothing reads where the pairs are a file's.
ONLY_SAMPLING = ("pairs", "noise", "samples")


class Reading:
    """A recipe's section that remembers which keys were read, so that one which does nothing is refused."""

    def __init__(self, section: BaseModel, path: str = "", read: set[str] | None = None) -> None:
        self._section, self._path = section, path
        self._read: set[str] = set() if read is None else read

    def __getattr__(self, key: str) -> Any:
        value = getattr(self._section, key)
        if isinstance(value, BaseModel):
            return Reading(value, f"{self._path}{key}.", self._read)
        self._read.add(self._path + key)
        return value

    def demand_all_read(self) -> None:
        """Raises UsageError naming keys that were set and that nothing read."""
        unread = sorted(set(_keys_set(self._section)) - self._read)
        if unread:
            raise UsageError(f"{', '.join(unread)}: set, but nothing in this run reads it; take it out")


def _keys_set(section: BaseModel, path: str = "") -> Iterator[str]:
    for key in section.model_fields_set:
        value = getattr(section, key)
        if isinstance(value, BaseModel):
            yield from _keys_set(value, f"{path}{key}.")
        else:
            yield path + key


def resolve(recipe: Recipe) -> Blueprint:
    """Every key read and every part made. Raises UsageError, one line, where something is impossible."""
    r = Reading(recipe)
    sampling = Sampling(**_fields(r.sampling, Sampling))
    chosen = dict(r.algorithm)
    row = _algorithm(chosen, sampling.max_new_tokens)
    plan = Blueprint(
        recipe=recipe,
        **{k: getattr(r, k) for k in ("name", "seed", "steps", "model", "prompts_per_step", "samples_per_prompt")},
        device=_device(r.device),
        runs=Path(r.runs),
        updates_per_batch=r.updates_per_batch,
        passes_per_batch=r.passes_per_batch or row.passes,
        task=_task(dict(r.task)),
        algorithm=row,
        warm=_warm(r.warm_start),
        sampling=sampling,
        evaluation=Sampling(r.evaluation.temperature, r.evaluation.top_p, r.evaluation.top_k, sampling.max_new_tokens),
        evaluation_problems=r.evaluation.problems,
        evaluation_samples=r.evaluation.samples,
        evaluation_every=r.evaluation.every,
        max_rows=_engine(r.engine),
        learner=_learner(r.learner),
        routing=RoutingSettings(ReplayFrom(r.routing.replay), r.routing.load_balance, r.routing.z_loss),
        critic=_critic(r) if row.advantage.reads_value else None,
        old_from_engine=r.logp_old == "engine",
        max_prompt_tokens=r.max_prompt_tokens,
        chat=ChatSettings(**_fields(r.chat, ChatSettings)),
        mix=mix_of(r.rewards, r.scoring.combine == "after"),
        scoring=_scoring(r.scoring),
        **_preference(r.preference),
        checkpoint_every=r.checkpoint.every,
        checkpoint_keep=r.checkpoint.keep,
        journal=JournalSettings(**_fields(r.journal, JournalSettings)),
    )
    r.demand_all_read()
    demand_possible(plan)
    return plan


def resolved_recipe(plan: Blueprint) -> Recipe:
    """The recipe with nothing left to a default: task, parts and passes as they are used."""
    told = {"name": plan.recipe.task["name"], **dataclasses.asdict(plan.task)}  # type: ignore[call-overload]
    return plan.recipe.model_copy(
        update={
            "device": plan.device,
            "passes_per_batch": plan.passes_per_batch,
            "task": {k: list(v) if isinstance(v, tuple) else v for k, v in told.items()},
            "algorithm": {"name": plan.algorithm.name, **settings(plan.algorithm)},
            "critic": _told_critic(plan),
            "preference": _told_preference(plan),
        }
    )


def _scoring(section: Any) -> ScoringSettings:
    return ScoringSettings(section.workers, section.deadline, section.memory_mib * 2**20, section.fault_limit)


def _algorithm(chosen: dict[str, Any], limit: int) -> Algorithm:
    """The catalog's row; parts that know a completion limit get the sampling's unless the recipe says another."""
    name = chosen.pop("name", None)
    if not isinstance(name, str):
        raise UsageError('algorithm.name is missing; such as name = "grpo" under [algorithm]')
    for slot, kind in (("shaping", "outcome"), ("aggregate", "constant")):
        told = chosen.get(slot, {})
        if isinstance(told, dict) and told.get("kind", settings(algorithm(name))[slot]["kind"]) == kind:  # type: ignore[index]
            chosen[slot] = {"limit": limit, **told}
    return algorithm(name, chosen)


def _task(chosen: dict[str, Any]) -> Task:
    name = chosen.pop("name", None)
    if not isinstance(name, str):
        raise UsageError('task.name is missing; such as name = "arithmetic" under [task]')
    return task(name, chosen)


def _device(name: str) -> str:
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise UsageError('device = \'cuda\': torch sees no CUDA device; use "cpu" or "auto"')
    return ("cuda" if available else "cpu") if name == "auto" else name


def _warm(section: Any) -> WarmStart | None:
    fields = _fields(section, WarmStart)
    return WarmStart(**fields) if fields["steps"] else None


def _engine(section: Any) -> int:
    assert section.name == "local"
    return section.max_rows


def _learner(section: Any) -> LearnerSettings:
    return LearnerSettings(**_optimizer(section, LearnerSettings), bf16=section.precision == "bf16")


def _critic(recipe: Any) -> CriticSettings:
    """The critic computes in the learner's precision, and learns ten times as fast unless the recipe says otherwise."""
    section = recipe.critic or CriticSection()  # type: ignore[call-arg]
    told = _optimizer(section, CriticSettings)
    if told["learning_rate"] is None:
        told["learning_rate"] = CRITIC_RATE * recipe.learner.learning_rate
    return CriticSettings(**told, bf16=recipe.learner.precision == "bf16")


def _told_critic(plan: Blueprint) -> CriticSection | None:
    if plan.critic is None:
        return None
    section = plan.recipe.critic or CriticSection()  # type: ignore[call-arg]
    return section.model_copy(update={"learning_rate": plan.critic.learning_rate})


def _preference(section: Any) -> dict[str, Any]:
    """Settings of a reward model to make (None where there is none, or a ready one), and what it comes from."""
    if section is None:
        return {"preference": None, "preference_source": ""}
    if section.model is not None:
        return {"preference": None, "preference_source": section.model}
    # A file's pairs are what they are: the keys that only sampling has are not read then, and refused if set.
    unused = ONLY_SAMPLING if section.path is not None else ()
    names = [f.name for f in dataclasses.fields(PreferenceSettings) if f.name not in unused]
    made = PreferenceSettings(**{name: getattr(section, name) for name in names})
    return {"preference": made, "preference_source": section.path or SAMPLED_PAIRS}


def _told_preference(plan: Blueprint) -> PreferenceSection | None:
    """Without the keys that its source leaves unread: the recipe of a run must be one that can be read again."""
    section = plan.recipe.preference
    if section is None or plan.preference_source == SAMPLED_PAIRS:
        return section
    unread = ONLY_SAMPLING if plan.preference else [f.name for f in dataclasses.fields(PreferenceSettings)]
    return section.model_copy(update=dict.fromkeys(unread))


def _optimizer(section: Any, kind: type) -> dict[str, Any]:
    """The section's keys as the settings want them, but for the precision."""
    same = [f.name for f in dataclasses.fields(kind) if f.name not in ("schedule", "bf16")]
    return {**{name: getattr(section, name) for name in same}, "schedule": Schedule(section.schedule)}


def _fields(section: Any, kind: type) -> dict[str, Any]:
    return {f.name: getattr(section, f.name) for f in dataclasses.fields(kind)}
