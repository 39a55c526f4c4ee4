"""From a recipe to a plan: every key is read and every part made, before anything heavy is loaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel

from groupwise.algo import Algorithm
from groupwise.catalog import algorithm, describe, settings
from groupwise.critic import CriticSettings
from groupwise.engines.base import Sampling
from groupwise.errors import UsageError
from groupwise.learner import LearnerSettings, Schedule
from groupwise.mixing import demand_mix, describe_mix, mix_of
from groupwise.models.chat import ChatSettings
from groupwise.models.value import POLICY_START, REWARD_START
from groupwise.parts.filters import KeepAll
from groupwise.preference import PreferenceSettings
from groupwise.recipe import CriticSection, PreferenceSection, Recipe
from groupwise.scoring import Mix
from groupwise.start import check_model
from groupwise.supervised import WarmStart
from groupwise.tasks import task
from groupwise.tasks.base import ScoresSteps, Task

#: A critic without a learning rate of its own learns this many times as fast as the policy.
CRITIC_RATE = 10
#: Where a reward model's pairs come from without a file.
SAMPLED_PAIRS = "pairs of the policy's own completions, ranked by the task"
#: The reward model's place in the run folder.
REWARD_MODEL = "reward_model"
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


@dataclass(frozen=True)
class ScoringSettings:
    """The processes that score beside generation.

    workers      how many; 0 is one for each core
    deadline     seconds that one completion's score may take
    memory       bytes that a process may hold
    fault_limit  the largest share of a step's completions that may go without a score
    """

    workers: int
    deadline: float
    memory: int
    fault_limit: float


@dataclass(frozen=True)
class Blueprint:
    """A recipe resolved into settings and parts; nothing heavy is loaded yet."""

    recipe: Recipe
    name: str
    seed: int
    steps: int
    model: str
    device: str
    runs: Path
    prompts_per_step: int
    samples_per_prompt: int
    updates_per_batch: int
    passes_per_batch: int
    task: Task
    algorithm: Algorithm
    warm: WarmStart | None
    sampling: Sampling
    evaluation: Sampling
    evaluation_problems: int
    evaluation_samples: int
    evaluation_every: int
    max_rows: int
    learner: LearnerSettings
    critic: CriticSettings | None
    preference: PreferenceSettings | None
    preference_source: str
    old_from_engine: bool
    max_prompt_tokens: int
    chat: ChatSettings
    mix: Mix
    scoring: ScoringSettings
    checkpoint_every: int
    checkpoint_keep: int

    @property
    def folder(self) -> Path:
        return self.runs / self.name

    @property
    def updates_per_step(self) -> int:
        return self.updates_per_batch * self.passes_per_batch

    @property
    def total_updates(self) -> int:
        """The policy's: it waits while the critic learns alone."""
        return (self.steps - (self.critic.warmup_steps if self.critic else 0)) * self.updates_per_step

    def plan(self) -> str:
        """What the run will do, before it does it."""
        rows = self.prompts_per_step * self.samples_per_prompt
        a = self.algorithm
        lines = [
            f"run          {self.folder}, seed {self.seed}, {self.device}",
            f"policy       {self.model}, {f'warm start of {self.warm.steps} steps' if self.warm else 'as it is'}",
            f"task         {self.task}",
            f"algorithm    {a.name} ({a.paper})",
            *(f"  {slot:<10} {describe(part)}" for slot, part in a.parts.items()),
            *([f"critic       {_describe_critic(self.critic)}"] if self.critic else []),
            *([f"reward model {_describe_preference(self)}"] if self.preference_source else []),
            *(f"             beside it the task's own score decides {told}" for told in _leaks(self)),
            *(f"reward       {line}" for line in describe_mix(self.mix)),
            *([f"step scores  {_describe_steps(self.task)}"] if a.reads_steps else []),
            f"step         {self.prompts_per_step} prompts x {self.samples_per_prompt} samples = {rows} completions of "
            f"at most {self.sampling.max_new_tokens} tokens",
            f"             {self.passes_per_batch} pass(es) of {self.updates_per_batch} update(s)",
            f"run length   {self.steps} steps, {self.total_updates} optimizer updates",
            f"evaluation   {self.evaluation_problems} held-out problems x {self.evaluation_samples} samples",
        ]
        return "\n".join(lines)


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
        critic=_critic(r) if row.advantage.reads_value else None,
        old_from_engine=r.logp_old == "engine",
        max_prompt_tokens=r.max_prompt_tokens,
        chat=ChatSettings(**_fields(r.chat, ChatSettings)),
        mix=mix_of(r.rewards, r.scoring.combine == "after"),
        scoring=_scoring(r.scoring),
        **_preference(r.preference),
        checkpoint_every=r.checkpoint.every,
        checkpoint_keep=r.checkpoint.keep,
    )
    r.demand_all_read()
    _demand_possible(plan)
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


def _demand_possible(plan: Blueprint) -> None:
    """Combinations that no single key can be blamed for."""
    needed = plan.algorithm.advantage.smallest_group
    if plan.samples_per_prompt < needed:
        raise UsageError(
            f"samples_per_prompt = {plan.samples_per_prompt}: {describe(plan.algorithm.advantage)} compares the "
            f"completions of one prompt and needs at least {needed}"
        )
    if plan.sampling.temperature == 0:
        raise UsageError("sampling.temperature = 0: greedy completions are all equal, so nothing can be compared")
    if plan.updates_per_batch > plan.prompts_per_step:
        raise UsageError(
            f"updates_per_batch = {plan.updates_per_batch}: a batch of {plan.prompts_per_step} groups cannot be split "
            "into more minibatches than that"
        )
    check_model(plan.model)
    if plan.critic is not None:
        _demand_critic(plan)
    _demand_sources(plan)
    demand_mix(plan.mix, plan.algorithm, bool(plan.preference_source))
    held = len(plan.task.samples("heldout"))
    if held < plan.evaluation_problems:
        raise UsageError(f"evaluation.problems = {plan.evaluation_problems}: the task holds out only {held}")


def _demand_critic(plan: Blueprint) -> None:
    assert plan.critic is not None
    start = plan.critic.start
    if start == REWARD_START and not plan.preference_source:
        raise UsageError(f"critic.start = {start!r}: this run has no reward model; add [preference], or a folder")
    if start not in (POLICY_START, REWARD_START) and not Path(start).is_dir():
        raise UsageError(f"critic.start = {start!r}: no such folder; or {POLICY_START!r}, or {REWARD_START!r}")
    if plan.critic.warmup_steps >= plan.steps:
        raise UsageError(
            f"critic.warmup_steps = {plan.critic.warmup_steps}: the policy would wait through all {plan.steps} steps"
        )


def _demand_sources(plan: Blueprint) -> None:
    """What scores, and what the old log-probabilities are taken from."""
    if plan.algorithm.needs_steps and not isinstance(plan.task, ScoresSteps):
        raise UsageError(
            f"algorithm.name = {plan.algorithm.name!r}: it needs scores of steps, and {plan.task} has none"
        )
    if plan.algorithm.advantage.reads_steps and not plan.algorithm.shaping.reads_steps:
        raise UsageError(
            f"algorithm.advantage.kind: {describe(plan.algorithm.advantage)} reads rewards at step ends, and "
            f'{describe(plan.algorithm.shaping)} gives none there; set algorithm.shaping.kind = "steps"'
        )
    # A run that has begun has a copy of its own.
    folders = Path(plan.preference_source), plan.folder / REWARD_MODEL
    if plan.preference is None and plan.preference_source and not any(folder.is_dir() for folder in folders):
        raise UsageError(f"preference.model = {plan.preference_source!r}: there is no such folder")
    if plan.old_from_engine and plan.algorithm.mismatch.reads_engine:
        raise UsageError(
            f"logp_old = 'engine': then pi_old / pi_engine is 1 and {describe(plan.algorithm.mismatch)} corrects "
            'nothing; set algorithm.mismatch.kind = "none", or logp_old = "learner"'
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


def _describe_preference(plan: Blueprint) -> str:
    made = plan.preference
    if made is None:
        return f"from {plan.preference_source}"
    if plan.preference_source != SAMPLED_PAIRS:
        return f"from the pairs in {plan.preference_source}, {made.epochs} epochs"
    return f"from {made.pairs} {SAMPLED_PAIRS}, {made.noise:.0%} of the labels wrong, {made.epochs} epochs"


def _leaks(plan: Blueprint) -> list[str]:
    """Where the truth reaches a policy that is said to be trained on a learned score."""
    if not plan.preference_source:
        return []
    steps = plan.algorithm.reads_steps and isinstance(plan.task, ScoresSteps)
    by_correctness = not isinstance(plan.algorithm.filter, KeepAll)
    told = ((by_correctness, "which groups train (algorithm.filter)"), (steps, "step rewards (algorithm.shaping)"))
    return [words for found, words in told if found]


def _describe_steps(task: Task) -> str:
    return "by the task" if isinstance(task, ScoresSteps) else "this task has none: rewards come at the end only"


def _describe_critic(critic: CriticSettings) -> str:
    start = f"from the {critic.start}" if critic.start in (POLICY_START, REWARD_START) else f"from {critic.start}"
    alone = f", {critic.warmup_steps} step(s) before the policy's first" if critic.warmup_steps else ""
    return f"{start}, learning rate {critic.learning_rate:g}, clip {critic.clip:g}{alone}"


def _optimizer(section: Any, kind: type) -> dict[str, Any]:
    """The section's keys as the settings want them, but for the precision."""
    same = [f.name for f in dataclasses.fields(kind) if f.name not in ("schedule", "bf16")]
    return {**{name: getattr(section, name) for name in same}, "schedule": Schedule(section.schedule)}


def _fields(section: Any, kind: type) -> dict[str, Any]:
    return {f.name: getattr(section, f.name) for f in dataclasses.fields(kind)}
