"""From a plan to a run at step 0: the heavy things are loaded here, and what only they can tell is checked."""

import itertools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from groupwise.commands.build.disk import disk_plan, require_disk
from groupwise.commands.build.episodes import environments_of, episodes_of
from groupwise.commands.build.memory import in_words, memory_of, memory_of_folder, picks, record_cuts, with_cuts
from groupwise.commands.build.parity import make_probe, run_limits
from groupwise.commands.build.policies import base_policy, named_model, reference_policy, starting_model
from groupwise.commands.build.pools import pool_of
from groupwise.commands.build.ranks import idle_ranks, over_ranks, rounds
from groupwise.commands.build.run_reward_model import run_reward_model
from groupwise.commands.build.selected import chat_of, selected
from groupwise.config.plan import OWN_CRITIC, REWARD_MODEL, Plan
from groupwise.config.resolve import resolved_recipe
from groupwise.core.engine import Engine
from groupwise.core.errors import UsageError
from groupwise.core.machine.facts import count_peak_anew
from groupwise.core.machine.free_memory import give_back
from groupwise.core.processes.place import HERE, Place
from groupwise.core.processes.stop import Stop
from groupwise.core.records import Evaluation, Group
from groupwise.core.reward import TASK
from groupwise.engines.make import make_engine, require_engine_support, require_sampling
from groupwise.engines.requests import local_limit
from groupwise.health.watch import Watch
from groupwise.journal.journal import Journal
from groupwise.journal.output import Output
from groupwise.journal.rollout_rows import Spelling
from groupwise.journal.terminal import View
from groupwise.models.adapters.targets import in_short
from groupwise.models.chat.history import thinking_of
from groupwise.models.chat.prompts import Chat
from groupwise.models.chat.template_checks import check_chat, require_no_fatal
from groupwise.models.context import positions, positions_in_words
from groupwise.models.forward.heads import halves
from groupwise.models.load import Policy, digest
from groupwise.models.moe.record import Router
from groupwise.models.moe.settings import require_engine_routes, routers_to_record
from groupwise.models.precision import cast_weights, keep_few_products
from groupwise.models.value import POLICY_START, REWARD_START, from_folder, from_policy
from groupwise.planning.activations import without_memory
from groupwise.planning.memory import MemoryPlan
from groupwise.rewards.pool.pool import ScorePool
from groupwise.rollout.ahead import Batches
from groupwise.rollout.collect import HeldoutAnswers, Judge, Prompts, Rollout, heldout_answers, measured
from groupwise.rollout.episodes import Episodes
from groupwise.rollout.free import FreeBatches
from groupwise.rollout.scoring import Scorer
from groupwise.rollout.selection import Selection
from groupwise.rollout.turns import Sampler
from groupwise.training.checkpoint import CHECKPOINTS
from groupwise.training.critic import Critic
from groupwise.training.learner import Learner
from groupwise.training.reference import Reference, frozen_copy
from groupwise.training.rollback import Guard
from groupwise.training.run import Components, LoopSettings, Training
from groupwise.training.start.initial_policy import TINY
from groupwise.training.state import RunState

#: Rows that rewards are tried on before a run starts.
TRIED_ROWS = 4


def build(plan: Plan, journal: Journal, view: View, stop: Stop, place: Place = HERE) -> Training:
    """Load or make the policy and put the run together, at step 0. Whatever it has started ends where that fails.

    place  where its processes live
    """
    if rounds(plan.recipe):
        keep_few_products()
    with ExitStack() as started:
        run = _built(plan, journal, view, stop, place, started)
        started.pop_all()
    return run


def _built(plan: Plan, journal: Journal, view: View, stop: Stop, place: Place, started: ExitStack) -> Training:
    """Build the run at step 0; what holds processes or threads is put into `started`, which closes it."""
    recipe, say = plan.recipe, partial(_say, journal, view)
    pool, environments = pool_of(plan, place, say), environments_of(plan, place, say)
    for each in (pool, environments):
        if each is not None:
            started.callback(each.close)
    for line in reward_forms(plan, pool):
        view.note(line)
    model = starting_model(plan, view.note)
    memory = None if model in TINY else memory_of_folder(plan, model)
    policy = base_policy(plan, say, partial(_prepare, view, stop, "warm start"))
    give_back()
    count_peak_anew()  # a warm start is another kind of work, and another run finds its policy made
    if recipe.adapter.rank:
        view.note(f"adapters     {in_short(policy.model, recipe.adapter)}")
    chat = chat_of(plan, policy.tokenizer)
    selection = _selection(plan, policy, chat, view)
    memory = memory or memory_of(plan, without_memory(policy.model.config), selection.longest)
    plan = _cut(plan, memory, selection.longest, journal, view)
    start = digest(policy.model)
    journal.log(f"starting policy {start}")
    reference = _reference(plan, policy, start, selection.longest, view.note)
    scorer = _scorer(plan, policy, chat, pool)
    on_step = partial(_prepare, view, stop, "reward model")
    reward = run_reward_model(plan, policy, chat, scorer, say, on_step)
    value_model = _value_model(plan, policy, view.note)
    routers = _routers(plan, policy, view)
    _require_disk(plan, policy, value_model, view)
    engine = training_engine(plan, policy, routers, say, place)
    started.callback(engine.close)
    models = {"reference": reference and reference.model, "critic": value_model, "reward": reward}
    trained = over_ranks(plan, policy, routers, **models, place=place)
    learner, critic, judge = trained.learner, trained.critic, trained.judge
    started.callback(learner.mesh.close)
    prompts = Prompts(selection.train, selection.encode, recipe.seed)
    limits = run_limits(plan, policy, engine, learner, prompts, journal)
    for line in limits.tolerance.lines():
        view.note(f"tolerance    {line}")
    rollout = _rollout(plan, engine, scorer, prompts, judge, episodes_of(plan, policy, chat, engine, environments))
    components = Components(
        algorithm=plan.algorithm,
        rollout=rollout,
        batches=_batches(plan, rollout),
        engine=engine,
        learner=learner,
        critic=critic,
        probe=make_probe(plan, engine, learner, prompts, policy.pad, limits),
        limits=limits,
        evaluate=evaluation(plan, rollout.sample, scorer, selection, judge) if selection.heldout else None,
        state=_run_state(plan, policy, learner, critic, reference),
    )
    settings = loop_settings(plan, policy.pad, _other_reference(plan, reference, start))
    return Training(settings, components, _output(plan, policy, journal, view), stop)


def _scorer(plan: Plan, policy: Policy, chat: Chat, pool: ScorePool | None) -> Scorer:
    """Scores the run's completions behind what its prompts already open of them."""
    reads_steps, thinking, turns = plan.algorithm.reads_steps, thinking_of(chat), chat.template is not None
    return Scorer(plan.task, policy.decode, plan.mix, pool, reads_steps=reads_steps, thinking=thinking, turns=turns)


def _prepare(view: View, stop: Stop, what: str, step: int, steps: int, loss: float) -> None:
    """A step of what is trained before the first one."""
    stop.look()
    view.preparing(what, step, steps, loss)


def _require_disk(plan: Plan, policy: Policy, value_model: nn.Module | None, view: View) -> None:
    """Says what the run will write; raises UsageError where the disk has no room for it."""
    disk = disk_plan(plan, policy.model, value_model)
    require_disk(disk)
    view.note(f"disk         {disk}")


def _cut(plan: Plan, memory: MemoryPlan, longest: int, journal: Journal, view: View) -> Plan:
    """The plan with its updates cut to fit; what that takes is said, and what it leaves without work asked."""
    view.note(in_words(memory))
    if picks(plan):
        plan = with_cuts(plan, memory)
        record_cuts(plan, journal)
    if idle := idle_ranks(plan, longest):
        view.note(f"question     {idle}")
    return plan


def _rollout(
    plan: Plan,
    engine: Engine,
    scorer: Scorer,
    prompts: Prompts,
    judge: Judge | None,
    episodes: Episodes | None,
) -> Rollout:
    """What samples a step's groups, as the plan says."""
    return Rollout(
        engine,
        scorer,
        prompts,
        sampling=plan.recipe.sampling,
        samples_per_prompt=plan.recipe.samples_per_prompt,
        filter=plan.algorithm.filter,
        judge=judge,
        measure=plan.measure,
        turn_tokens=plan.recipe.rollout.turn_tokens,
        episodes=episodes,
    )


def _batches(plan: Plan, rollout: Rollout) -> Batches | FreeBatches:
    """What gives each step its batch."""
    settings = plan.recipe.rollout
    if settings.free is not None:
        return FreeBatches(rollout, lag=settings.free)
    return Batches(rollout, settings.ahead)


def evaluation(
    plan: Plan, sample: Sampler, scorer: Scorer, selection: Selection, judge: Judge | None
) -> Callable[[], tuple[Evaluation, Sequence[Group]]]:
    """Samples the held-out problems as the plan says, each time with the same random numbers -> what that comes to,
    and what was sampled.
    """
    sampled = sampled_heldout(plan, sample, scorer, selection, judge)

    def evaluate() -> tuple[Evaluation, Sequence[Group]]:
        answers = sampled()
        return measured(answers, plan.measure, scorer.has_answers), answers.groups

    return evaluate


def sampled_heldout(
    plan: Plan, sample: Sampler, scorer: Scorer, selection: Selection, judge: Judge | None
) -> Callable[[], HeldoutAnswers]:
    """Samples the held-out problems as the plan says, each time with the same random numbers."""
    settings = plan.recipe.evaluation
    return partial(
        heldout_answers,
        sample,
        scorer,
        problems=selection.heldout,
        encode=selection.encode,
        samples=settings.samples,
        sampling=plan.evaluation_sampling,
        seed=plan.recipe.seed,
        judge=judge,
    )


def loop_settings(plan: Plan, pad: int, other_reference: str = "") -> LoopSettings:
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
        guard=recipe.guard,
        rollback=recipe.rollback,
        other_reference=other_reference,
        most_age=plan.most_age,
        free=recipe.rollout.free is not None,
        checks=recipe.checks,
    )


def _reference(plan: Plan, policy: Policy, start: str, longest: int, note: Callable[[str], None]) -> Reference | None:
    """The frozen reference of an algorithm that reads one; `start` is the policy's digest, `longest` the longest
    prompt, tokens.
    """
    settings = plan.recipe.reference
    if not plan.algorithm.needs_reference:
        return None
    if not plan.copies_reference:
        return Reference(None, start)
    source = reference_policy(plan, policy, note)
    if wrong := too_long(plan, source.model.config, longest, sampled=False):
        raise UsageError(f"reference.model = {settings.model!r}: {wrong}")
    identity = start if source is policy else digest(source.model)
    note(f"reference    policy {identity}" + (", the start" if identity == start else ""))
    model = frozen_copy(policy.model, settings) if source is policy else cast_weights(source.model, settings.precision)
    return Reference(model, identity, settings.every, returns=plan.recipe.guard is Guard.ROLLBACK)


def _other_reference(plan: Plan, reference: Reference | None, start: str) -> str:
    """Why the policy is not its reference at the start; "" where it is."""
    if reference is None or reference.digest == start:
        return ""
    return f"reference.model = {plan.recipe.reference.model!r} is another policy than the run starts from"


def _run_state(
    plan: Plan, policy: Policy, learner: Learner, critic: Critic | None, reference: Reference | None
) -> RunState:
    """What the run's checkpoints save."""
    return RunState(
        folder=plan.folder / CHECKPOINTS,
        keep=plan.recipe.checkpoint.keep,
        reference=reference,
        tokenizer=policy.tokenizer,
        learner=learner,
        critic=critic,
        every=1 if plan.recipe.guard is Guard.WARN else plan.recipe.checkpoint.every,
    )


def _output(plan: Plan, policy: Policy, journal: Journal, view: View) -> Output:
    """Where the run's records go, and what is checked on the way."""
    return Output(
        journal=journal,
        view=view,
        watch=Watch(resolved_recipe(plan), plan.algorithm.advantage.compares_within_group),
        token_text=Spelling(policy.tokenizer),
        token_budget=plan.recipe.journal.token_budget,
        measure=plan.measure,
    )


def training_engine(
    plan: Plan,
    policy: Policy,
    routers: Sequence[Router],
    note: Callable[[str], None] = lambda line: None,
    place: Place = HERE,
) -> Engine:
    """An engine for the policy. Raises UsageError where it does not return what training needs."""
    engine = make_engine(policy=policy, settings=plan.recipe.engine, routes=bool(routers), note=note, place=place)
    try:
        require_engine_routes(engine, plan.recipe.routing)
        require_engine_support(engine, plan.recipe.sampling)
        require_sampling(engine, policy, plan.recipe.sampling, "sampling")
        require_sampling(engine, policy, plan.evaluation_sampling, "evaluation")
    except BaseException:
        engine.close()
        raise
    return engine


def _say(journal: Journal, view: View, line: str) -> None:
    journal.log(line)
    view.note(line)


def _routers(plan: Plan, policy: Policy, view: View) -> Sequence[Router]:
    """The routers whose routes the run records; none for a dense policy."""
    routers = routers_to_record(halves(policy.model)[0], plan.recipe.routing)
    if routers:
        view.note(f"routing      {len(routers)} layers, {routers[0].chosen} of {routers[0].experts} experts a token")
    return routers


def _selection(plan: Plan, policy: Policy, chat: Chat, view: View) -> Selection:
    """The problems that the run uses. Raises UsageError where one does not fit, or the template is wrong for them."""
    selection = selected(plan, chat)
    if wrong := too_long(plan, policy.model.config, selection.longest):
        raise UsageError(wrong)
    view.note(f"prompts      {chat.describe()}")
    findings = check_chat(chat, policy.eos, selection.heldout or plan.task.samples("train")[:TRIED_ROWS])
    require_no_fatal(findings)
    for finding in findings:
        view.note(f"prompts      {finding}")
    for line in selection.notes:
        view.note(f"problems     {line}")
    return selection


def reward_forms(plan: Plan, pool: ScorePool | None) -> list[str]:
    """The form of each reward of a process, a line each, tried on the first rows before anything heavy loads.

    Raises UsageError where a user's own cannot be loaded, or asks for a column that the problems do not have.
    """
    if pool is None:
        return []
    first = list(itertools.islice(plan.task.samples("train"), TRIED_ROWS))
    return [f"reward       {name} is {form}" for name, form in pool.check(first).items() if name != TASK]


def _value_model(plan: Plan, policy: Policy, note: Callable[[str], None]) -> nn.Module | None:
    """The model of the critic, of an algorithm that reads values."""
    critic = plan.recipe.critic
    if critic is None:
        return None
    if critic.start == POLICY_START:
        return from_policy(policy.model)
    own = named_model(critic.start, plan.folder / OWN_CRITIC, note)
    folder = plan.folder / REWARD_MODEL if critic.start == REWARD_START else Path(own)
    return from_folder(folder, policy.model)


def too_long(plan: Plan, config: Any, longest: int, sampled: bool = True) -> str:
    """What is wrong, and what to do, where the longest prompt and a whole completion exceed what the model takes; else
    "".

    sampled  by the run's engine: a reference is not, and no window of the local engine's limits it
    """
    limit = plan.recipe.sampling.max_new_tokens
    here = sampled and plan.recipe.engine.name == "local"
    most, within = local_limit(config) if here else (positions(config), positions_in_words(config))
    if longest + limit <= most:
        return ""
    remedy = (
        f"set it to at most {most - longest}, or leave longer prompts out with max_prompt_tokens"
        if longest < most
        else "leave longer prompts out with max_prompt_tokens"
    )
    return f"sampling.max_new_tokens = {limit}: with a prompt of {longest} tokens that is beyond {within}; {remedy}"
