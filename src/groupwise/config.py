"""From a recipe to a run: everything is checked first, then told as a plan, then built."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel

from groupwise.algo import Algorithm
from groupwise.catalog import algorithm, describe, settings
from groupwise.checks import Probe
from groupwise.engines.base import Engine, Request, Sampling
from groupwise.engines.local import LocalEngine
from groupwise.errors import UsageError
from groupwise.journal import Journal
from groupwise.learner import Learner, LearnerSettings, Schedule
from groupwise.loop import Run
from groupwise.models.load import Policy, digest
from groupwise.models.logprobs import CHUNK_ELEMENTS
from groupwise.recipe import Recipe
from groupwise.rollout import Evaluation, Prompts, Rollout, evaluate
from groupwise.seeds import derive
from groupwise.start import check_model, starting_policy
from groupwise.state import save_run
from groupwise.supervised import WarmStart
from groupwise.tasks import task
from groupwise.tasks.base import Task
from groupwise.view import View

#: How many completions the probe after a weight load asks for, and how long they may be.
PROBE_SAMPLES, PROBE_TOKENS = 4, 8


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
    checkpoint_every: int
    checkpoint_keep: int

    @property
    def folder(self) -> Path:
        return self.runs / self.name

    @property
    def total_updates(self) -> int:
        return self.steps * self.updates_per_batch * self.passes_per_batch

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
        }
    )


def build(plan: Blueprint, journal: Journal, view: View, stop_asked: Callable[[], bool]) -> Run:
    """Load or make the policy and put the run together, at step 0."""
    policy = starting_policy(
        plan.model,
        plan.task,
        plan.warm,
        plan.seed,
        plan.runs / ".cache",
        plan.device,
        view.warm_start,
    )
    _demand_room(plan, policy)
    reference = copy.deepcopy(policy.model) if plan.algorithm.needs_reference else None
    start = digest(policy.model)
    journal.log(f"starting policy {start}")
    view.note(memory_estimate(plan, policy))
    engine = LocalEngine(policy.model, eos=policy.eos, pad=policy.pad, max_rows=plan.max_rows)
    learner = Learner(policy.model, reference, plan.learner, plan.sampling.temperature, plan.total_updates)
    prompts = Prompts(plan.task.samples("train"), policy.encode, plan.seed)
    rollout = Rollout(
        engine, plan.task, prompts, policy.decode, plan.sampling, plan.samples_per_prompt, plan.algorithm.filter
    )
    return Run(
        folder=plan.folder,
        **{k: getattr(plan, k) for k in ("seed", "steps", "prompts_per_step", "updates_per_batch", "passes_per_batch")},
        evaluate_every=plan.evaluation_every,
        checkpoint_every=plan.checkpoint_every,
        pad=policy.pad,
        start=start,
        bf16=plan.learner.bf16,
        algorithm=plan.algorithm,
        rollout=rollout,
        engine=engine,
        learner=learner,
        probe=make_probe(plan, engine, learner, prompts, policy.pad),
        evaluate=partial(_evaluate, plan, engine, policy),
        save=partial(save_run, policy, plan.checkpoint_keep),
        journal=journal,
        view=view,
        stop_asked=stop_asked,
    )


def memory_estimate(plan: Blueprint, policy: Policy) -> str:
    """What the run will hold at its largest, as far as the shapes say."""
    shape = policy.model.config.get_text_config()
    weights = sum(p.numel() for p in policy.model.parameters()) * 4
    # Weights, gradient, two moments of AdamW, the engine's copy; the reference.
    copies = 6 if plan.algorithm.needs_reference else 5
    heads = getattr(shape, "num_key_value_heads", None) or shape.num_attention_heads
    size = getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads
    rows = min(plan.max_rows, plan.prompts_per_step * plan.samples_per_prompt)
    cache = (
        2
        * shape.num_hidden_layers
        * heads
        * size
        * rows
        * (_longest_prompt(plan, policy) + plan.sampling.max_new_tokens)
        * 4
    )
    logits = 4 * 4 * min(CHUNK_ELEMENTS, plan.learner.tokens_per_microbatch * shape.vocab_size)
    parts = {"weights and optimizer": weights * copies, "engine cache": cache, "logits": logits}
    return "memory       about " + ", ".join(f"{size / 2**20:,.0f} MiB {name}" for name, size in parts.items())


def make_probe(plan: Blueprint, engine: Engine, learner: Learner, prompts: Prompts, pad: int) -> Probe:
    """The fixed question that engine and learner are both asked after each weight load."""
    prompt = prompts.draw(0)
    request = Request(prompt.tokens, PROBE_SAMPLES, derive(plan.seed, "probe"), PROBE_TOKENS)
    return Probe(engine, partial(learner.completion_logprobs, prompt, pad), request, plan.sampling, plan.learner.bf16)


def _evaluate(plan: Blueprint, engine: Engine, policy: Policy) -> Evaluation:
    problems = plan.task.samples("heldout")[: plan.evaluation_problems]
    return evaluate(
        engine, plan.task, problems, policy.encode, policy.decode, plan.evaluation_samples, plan.evaluation, plan.seed
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
    held = len(plan.task.samples("heldout"))
    if held < plan.evaluation_problems:
        raise UsageError(f"evaluation.problems = {plan.evaluation_problems}: the task holds out only {held}")


def _longest_prompt(plan: Blueprint, policy: Policy) -> int:
    """Tokens of the longest prompt, looked for among those with the longest texts."""
    samples = [s for split in ("train", "heldout") for s in plan.task.samples(split)]
    return max(len(policy.encode(s.prompt)) for s in sorted(samples, key=lambda s: len(s.prompt))[-32:])


def _demand_room(plan: Blueprint, policy: Policy) -> None:
    """The longest prompt and a whole completion must fit the model's positions."""
    longest = _longest_prompt(plan, policy)
    if longest + plan.sampling.max_new_tokens > policy.positions:
        raise UsageError(
            f"sampling.max_new_tokens = {plan.sampling.max_new_tokens}: with a prompt of {longest} tokens that is "
            f"beyond the model's {policy.positions} positions; at most {policy.positions - longest}"
        )


def _algorithm(chosen: dict[str, Any], limit: int) -> Algorithm:
    """The catalog's row; parts that know a completion limit get the sampling's unless the recipe says another."""
    name = chosen.pop("name", None)
    if not isinstance(name, str):
        raise UsageError('algorithm.name is missing; such as name = "grpo" under [algorithm]')
    shaping = chosen.get("shaping", {})
    chosen["shaping"] = {"limit": limit, **shaping} if isinstance(shaping, dict) else shaping
    aggregate = chosen.get("aggregate")
    if isinstance(aggregate, dict) and aggregate.get("kind") == "constant":
        chosen["aggregate"] = {"limit": limit, **aggregate}
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
    same = [f.name for f in dataclasses.fields(LearnerSettings) if f.name not in ("schedule", "bf16")]
    return LearnerSettings(
        **{name: getattr(section, name) for name in same},
        schedule=Schedule(section.schedule),
        bf16=section.precision == "bf16",
    )


def _fields(section: Any, kind: type) -> dict[str, Any]:
    return {f.name: getattr(section, f.name) for f in dataclasses.fields(kind)}
