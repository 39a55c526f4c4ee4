"""The way from a plan to a run at step 0: heavy things are loaded here, and what only they can tell is checked."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from groupwise.commands.build.engine import make_probe, precisions, run_limits, training_engine
from groupwise.commands.build.learner import idle_ranks, over_ranks, rounds
from groupwise.commands.build.memory import in_words, memory_of, memory_of_folder, picks, record_cuts, with_cuts
from groupwise.commands.build.models import reference_copy, reward_model, value_model
from groupwise.commands.build.output import disk_plan, require_disk, run_output, run_state
from groupwise.commands.build.policy import Note, base_policy, named_model
from groupwise.commands.build.rollout import (
    TRIED_ROWS,
    batches_of,
    chat_of,
    environments_of,
    episodes_of,
    evaluation_of,
    pool_of,
    reward_forms,
    rollout_of,
    scorer_of,
    selected,
    too_long,
)
from groupwise.config.plan import OWN_START, Plan
from groupwise.config.resolve import resolved_recipe
from groupwise.core.errors import UsageError
from groupwise.core.machine.facts import count_peak_anew
from groupwise.core.machine.free_memory import give_back
from groupwise.core.processes.place import HERE, Place
from groupwise.core.processes.stop import Stop
from groupwise.core.task import Task
from groupwise.journal.journal import Journal
from groupwise.journal.terminal import View
from groupwise.models.adapters.settings import in_short
from groupwise.models.chat.prompts import Chat
from groupwise.models.chat.template_checks import check_chat, require_no_fatal
from groupwise.models.forward.heads import halves
from groupwise.models.load import Policy, digest
from groupwise.models.moe.record import Router
from groupwise.models.moe.settings import RoutingSettings, routers_to_record
from groupwise.models.precision import keep_few_products
from groupwise.planning.activations import without_memory
from groupwise.planning.memory import MemoryPlan
from groupwise.rollout.collect import Prompts
from groupwise.rollout.selection import Selection
from groupwise.training.reference import Reference
from groupwise.training.run import Components, Training
from groupwise.training.start.initial_policy import TINY


def build(plan: Plan, journal: Journal, view: View, stop: Stop, place: Place = HERE) -> Training:
    """Load or make the policy and put the run together, at step 0. Whatever was started ends if that fails.

    place  where the run's processes live
    """
    if rounds(plan.recipe):
        keep_few_products()
    with ExitStack() as started:
        run = _built(plan, journal, view, stop, place, started)
        started.pop_all()
    return run


def _built(plan: Plan, journal: Journal, view: View, stop: Stop, place: Place, started: ExitStack) -> Training:
    """Build the run at step 0; what holds processes or threads is put into `started`, which closes it."""
    recipe, task, folder, row = plan.recipe, plan.task, plan.folder, plan.algorithm

    def say(line: str) -> None:
        journal.log(line)
        view.note(line)

    def on_step(what: str, step: int, steps: int, loss: float) -> None:
        stop.look()
        view.preparing(what, step, steps, loss)

    pool = pool_of(recipe, plan.slow_rewards, place, say)
    environments = environments_of(recipe, task, place, say)
    for each in (pool, environments):
        if each is not None:
            started.callback(each.close)
    for line in reward_forms(task, pool):
        view.note(line)
    model = named_model(recipe.origin, folder / OWN_START, view.note)
    memory = None if model in TINY else memory_of_folder(plan, model)
    policy = base_policy(recipe, task, model, plan.cache, say, partial(on_step, "warm start"))
    give_back()
    count_peak_anew()  # a warm start is another kind of work, and another run finds its policy made
    if recipe.adapter.rank:
        view.note(f"adapters     {in_short(policy.model, recipe.adapter)}")
    chat = chat_of(recipe, task, policy.tokenizer)
    selection = selected(recipe, task, chat)
    if wrong := too_long(recipe, policy.model.config, selection.longest):
        raise UsageError(wrong)
    for line in _problem_notes(task, policy, chat, selection):
        view.note(line)
    memory = memory or memory_of(plan, without_memory(policy.model.config), selection.longest)
    plan = _cut(plan, memory, selection.longest, journal, view)
    recipe, table = plan.recipe, resolved_recipe(plan)
    start = digest(policy.model)
    journal.log(f"starting policy {start}")
    reference = Reference(None, start) if row.needs_reference else None
    if plan.copies_reference:
        reference = reference_copy(recipe, policy, start, selection.longest, folder, view.note)
    scorer = scorer_of(task, plan.rewards, policy, chat, pool, row.reads_steps)
    judge = reward_model(recipe, policy, chat, scorer, folder, plan.cache, partial(on_step, "reward model"), say)
    values = value_model(recipe.critic, policy, folder, view.note)
    routers = recorded_routers(policy, recipe.routing, view.note)
    disk = disk_plan(recipe, folder, policy.model, values, plan.copies_reference)
    require_disk(disk)
    view.note(f"disk         {disk}")
    engine = training_engine(recipe, policy, routers, say, place)
    started.callback(engine.close)
    copy = reference and reference.model
    trained = over_ranks(recipe, table, folder, policy, routers, copy, values, judge, place)
    learner = trained.learner
    started.callback(learner.mesh.close)
    prompts = Prompts(selection.train, selection.encode, recipe.seed)
    sides = precisions(recipe, engine, row.needs_reference)
    limits = run_limits(recipe, sides, policy, engine, learner, prompts, journal)
    for line in limits.tolerance.lines():
        view.note(f"tolerance    {line}")
    episodes = episodes_of(task, policy, chat, engine, environments)
    rollout = rollout_of(recipe, row.filter, engine, scorer, prompts, trained.judge, episodes)
    other = reference is not None and reference.digest != start
    why = f"reference.model = {recipe.reference.model!r} is another policy than the run starts from" if other else ""
    evaluate = evaluation_of(recipe, rollout.sample, scorer, selection, trained.judge)
    components = Components(
        algorithm=row,
        rollout=rollout,
        batches=batches_of(rollout, recipe),
        engine=engine,
        learner=learner,
        critic=trained.critic,
        probe=make_probe(recipe, engine, learner, prompts, policy.pad, limits),
        limits=limits,
        evaluate=evaluate if selection.heldout else None,
        state=run_state(recipe, folder, policy.tokenizer, learner, trained.critic, reference),
        pad=policy.pad,
        other_reference=why,
    )
    output = run_output(recipe, table, row.advantage.compares_within_group, policy.tokenizer, journal, view)
    return Training(recipe, components, output, stop)


def _problem_notes(task: Task, policy: Policy, chat: Chat, selection: Selection) -> list[str]:
    """Say what the run's problems are like. Raises UsageError if the chat template is wrong for them."""
    findings = check_chat(chat, policy.eos, selection.heldout or task.samples("train")[:TRIED_ROWS])
    require_no_fatal(findings)
    return [
        f"prompts      {chat.describe()}",
        *(f"prompts      {finding}" for finding in findings),
        *(f"problems     {line}" for line in selection.notes),
    ]


def _cut(plan: Plan, memory: MemoryPlan, longest: int, journal: Journal, view: View) -> Plan:
    """Cut the updates of a plan to fit; what that takes is said, and what it leaves without work asked."""
    view.note(in_words(memory))
    if picks(plan):
        plan = with_cuts(plan, memory)
        record_cuts(plan, journal)
    if idle := idle_ranks(plan.recipe, longest):
        view.note(f"question     {idle}")
    return plan


def recorded_routers(policy: Policy, settings: RoutingSettings, note: Note) -> Sequence[Router]:
    """Find the routers whose routes the run records; none for a dense policy."""
    routers = routers_to_record(halves(policy.model)[0], settings)
    if routers:
        note(f"routing      {len(routers)} layers, {routers[0].chosen} of {routers[0].experts} experts a token")
    return routers
