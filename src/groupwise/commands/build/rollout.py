"""Rollout of a run: its problems, what scores them and plays its episodes, and what samples them for a step."""

import dataclasses
import itertools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from groupwise.algorithms.algorithm import Algorithm
from groupwise.config.recipe import Recipe
from groupwise.core.engine import Engine
from groupwise.core.environment import ENVIRONMENT, Environments
from groupwise.core.files.atomic import whole_file
from groupwise.core.processes.network import Address
from groupwise.core.processes.place import HERE, Place
from groupwise.core.records import Evaluation, Group
from groupwise.core.samples import TASK
from groupwise.core.task import Task
from groupwise.environments.live import InlineEnvironments, PoolEnvironments
from groupwise.models.chat.later_turns import Glue, LaterPrompts, thinking_of
from groupwise.models.chat.prompts import Chat
from groupwise.models.chat.template_checks import TemplateFinding, require_no_fatal
from groupwise.models.chat.turn_checks import check_turns
from groupwise.models.context import positions, positions_in_words
from groupwise.models.load import Policy
from groupwise.rewards.pool.pool import Pool
from groupwise.rewards.pool.remote import Note, RemotePool
from groupwise.rewards.pool.work import Limits, ScorePool
from groupwise.rollout.batches import AsynchronousBatches, Batches
from groupwise.rollout.collect import Judge, Prompts, Rollout, heldout_answers, measured
from groupwise.rollout.episodes import Episodes, Plays
from groupwise.rollout.gateway.again import ASKED, Again
from groupwise.rollout.gateway.play import Sessions
from groupwise.rollout.gateway.server import Server
from groupwise.rollout.gateway.writing import Writing
from groupwise.rollout.scoring import RewardWeights, Scorer
from groupwise.rollout.segments import Sampler
from groupwise.rollout.selection import PromptLimit, Selection, select
from groupwise.tasks.agent import SessionTask
from groupwise.tasks.environment import EnvironmentTask
from groupwise.training.learner import Learner
from groupwise.training.supervised import SupervisedRows, supervised_rows

#: Function that makes an evaluation, and the groups that it sampled.
Evaluate = Callable[[], tuple[Evaluation, Sequence[Group]]]
#: An evaluation of held-out rows alone.
NOTHING_SAMPLED = Evaluation(0, 0, math.nan, {}, math.nan, math.nan)
#: What episodes are played with, or by.
Players = Environments | Pool | None
#: The file in which sessions that are played are shown.
SESSIONS = "sessions.json"
#: Rows that rewards and templates are tried on before a run starts.
TRIED_ROWS = 4


def chat_of(recipe: Recipe, task: Task, tokenizer: Any) -> Chat:
    """Make what puts problems to the policy, an environment's tools included. Raises UsageError if the template cannot
    say them.
    """
    return Chat(tokenizer, recipe.chat, task.game.schemas if isinstance(task, EnvironmentTask) else ())


def selected(recipe: Recipe, task: Task, chat: Chat) -> Selection:
    """Select what the run trains on and is evaluated on. Raises UsageError if no prompt is short enough."""
    limit = PromptLimit(recipe.max_prompt_tokens, recipe.prompt_truncation == "left", head=int(chat.has_bos))
    return select(task, chat.encode, limit, recipe.evaluation)


def too_long(recipe: Recipe, config: Any, longest: int) -> str:
    """Say what is wrong, and what to do, if the longest prompt and a whole completion exceed what the model takes."""
    limit = recipe.sampling.max_new_tokens
    most, within = positions(config), positions_in_words(config)
    if longest + limit <= most:
        return ""
    remedy = "leave longer prompts out with max_prompt_tokens"
    if longest < most:
        remedy = f"set it to at most {most - longest}, or {remedy}"
    return f"sampling.max_new_tokens = {limit}: with a prompt of {longest} tokens that is beyond {within}; {remedy}"


def pool_of(
    recipe: Recipe, rewards: Mapping[str, Any], place: Place = HERE, note: Note = lambda line: None
) -> ScorePool | None:
    """Start the processes that score, if any of the rewards is to be scored in one."""
    return _pool_at(recipe, place, note, rewards, _limits(recipe, place)) if rewards else None


def _limits(recipe: Recipe, place: Place) -> Limits:
    """Limit the processes of a pool; at another place there are as many as the pool has CPUs there."""
    s = recipe.scoring
    cores = (os.cpu_count() or 1) if place.own else math.ceil(recipe.placement.pool_cpus)
    return Limits(workers=s.workers or cores, seconds=s.deadline, memory=s.memory_mib * 2**20)


def _pool_at(recipe: Recipe, place: Place, note: Note, rewards: Mapping[str, Any], limits: Limits) -> ScorePool:
    if place.own:
        return Pool(rewards, limits)
    return RemotePool(rewards, limits, place, recipe.placement.deadline, note)


def reward_forms(task: Task, pool: ScorePool | None) -> list[str]:
    """Say the form of each reward of a process, a line each, tried on the first rows before anything heavy loads.

    Raises UsageError if a user's own cannot be loaded, or asks for a column that the problems do not have.
    """
    if pool is None:
        return []
    first = list(itertools.islice(task.samples("train"), TRIED_ROWS))
    return [f"reward       {name} is {form}" for name, form in pool.check(first).items() if name != TASK]


def players_of(recipe: Recipe, task: Task, place: Place = HERE, note: Note = lambda line: None) -> Players:
    """Make the environments that episodes play in, or the agents that play; None for a task without either.

    place  where the processes of environments are started; `note` hears of one that is started again
    Raises UsageError if the code does not load.
    """
    if isinstance(task, SessionTask):
        return Pool({ENVIRONMENT: task.agent}, dataclasses.replace(_limits(recipe, HERE), workers=task.sessions))
    if not isinstance(task, EnvironmentTask):
        return None
    game = task.game
    if game.quick:
        return InlineEnvironments(game.load(), game.with_special, game.tool_names)
    return PoolEnvironments(game, _limits(recipe, place), partial(_pool_at, recipe, place, note))


def episodes_of(
    recipe: Recipe,
    task: Task,
    policy: Policy,
    chat: Chat,
    engine: Engine,
    players: Players,
    note: Note,
    folder: Path | None = None,
) -> Episodes | Sessions | None:
    """Make what plays episodes; None for a task without an environment or an agent. `note` hears of what agents ask
    for and do not get; `folder` is the run's.

    Raises UsageError for a chat template under which the ids of a conversation do not only grow, and for an address
    that is taken.
    """
    if players is None or not isinstance(task, EnvironmentTask | SessionTask):
        return None
    require_no_fatal(turn_findings(task, chat, policy.eos))
    glue = Glue(chat, policy.eos)
    if isinstance(task, SessionTask):
        assert isinstance(players, Pool)
        server, again = Server(Address.of(recipe.rollout.gateway)), Again(folder and folder / ASKED)
        return Sessions(
            engine, players, at_once=task.sessions, server=server, writing=Writing(glue, policy), limits=task.limits,
            patience=task.patience, note=note, again=again, show=partial(show_sessions, folder),
        )  # fmt: skip
    assert not isinstance(players, Pool)
    onward = LaterPrompts(glue).onward if task.history == "rewrite" else glue.onward
    decode = policy.decode_all if players.with_special else policy.decode
    return Episodes(engine, players, onward, chat.encode, decode, task.limits)


def show_sessions(folder: Path | None, sessions: Sequence[Mapping[str, object]]) -> None:
    """Write what sessions do into the run's folder, where `watch` reads it; with none the file goes."""
    with suppress(OSError):  # a run does not end because nobody can watch it
        if folder is not None and sessions:
            with whole_file(folder / SESSIONS) as file:
                file.write(orjson.dumps(sessions))
        elif folder is not None:
            (folder / SESSIONS).unlink(missing_ok=True)


def turn_findings(task: Task, chat: Chat, ends: frozenset[int]) -> list[TemplateFinding]:
    """Try the chat template on conversations of several turns; nothing for a task without an environment."""
    if isinstance(task, SessionTask):
        return check_turns(chat, ends, ("user",), "grow")
    return check_turns(chat, ends, task.game.roles, task.history) if isinstance(task, EnvironmentTask) else []


def scorer_of(
    task: Task,
    rewards: RewardWeights,
    policy: Policy,
    chat: Chat,
    pool: ScorePool | None,
    reads_steps: bool = False,
) -> Scorer:
    """Make what scores completions, behind what their prompts already open of them."""
    thinking, turns = thinking_of(chat), chat.template is not None
    return Scorer(task, policy.decode, rewards, pool, reads_steps=reads_steps, thinking=thinking, turns=turns)


def rollout_of(
    recipe: Recipe,
    row: Algorithm,
    engine: Engine,
    scorer: Scorer,
    prompts: Prompts,
    judge: Judge | None,
    episodes: Plays | None,
) -> Rollout:
    """Make what samples a step's groups, of which the row's filter decides which train."""
    return Rollout(
        engine,
        scorer,
        prompts,
        sampling=recipe.sampling,
        samples_per_prompt=recipe.samples_per_prompt,
        filter=row.filter,
        judge=judge,
        measure=recipe.measure,
        turn_tokens=recipe.rollout.turn_tokens,
        episodes=episodes,
        top=row.trust.sampler_top,
    )


def batches_of(rollout: Rollout, recipe: Recipe) -> Batches | AsynchronousBatches:
    """Make what gives each step its batch."""
    settings = recipe.rollout
    return (
        Batches(rollout, settings.ahead) if settings.free is None else AsynchronousBatches(rollout, lag=settings.free)
    )


def evaluation_of(
    recipe: Recipe, sample: Sampler, scorer: Scorer, selection: Selection, judge: Judge | None
) -> Evaluate:
    """Make what samples and measures the held-out problems, each time with the same random numbers."""

    def evaluate() -> tuple[Evaluation, Sequence[Group]]:
        answers = heldout_answers(
            sample,
            scorer,
            problems=selection.heldout,
            encode=selection.encode,
            samples=recipe.evaluation.samples,
            sampling=recipe.evaluation_sampling,
            seed=recipe.seed,
            judge=judge,
        )
        return measured(answers, recipe.measure, scorer.has_answers), answers.groups

    return evaluate


def supervised_of(recipe: Recipe, task: Task, chat: Chat, policy: Policy) -> SupervisedRows | None:
    """Read and encode the supervised rows, if the recipe has any."""
    if recipe.supervised is None:
        return None
    most, weight = positions(policy.model.config), recipe.mix.supervised or 0.0
    of_run = (recipe.seed, weight, recipe.updates_per_step)
    return supervised_rows(recipe.supervised, task, chat, policy.eos, policy.pad, most, *of_run)


def with_supervised(
    evaluate: Evaluate | None, recipe: Recipe, engine: Engine, learner: Learner, rows: SupervisedRows
) -> Evaluate | None:
    """Measure held-out rows beside the held-out problems, if there are any; a run of supervised rows alone gives the
    engine its weights where they are asked for, and not after each step.
    """
    if evaluate is None and not rows.heldout:
        return None

    def measure() -> tuple[Evaluation, Sequence[Group]]:
        if evaluate is not None and recipe.supervised_alone:
            engine.load_weights(learner.weights(), version=learner.optimizer.updates)
        evaluation, groups = (NOTHING_SAMPLED, ()) if evaluate is None else evaluate()
        return dataclasses.replace(evaluation, supervised_loss=rows.loss(learner)), groups

    return measure
