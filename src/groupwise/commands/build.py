"""From a plan to a run at step 0: the heavy things are loaded here, and what only they can tell is checked."""

import itertools
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from groupwise.commands.disk import disk_plan, require_disk
from groupwise.commands.memory import in_words, memory_of, memory_of_folder, picks, record_cuts, with_cuts
from groupwise.commands.parity import make_probe, run_limits
from groupwise.commands.policies import base_policy
from groupwise.commands.run_reward_model import run_reward_model
from groupwise.commands.selected import selected
from groupwise.config.plan import REWARD_MODEL, Plan
from groupwise.config.resolve import resolved_recipe
from groupwise.core.engine import Engine
from groupwise.core.errors import UsageError
from groupwise.core.records import Evaluation
from groupwise.engines.make import make_engine, require_engine_support
from groupwise.health.watch import Watch
from groupwise.journal.journal import Journal
from groupwise.journal.output import Output
from groupwise.journal.rollout_rows import Spelling
from groupwise.journal.terminal import View
from groupwise.loop import Components, LoopSettings, Training
from groupwise.models.activations import without_memory
from groupwise.models.adapters.targets import in_short
from groupwise.models.chat import Chat
from groupwise.models.heads import halves
from groupwise.models.load import Policy, digest
from groupwise.models.moe.record import Router
from groupwise.models.moe.settings import require_engine_routes, routers_to_record
from groupwise.models.reward import RewardModel
from groupwise.models.template_checks import check_chat, require_no_fatal
from groupwise.models.value import POLICY_START, REWARD_START, from_folder, from_policy
from groupwise.rewards.functions.user import TaskScore
from groupwise.rewards.pool.dispatch import Limits
from groupwise.rewards.pool.pool import Pool
from groupwise.rollout.collect import Prompts, Rollout, evaluate
from groupwise.rollout.scoring import TASK, Scorer
from groupwise.rollout.selection import Selection
from groupwise.training.adapted import AdaptedLearner
from groupwise.training.checkpoint import CHECKPOINTS
from groupwise.training.critic import Critic
from groupwise.training.initial_policy import TINY
from groupwise.training.learner import Learner
from groupwise.training.reference import frozen_reference
from groupwise.training.state import RunState

#: Rows that rewards are tried on before a run starts.
TRIED_ROWS = 4


def build(plan: Plan, journal: Journal, view: View, stop_requested: Callable[[], bool]) -> Training:
    """Load or make the policy and put the run together, at step 0."""
    recipe = plan.recipe
    pool = pool_of(plan)
    for line in reward_forms(plan, pool):
        view.note(line)
    memory = None if recipe.model in TINY else memory_of_folder(plan)
    policy = base_policy(plan, view.note, partial(view.preparing, "warm start"))
    if recipe.adapter.rank:
        view.note(f"adapters     {in_short(policy.model, recipe.adapter)}")
    chat = Chat(policy.tokenizer, recipe.chat)
    selection = _selection(plan, policy, chat, view)
    memory = memory or memory_of(plan, without_memory(policy.model.config), selection.longest)
    view.note(in_words(memory))
    if picks(plan):
        plan = with_cuts(plan, memory)
        record_cuts(plan, journal)
    start = digest(policy.model)
    journal.log(f"starting policy {start}")
    scorer = Scorer(plan.task, policy.decode, plan.mix, pool, reads_steps=plan.algorithm.reads_steps)
    judge = run_reward_model(plan, policy, chat, scorer, journal, view)
    critic = _critic(plan, policy)
    routers = _routers(plan, policy, view)
    disk = disk_plan(plan, policy.model, critic.model if critic else None)
    require_disk(disk)
    view.note(f"disk         {disk}")
    engine = training_engine(plan, policy, routers)
    copied = plan.algorithm.needs_reference and not recipe.adapter.rank
    reference = frozen_reference(policy.model, recipe.reference) if copied else None
    learner = make_learner(plan, policy, routers, reference=reference)
    prompts = Prompts(selection.train, selection.encode, recipe.seed)
    limits = run_limits(plan, policy, engine, learner, prompts, journal)
    for line in limits.tolerance.lines():
        view.note(f"tolerance    {line}")
    components = Components(
        algorithm=plan.algorithm,
        rollout=Rollout(
            engine,
            scorer,
            prompts,
            sampling=recipe.sampling,
            samples_per_prompt=recipe.samples_per_prompt,
            filter=plan.algorithm.filter,
            judge=judge and judge.scores,
        ),
        engine=engine,
        learner=learner,
        critic=critic,
        probe=make_probe(plan, engine, learner, prompts, policy.pad, limits),
        limits=limits,
        evaluate=evaluation(plan, engine, scorer, selection, judge) if selection.heldout else None,
        state=_run_state(plan, policy, learner, critic, start),
    )
    settings = loop_settings(plan, policy.pad)
    return Training(settings, components, _output(plan, policy, journal, view), stop_requested)


def evaluation(
    plan: Plan, engine: Engine, scorer: Scorer, selection: Selection, judge: RewardModel | None
) -> Callable[[], Evaluation]:
    """Samples the held-out problems as the plan says, each time with the same random numbers."""
    settings = plan.recipe.evaluation
    return partial(
        evaluate,
        engine,
        scorer,
        problems=selection.heldout,
        encode=selection.encode,
        samples=settings.samples,
        sampling=settings.sampling(plan.recipe.sampling.max_new_tokens),
        seed=plan.recipe.seed,
        judge=judge and judge.scores,
    )


def loop_settings(plan: Plan, pad: int) -> LoopSettings:
    """What the loop goes by, from the plan."""
    recipe = plan.recipe
    return LoopSettings(
        seed=recipe.seed,
        steps=recipe.steps,
        prompts_per_step=recipe.prompts_per_step,
        updates_per_batch=recipe.updates_per_batch,
        passes_per_batch=plan.passes_per_batch,
        evaluate_every=recipe.evaluation.every,
        checkpoint_every=recipe.checkpoint.every,
        waiting_steps=plan.waiting_steps,
        old_from_engine=recipe.logp_old == "engine",
        fault_limit=recipe.scoring.fault_limit,
        pad=pad,
    )


def _run_state(plan: Plan, policy: Policy, learner: Learner, critic: Critic | None, start: str) -> RunState:
    """What the run's checkpoints save; `start` is the digest of the policy that the run began from."""
    return RunState(
        folder=plan.folder / CHECKPOINTS,
        keep=plan.recipe.checkpoint.keep,
        start=start,
        reference=plan.algorithm.needs_reference,
        tokenizer=policy.tokenizer,
        learner=learner,
        critic=critic,
    )


def _output(plan: Plan, policy: Policy, journal: Journal, view: View) -> Output:
    """Where the run's records go, and what is checked on the way."""
    return Output(
        journal=journal,
        view=view,
        watch=Watch(resolved_recipe(plan), plan.algorithm.advantage.compares_within_group),
        token_text=Spelling(policy.tokenizer),
        token_budget=plan.recipe.journal.token_budget,
    )


def training_engine(plan: Plan, policy: Policy, routers: Sequence[Router]) -> Engine:
    """An engine for the policy. Raises UsageError where it does not return what training needs."""
    engine = make_engine(policy=policy, settings=plan.recipe.engine, routes=bool(routers))
    require_engine_routes(engine, plan.recipe.routing)
    require_engine_support(engine, plan.recipe.sampling)
    return engine


def make_learner(plan: Plan, policy: Policy, routers: Sequence[Router], reference: nn.Module | None = None) -> Learner:
    """The policy's learner; `reference` is a frozen copy of the policy, where the algorithm reads one.

    With adapters these are in the policy's model from here on, and it is its own reference.
    """
    recipe = plan.recipe
    common: dict[str, Any] = {
        "settings": recipe.learner,
        "temperature": recipe.sampling.temperature,
        "total_updates": plan.total_updates,
        "routing": recipe.routing,
        "routers": routers,
    }
    if recipe.adapter.rank:
        return AdaptedLearner(policy.model, recipe.adapter, recipe.seed, **common)
    return Learner(policy.model, reference, **common)


def _routers(plan: Plan, policy: Policy, view: View) -> Sequence[Router]:
    """The routers whose routes the run records; none for a dense policy."""
    routers = routers_to_record(halves(policy.model)[0], plan.recipe.routing)
    if routers:
        view.note(f"routing      {len(routers)} layers, {routers[0].chosen} of {routers[0].experts} experts a token")
    return routers


def _selection(plan: Plan, policy: Policy, chat: Chat, view: View) -> Selection:
    """The problems that the run uses. Raises UsageError where one does not fit, or the template is wrong for them."""
    selection = selected(plan, chat)
    if wrong := too_long(plan, policy.positions, selection.longest):
        raise UsageError(wrong)
    view.note(f"prompts      {chat.describe()}")
    findings = check_chat(chat, policy.eos, selection.heldout or plan.task.samples("train")[:TRIED_ROWS])
    require_no_fatal(findings)
    for finding in findings:
        view.note(f"prompts      {finding}")
    for line in selection.notes:
        view.note(f"problems     {line}")
    return selection


def pool_of(plan: Plan) -> Pool | None:
    """The processes that score, where anything is not quick."""
    slow: dict[str, Any] = {name: reward for name, reward in plan.mix.own.items() if not reward.quick}
    if not plan.task.quick:
        slow[TASK] = TaskScore(plan.task)
    if not slow:
        return None
    s = plan.recipe.scoring
    limits = Limits(workers=s.workers or os.cpu_count() or 1, seconds=s.deadline, memory=s.memory_mib * 2**20)
    return Pool(slow, limits)


def reward_forms(plan: Plan, pool: Pool | None) -> list[str]:
    """The form of each reward of a process, a line each, tried on the first rows before anything heavy loads.

    Raises UsageError where a user's own cannot be loaded, or asks for a column that the problems do not have.
    """
    if pool is None:
        return []
    first = list(itertools.islice(plan.task.samples("train"), TRIED_ROWS))
    return [f"reward       {name} is {form}" for name, form in pool.check(first).items() if name != TASK]


def _critic(plan: Plan, policy: Policy) -> Critic | None:
    """The critic of an algorithm that reads values."""
    critic = plan.recipe.critic
    if critic is None:
        return None
    if critic.start == POLICY_START:
        model = from_policy(policy.model)
    else:
        folder = plan.folder / REWARD_MODEL if critic.start == REWARD_START else Path(critic.start)
        model = from_folder(folder, policy.model)
    return Critic(model, critic, plan.recipe.steps * plan.updates_per_step, bf16=plan.recipe.learner.bf16)


def too_long(plan: Plan, positions: int, longest: int) -> str:
    """What is wrong, and what to do, where the longest prompt and a whole completion exceed the model's positions; else
    "".
    """
    limit = plan.recipe.sampling.max_new_tokens
    if longest + limit <= positions:
        return ""
    remedy = (
        f"set it to at most {positions - longest}, or leave longer prompts out with max_prompt_tokens"
        if longest < positions
        else "leave longer prompts out with max_prompt_tokens"
    )
    return (
        f"sampling.max_new_tokens = {limit}: with a prompt of {longest} tokens that is beyond the model's {positions} "
        f"positions; {remedy}"
    )
