"""The way from a plan to a run at step 0: heavy things are loaded here, and what only they can tell is checked."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from groupwise.commands.build.engine import make_probe, precisions, run_limits, training_engine
from groupwise.commands.build.learner import OverRanks, idle_ranks, over_ranks, rounds, rows_apart
from groupwise.commands.build.machine import (
    cards_of,
    disk_plan,
    in_words,
    memory_of,
    memory_of_folder,
    picks,
    size_in_words,
    with_cuts,
)
from groupwise.commands.build.policy import base_policy, named_model, other_policy, reward_model, value_model
from groupwise.commands.build.rollout import (
    TRIED_ROWS,
    Players,
    batches_of,
    chat_of,
    episodes_of,
    evaluation_of,
    players_of,
    pool_of,
    reward_forms,
    rollout_of,
    scorer_of,
    selected,
    supervised_of,
    too_long,
    with_supervised,
)
from groupwise.commands.build.teachers import References, Taught, references_of, teacher_rates, teaching_of
from groupwise.commands.build.witness import unheard, witness_of
from groupwise.config.plan import OWN_START, Plan
from groupwise.config.recipe_files import dump
from groupwise.config.resolve import resolved_recipe
from groupwise.core.errors import UsageError
from groupwise.core.machine.cards import Cards
from groupwise.core.machine.facts import count_peak_anew
from groupwise.core.machine.free_memory import give_back
from groupwise.core.processes.place import HERE, Place
from groupwise.core.processes.stop import Stop
from groupwise.core.task import ReadInParts
from groupwise.diagnostics.checks import WitnessAction
from groupwise.diagnostics.witness.requests import HeardEngine
from groupwise.health.watch import Watch
from groupwise.journal.journal import Journal
from groupwise.journal.output import Output
from groupwise.journal.rollout_rows import Spelling
from groupwise.journal.terminal import View
from groupwise.models.adapters.settings import in_short
from groupwise.models.chat.prompts import Chat
from groupwise.models.chat.template_checks import check_chat, require_no_fatal
from groupwise.models.forward.heads import halves
from groupwise.models.load import Policy, digest
from groupwise.models.moe.record import Router
from groupwise.models.moe.settings import routers_to_record
from groupwise.models.precision import keep_few_products
from groupwise.models.scalar_heads import RewardModel
from groupwise.models.unread import is_unread
from groupwise.planning.activations import without_memory
from groupwise.planning.memory import MemoryPlan
from groupwise.rewards.pool.work import ScorePool
from groupwise.rollout.collect import Prompts
from groupwise.rollout.scoring import Scorer
from groupwise.rollout.selection import Selection
from groupwise.training.checkpoint import CHECKPOINTS
from groupwise.training.ranks.followers import given_ranks
from groupwise.training.reference import Reference
from groupwise.training.run import Components, Training
from groupwise.training.settings import Guard
from groupwise.training.start.initial_policy import TINY
from groupwise.training.state import RunState
from groupwise.training.supervised import SupervisedRows, shown


@dataclass(frozen=True)
class Surroundings:
    """Things around a run while it is built.

    place    where its processes live
    cards    GPUs that they take, if it has any and it is for the run to say
    started  closes what holds processes or threads if the build fails
    """

    journal: Journal
    view: View
    stop: Stop
    place: Place
    cards: Cards | None
    started: ExitStack

    def say(self, line: str) -> None:
        """Say a line in the log and to the person."""
        self.journal.log(line)
        self.view.note(line)

    def on_step(self, what: str, step: int, steps: int, loss: float) -> None:
        """Show one step of a training that comes before step 1 (warm start, reward model); Ctrl-C may end it here."""
        self.stop.look()
        self.view.preparing(what, step, steps, loss)


@dataclass(frozen=True)
class Asked:
    """Policy of a run, the problems that it is asked, and the processes that score and play."""

    policy: Policy
    chat: Chat
    selection: Selection
    supervised: SupervisedRows | None
    pool: ScorePool | None
    players: Players


@dataclass(frozen=True)
class Beside:
    """Parts beside the policy: what teachers have to fit, the references, what scores, the critic's model, and the
    routers whose routes are recorded.
    """

    taught: Taught
    references: References
    scorer: Scorer
    judge: RewardModel | None
    values: nn.Module | None
    routers: Sequence[Router]


def build(plan: Plan, journal: Journal, view: View, stop: Stop, place: Place = HERE) -> Training:
    """Load or make the policy and put the run together, at step 0. Whatever was started ends if that fails.

    place  where the run's processes live
    """
    if rounds(plan.recipe):
        keep_few_products()
    with ExitStack() as started:
        cards = cards_of(plan, given=given_ranks())
        around = Surroundings(journal, view, stop, place, cards, started)
        if cards is not None and len(cards.ranks) + len(cards.engines) > 1:
            view.plan(f"cards        {cards}")
        asked, plan = _asked(plan, around)
        table = resolved_recipe(plan)
        run = _training(plan, table, asked, _beside(plan, asked, around), around)
        started.pop_all()
    return run


def _asked(plan: Plan, around: Surroundings) -> tuple[Asked, Plan]:
    """Start the processes, load the policy and select its problems; and the plan, its updates cut to fit."""
    recipe, task, note = plan.recipe, plan.task, around.view.plan
    pool = pool_of(recipe, plan.slow_rewards, around.place, around.say)
    if pool is not None:
        around.started.callback(pool.close)
    players = players_of(recipe, task, around.place, around.say)
    if players is not None:
        around.started.callback(players.close)
    for line in reward_forms(task, pool):
        note(line)
    model = named_model(recipe.origin, plan.folder / OWN_START, note)
    memory = None if model in TINY else memory_of_folder(plan, model, around.cards)
    policy = base_policy(recipe, task, model, plan.cache, around.say, partial(around.on_step, "warm start"))
    give_back()
    count_peak_anew()  # a warm start is another kind of work, and another run finds its policy made
    if is_unread(policy.model):
        note("policy       its weights stay in their files until each rank takes its part")
    if recipe.adapter.rank:
        note(f"adapters     {in_short(policy.model, recipe.adapter)}")
    chat = chat_of(recipe, task, policy.tokenizer)
    selection = selected(recipe, task, chat)
    longest = selection.longest
    if wrong := too_long(recipe, policy.model.config, longest):
        raise UsageError(wrong)
    findings = check_chat(chat, policy.eos, selection.heldout or task.samples("train")[:TRIED_ROWS])
    require_no_fatal(findings)
    note(f"prompts      {chat.describe()}")
    for line in findings:
        around.view.note(f"prompts      {line}")
    for line in selection.notes:
        around.view.note(f"problems     {line}")
    rows = supervised_of(recipe, task, chat, policy)
    for line in () if rows is None else (rows.describe(), f"such as {shown(rows.train[0], policy.tokenizer)}"):
        around.say(f"supervised   {line}")
    if apart := rows_apart(recipe, policy.model.config, longest):
        note(f"learner      {apart}")
    memory = memory or memory_of(plan, without_memory(policy.model.config), longest, cards=around.cards)
    return Asked(policy, chat, selection, rows, pool, players), _cut(plan, memory, longest, around)


def _cut(plan: Plan, memory: MemoryPlan, longest: int, around: Surroundings) -> Plan:
    """Cut the updates of a plan to fit; what that takes is said, and what it leaves without work asked.

    The run's recipe says what was picked, so that a resumed run computes the same bits.
    """
    around.view.plan(in_words(memory))
    size, free = size_in_words(memory.peak), size_in_words(memory.free)
    around.view.head({"memory": f"about {size} at most, {free} free"})
    if picks(plan):
        plan = with_cuts(plan, memory)
        around.journal.replace_recipe(dump(resolved_recipe(plan)))
    if idle := idle_ranks(plan.recipe, longest):
        around.view.note(f"question     {idle}")
    return plan


def _beside(plan: Plan, asked: Asked, around: Surroundings) -> Beside:
    """Load or make the models beside the policy. Raises UsageError if the checkpoints of all have no room."""
    recipe, policy, folder, note = plan.recipe, asked.policy, plan.folder, around.view.plan
    start = digest(policy.model)
    around.journal.log(f"starting policy {start}")
    taught = Taught(plan, policy, asked.chat, asked.selection, start, load=partial(other_policy, recipe, note))
    references = references_of(taught, note)
    if references.remote is not None:
        around.started.callback(references.remote.close)
    scorer = scorer_of(plan.task, plan.rewards, policy, asked.chat, asked.pool, plan.algorithm.reads_steps)
    on_step = partial(around.on_step, "reward model")
    judge = reward_model(recipe, policy, asked.chat, scorer, folder, plan.cache, on_step, around.say)
    values = value_model(recipe.critic, policy, folder, note)
    routers = routers_to_record(halves(policy.model)[0], recipe.routing)
    if routers:
        note(f"routing      {len(routers)} layers, {routers[0].chosen} of {routers[0].experts} experts a token")
    if routers and isinstance(plan.task, ReadInParts) and (parts := plan.task.in_parts):
        note(f"routing      not recorded, as under {parts} a row may be several texts: each pass chooses its experts")
        routers = ()
    disk = disk_plan(recipe, folder, policy.model, values, plan.copies_reference)
    disk.require()
    note(f"disk         {disk}")
    return Beside(taught, references, scorer, judge, values, routers)


def _training(plan: Plan, table: dict[str, Any], asked: Asked, beside: Beside, around: Surroundings) -> Training:
    """Start the engine and the ranks, and put all parts together; `table` is the resolved recipe."""
    recipe, row, policy, reference = plan.recipe, plan.algorithm, asked.policy, beside.references.reference
    asks = around.say, around.place, around.cards, row.trust.sampler_top
    engine = training_engine(recipe, policy, beside.routers, *asks)
    around.started.callback(engine.close)
    models = (policy, beside.routers, reference and reference.model, beside.values, beside.judge)
    others = [*beside.references.by_source.values()]
    trained = over_ranks(recipe, table, plan.folder, *models, around.place, around.cards, others)
    learner = trained.learner
    around.started.callback(learner.mesh.close)
    prompts = Prompts(asked.selection.train, asked.selection.encode, recipe.seed)
    sides = precisions(recipe, engine, row.needs_reference)
    limits = run_limits(recipe, sides, policy, engine, learner, prompts, around.journal)
    for line in limits.tolerance.lines():
        around.view.plan(f"tolerance    {line}")
    heard = HeardEngine(engine, listens=recipe.checks.witness is not WitnessAction.OFF)
    episodes = episodes_of(recipe, plan.task, policy, asked.chat, heard, asked.players, around.say, plan.folder)
    rollout = rollout_of(recipe, row, heard, beside.scorer, prompts, trained.judge, episodes)
    other = reference is not None and reference.digest != beside.taught.start
    why = f"reference.model = {recipe.reference.model!r} is another policy than the run starts from" if other else ""
    why = f"{apart} is set" if (apart := recipe.reference.apart) else why
    evaluate = evaluation_of(recipe, rollout.sample, beside.scorer, asked.selection, trained.judge)
    sampled = unheard(heard, evaluate) if asked.selection.heldout else None
    rows = asked.supervised
    components = Components(
        algorithm=row,
        rollout=rollout,
        batches=batches_of(rollout, recipe),
        engine=engine,
        learner=learner,
        critic=trained.critic,
        probe=make_probe(recipe, engine, learner, prompts, policy.pad, limits),
        limits=limits,
        witness=witness_of(plan, heard, learner, trained.critic, beside.scorer, asked.selection, limits, beside.judge),
        evaluate=sampled if rows is None else with_supervised(sampled, recipe, engine, learner, rows),
        supervised=rows,
        state=_state(plan, policy, trained, reference, rows),
        pad=policy.pad,
        other_reference=why,
        rate_teachers=teacher_rates(beside.taught, beside.references, beside.scorer, around.say),
        teaching=teaching_of(beside.taught, beside.references, learner, around.say),
    )
    output = Output(
        journal=around.journal,
        view=around.view,
        watch=Watch(table, row.advantage.compares_within_group),
        token_text=Spelling(policy.tokenizer),
        token_budget=recipe.journal.token_budget,
        measure=recipe.measure,
    )
    return Training(recipe, components, output, around.stop)


def _state(
    plan: Plan, policy: Policy, trained: OverRanks, reference: Reference | None, rows: SupervisedRows | None
) -> RunState:
    return RunState(
        folder=plan.folder / CHECKPOINTS,
        keep=plan.recipe.checkpoint.keep,
        reference=reference,
        tokenizer=policy.tokenizer,
        learner=trained.learner,
        critic=trained.critic,
        every=1 if plan.recipe.guard is Guard.WARN else plan.recipe.checkpoint.every,
        supervised=rows.contents if rows else "",
    )
