"""Refusals of keys that do not go together, and questions about values out of the ordinary, before a run."""

import math
from collections.abc import Iterator
from pathlib import Path

from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.parts.filters import KeepAll
from groupwise.algorithms.parts.shaping import NoReward, OutcomeReward
from groupwise.algorithms.parts.trust import NoTrust
from groupwise.algorithms.settings import describe
from groupwise.config.plan import OWN_CRITIC, OWN_REFERENCE, OWN_START, REWARD_MODEL, Plan
from groupwise.config.recipe import Recipe
from groupwise.config.rewards import require_metric, require_weights
from groupwise.core.engine import Sampling
from groupwise.core.errors import UsageError
from groupwise.core.files.paths import location
from groupwise.core.samples import TASK
from groupwise.core.task import Bounded, BoundedTurns, Notes, PlaysTurns, ReadInParts, ScoresSteps, Task
from groupwise.health.symptoms.base import RECENT
from groupwise.journal.run_policy import run_policy
from groupwise.models.precision import require_precision
from groupwise.models.scalar_heads import POLICY_START, REWARD_START
from groupwise.rollout.scoring import RewardWeights, has_answers
from groupwise.tasks.agent import SessionTask
from groupwise.tasks.data.sources import sources_at
from groupwise.tasks.environment import EnvironmentTask
from groupwise.training.moments import require_moments
from groupwise.training.reference import START
from groupwise.training.settings import Guard
from groupwise.training.start.initial_policy import check_model
from groupwise.training.start.reward_model import SAMPLED_PAIRS

#: Completions of a step, and of an evaluation, at most: each is held in memory.
MOST_COMPLETIONS = 2**20
#: Measured on 2 cores: 0.25 s for 16.8 million weights, where torch's own takes 0.01.
SLOW_8_BITS = "there bitsandbytes takes 20 times as long for an update as torch does"
#: The keys of a sampling that leave tokens out.
TRUNCATIONS = ("top_p", "top_k", "min_p")


def require_runnable(plan: Plan) -> None:
    """Raise UsageError, one line, if the plan's settings do not go together."""
    recipe, row, rewards, learned = plan.recipe, plan.algorithm, plan.rewards, plan.recipe.preference is not None
    _require(_of_sampling(recipe, row))
    if isinstance(row.shaping, NoReward) and recipe.reference.stays_start and not recipe.reference.apart:
        raise UsageError(
            f"reference.model = {recipe.reference.model!r}: {row.name} learns from a teacher, and this is the policy "
            "itself; set reference.model to the folder of a model, or to a run, with the policy's tokenizer"
        )
    location(recipe.name, "name")
    recipe.adapter.require_installed()
    _require(_of_teachers(recipe, plan.task))
    _require(_of_origins(recipe, plan.folder, plan.copies_reference))
    if isinstance(plan.task, Notes):
        plan.task.notes()  # a task that cannot read its files, or protect this machine, refuses here
    for section in ("learner", "engine", "reference"):
        require_precision(f"{section}.precision", getattr(recipe, section).precision, recipe.device)
    _require(_of_the_engine(recipe))
    _require(_of_attention(recipe))
    _require(_of_time(plan.task, recipe.scoring.deadline))
    _require(of_turns(row, plan.task, rewards, learned))
    _require(_of_episodes(recipe, plan.task))
    if not has_answers(plan.task) and not recipe.supervised_alone:
        _require(_of_no_answers(recipe, rewards))
    if recipe.supervised is not None and recipe.supervised.path is not None:
        sources_at("supervised.path", recipe.supervised.path)  # rows that are not there are refused here
    if recipe.supervised is not None and recipe.supervised.rows_per_step < recipe.updates_per_step:
        rows, updates = recipe.supervised.rows_per_step, recipe.updates_per_step
        raise UsageError(
            f"supervised.rows_per_step = {rows}: a step has {updates} updates, each with a row; set it higher"
        )
    require_metric("evaluation.metric", recipe.measure.metric, rewards, has_answers(plan.task), learned)
    if not isinstance(row.filter, KeepAll):
        require_metric("algorithm.filter.metric", row.filter.metric, rewards, has_answers(plan.task), learned)
    require_weights(rewards, row, learned)
    require_rankable(recipe)
    _require(_of_the_machine(plan))


def require_rankable(recipe: Recipe) -> None:
    """Raise UsageError for what is not there yet for a policy that several processes hold together."""
    reasons = {
        "adapter.base": recipe.adapter.packs and "weights in 4 bits are not sharded: set it to 'same'",
        "learner.attention": recipe.learner.attention == "flex" and "it has not been tried in shards: set it to 'auto'",
        "learner.compile": recipe.learner.compile and "compiled layers have not been tried in shards: set it to false",
        "reference.by_source": recipe.reference.by_source and "further teachers are not sharded: take it out",
    }
    placement = recipe.placement
    if recipe.device != "cpu" and placement.ray and not placement.rank_gpus:
        reasons["placement.ray"] = "an actor sees the GPUs that it is given alone: set placement.rank_gpus to 1"
    for key, reason in reasons.items():
        if recipe.learner.ranks > 1 and reason:
            raise UsageError(f"learner.ranks = {recipe.learner.ranks} with {key}: {reason}, or learner.ranks to 1")


def require_offloadable(recipe: Recipe) -> None:
    """Raise UsageError for what is to lie elsewhere than beside the weights, if this device or these ranks have no such
    place, or the library is missing.
    """
    sections = ("learner", "critic", "reference", "preference")
    present = {name: section for name in sections if (section := getattr(recipe, name)) is not None}
    kept = {f"{name}.moments": getattr(section, "moments", "device") for name, section in present.items()}
    away = {f"{name}.offload": section.offload for name, section in present.items() if hasattr(section, "offload")}
    for key, value in {**kept, **away}.items():
        if value in ("device", False):
            continue
        said = f"{key} = {'true' if value is True else repr(value)}"
        if recipe.device == "cpu":
            there = "a processor has one memory" if value != "8bit" else SLOW_8_BITS
            raise UsageError(f"{said} with device = 'cpu': {there}; take it out")
        if recipe.learner.ranks > 1:
            raise UsageError(
                f"{said} with learner.ranks = {recipe.learner.ranks}: what is in shards stays on the device of its "
                "rank; take it out, or set learner.ranks to 1"
            )
        if key in kept:
            require_moments(key, value)


def _require(refusals: Iterator[str]) -> None:
    if refusal := next(refusals, None):
        raise UsageError(refusal)


def _of_attention(recipe: Recipe) -> Iterator[str]:
    """Refuse flex attention where nothing could run it."""
    if recipe.learner.attention != "flex":
        return
    if recipe.device == "cpu":
        yield 'learner.attention = "flex": torch has no backward of it on a CPU; set it to "auto" or "blocks"'
    if not recipe.learner.shared_prefixes:
        yield 'learner.attention = "flex" with learner.shared_prefixes = false: rows share nothing; change one of them'


def _of_sampling(recipe: Recipe, row: Algorithm) -> Iterator[str]:
    """Refuse what cannot be sampled or compared, or whose probabilities the learner cannot compute or correct."""
    sampling, evaluation = recipe.sampling, recipe.evaluation_sampling
    if recipe.samples_per_prompt < row.advantage.smallest_group:
        yield (
            f"samples_per_prompt = {recipe.samples_per_prompt}: {describe(row.advantage)} compares the "
            f"completions of one prompt and needs at least {row.advantage.smallest_group}"
        )
    if sampling.temperature == 0:
        yield "sampling.temperature = 0: greedy completions are all equal, so nothing can be compared"
    if sampling.repetition_penalty != 1:
        yield (
            f"sampling.repetition_penalty = {sampling.repetition_penalty:g}: it changes each token's distribution by "
            "what came before in its row, which the learner does not follow, so that its log-probabilities would not "
            "be the sampled ones; take it out, or set evaluation.repetition_penalty"
        )
    yield from _of_age(recipe, row)
    yield from _of_distributions(recipe, row)
    unread = [key for key in TRUNCATIONS if getattr(evaluation, key) != Sampling.model_fields[key].default]
    if evaluation.temperature == 0 and unread:
        yield (
            f"evaluation.{unread[0]} = {getattr(evaluation, unread[0]):g}: evaluation.temperature = 0 takes the most "
            "likely token, which is never left out; take one of the two out"
        )
    for section, chosen in (("sampling", sampling), ("evaluation", evaluation)):
        if chosen.min_new_tokens > chosen.max_new_tokens:
            yield (
                f"{section}.min_new_tokens = {chosen.min_new_tokens}: more than sampling.max_new_tokens = "
                f"{chosen.max_new_tokens}"
            )
    if recipe.updates_per_batch > recipe.prompts_per_step:
        yield (
            f"updates_per_batch = {recipe.updates_per_batch}: a batch of {recipe.prompts_per_step} groups cannot be "
            "split into more minibatches than that"
        )


def _of_distributions(recipe: Recipe, row: Algorithm) -> Iterator[str]:
    """Refuse what reads distributions of which sampling left ids out, or of a teacher that is away in updates."""
    sampling, read = recipe.sampling, list[tuple[str, object, str]]()
    if row.kl.divergence is not None:
        read.append(("kl.estimator", row.kl.divergence, 'kl.estimator = "k3"'))
    if row.trust.sampler_top:
        read.append(("trust.kind", row.trust, 'trust.kind = "cispo"'))
    for key in TRUNCATIONS:
        for slot, part, other in read if getattr(sampling, key) != Sampling.model_fields[key].default else ():
            yield (
                f"algorithm.{slot}, {describe(part)}, with sampling.{key} = {getattr(sampling, key):g}: it compares "
                f"distributions of which sampling leaves ids out; take sampling.{key} out, or set algorithm.{other}"
            )
    if row.kl.divergence is None:
        return
    name = describe(row.kl.divergence)
    if apart := recipe.reference.apart:
        yield (
            f"algorithm.kl.estimator, {name}, with {apart}: such a teacher gives log-probabilities of sampled tokens "
            'alone; set algorithm.kl.place = "reward" with algorithm.kl.estimator = "k1", as opd has it'
        )
    if recipe.reference.offload and not row.kl.top:
        yield (
            f"algorithm.kl.estimator, {name}, with reference.offload = true: every update runs the reference; take it "
            'out, or set algorithm.kl.estimator = "top-k", which reads it once a batch'
        )


def _of_age(recipe: Recipe, row: Algorithm) -> Iterator[str]:
    """Require that something holds or corrects an update on completions of an older policy, and does so once."""
    from_engine, rollout = recipe.logp_old == "engine", recipe.rollout
    if recipe.most_age and isinstance(row.trust, NoTrust) and not (row.corrects or from_engine):
        key, remedy = f"turn_tokens = {rollout.turn_tokens}", "no rollout.turn_tokens"
        if rollout.ahead:
            key, remedy = f"ahead = {rollout.ahead}", "rollout.ahead = 0"
        if rollout.free is not None:
            key, remedy = f"free = {rollout.free}", "no rollout.free"
        yield (
            f"rollout.{key}: the completions are an older policy's, and {row.name} ({describe(row.trust)}) neither "
            'corrects for that nor is held by a trust region; set algorithm.mismatch.kind, such as "tis", or '
            f'logp_old = "engine", or {remedy}'
        )
    for slot, part in row.corrections if from_engine else ():
        if part.reads_engine:
            yield (
                f"logp_old = 'engine': then pi_old / pi_engine is 1 and algorithm.{slot}, {describe(part)}, corrects "
                f'nothing; set algorithm.{slot}.kind = "none", or logp_old = "learner"'
            )


def _of_the_engine(recipe: Recipe) -> Iterator[str]:
    """Refuse a sleep for which there is no time, and compiled steps where there is no GPU."""
    if recipe.engine.compile and recipe.device == "cpu" and not recipe.engine.address:
        yield "engine.compile = true with device = 'cpu': steps are compiled on a GPU alone; take it out"
    if recipe.engine.sleep is True and recipe.rollout.beside:
        key = "ahead" if recipe.rollout.ahead else "free"
        yield (
            f"engine.sleep = true: with rollout.{key} = {getattr(recipe.rollout, key)} the engine samples while the "
            "learner trains, and cannot sleep; take one of the two out"
        )


def _of_origins(recipe: Recipe, folder: Path, copies_reference: bool) -> Iterator[str]:
    """Require the models that the run begins with; it has its own copy of what came from elsewhere, once it began."""
    start, reference, critic = recipe.start, recipe.reference.model, recipe.critic
    if not (folder / OWN_START).is_dir():
        if start is not None and run_policy(start) is None:
            yield f"start = {start!r}: there is no such run (RUN or RUN:STEP); a model's folder is `model`"
        check_model("model", recipe.origin)
    if copies_reference and reference != START and not (folder / OWN_REFERENCE).is_dir():
        check_model("reference.model", reference, [START])
    for number, (source, model) in enumerate(sorted(recipe.reference.by_source.items()), 1):
        if not (folder / f"{OWN_REFERENCE}-{number}").is_dir():
            check_model(f"reference.by_source.{source}", model, [])
    if critic is not None:
        if critic.start == REWARD_START and recipe.preference is None:
            yield f"critic.start = {critic.start!r}: this run has no reward model; add [preference], or a folder"
        known = critic.start in (POLICY_START, REWARD_START) or (folder / OWN_CRITIC).is_dir()
        if not known and not Path(critic.start).is_dir() and run_policy(critic.start) is None:
            yield f"critic.start = {critic.start!r}: no such folder; or {POLICY_START!r}, or {REWARD_START!r}"
        if critic.warmup_steps >= recipe.steps:
            yield f"critic.warmup_steps = {critic.warmup_steps}: the policy would wait through all {recipe.steps} steps"
    model = recipe.preference.model if recipe.preference else None
    if model is not None and not any(place.is_dir() for place in (Path(model), folder / REWARD_MODEL)):
        yield f"preference.model = {model!r}: there is no such folder"


def _of_teachers(recipe: Recipe, task: Task) -> Iterator[str]:
    """Refuse a template where a prompt is not what the problem says, and copies of the start as further teachers."""
    reference = recipe.reference
    if reference.template and recipe.prompt_truncation == "left":
        yield 'reference.template with prompt_truncation = "left": it would be cut off as well; set that to "none"'
    if reference.template and isinstance(task, ReadInParts) and task.in_parts:
        yield f"reference.template with {task.in_parts}: the prompt of a turn is not the problem's; take it out"
    if "," in (reference.address or ""):
        yield f"reference.address = {reference.address!r}: several addresses; one teacher is served at one"
    for source, model in reference.by_source.items():
        if model == START:
            yield f"reference.by_source.{source} = {START!r}: reference.model says what the other sources have"


def _of_time(task: Task, deadline: float) -> Iterator[str]:
    """Require that the task's own limit comes first: at it a completion is wrong, at the pool's it has no score."""
    if isinstance(task, Bounded) and task.longest > deadline + 1e-6:
        most = deadline - (task.longest - task.seconds)
        shorter = f", or task.seconds = {most:g} or less" if most > 0 else ""
        yield (
            f"task.seconds = {task.seconds:g}, scoring.deadline = {deadline:g}: a score may take {task.longest:g} s, "
            "and a program that hangs would have none instead of a wrong one; "
            f"set scoring.deadline = {task.longest:g} or more{shorter}"
        )
    if isinstance(task, BoundedTurns) and task.longest_turn > deadline + 1e-6:
        yield (
            f"scoring.deadline = {deadline:g}: an answer of the environment may take {task.longest_turn:g} s, and a "
            "program that hangs would be a fault instead of a wrong one; "
            f"set scoring.deadline = {task.longest_turn:g} or more, or task.settings.seconds lower"
        )


def of_turns(row: Algorithm, task: Task, rewards: RewardWeights, learned: bool) -> Iterator[str]:
    """Require scores of steps for an algorithm that reads them, each counted once; an episode's turns are its steps.

    learned  whether a reward model scores
    """
    shaping = row.shaping
    if row.needs_steps and not isinstance(task, ScoresSteps | PlaysTurns):
        yield f"algorithm.name = {row.name!r}: it needs scores of steps, and {task} has none"
    if row.advantage.reads_states and not isinstance(task, PlaysTurns):
        yield (
            f"algorithm.advantage.kind: {describe(row.advantage)} compares turns that were spoken in one "
            f"state, and {task} plays no turns; take another kind"
        )
    if row.advantage.reads_steps and not shaping.reads_steps:
        yield (
            f"algorithm.advantage.kind: {describe(row.advantage)} reads rewards at step ends, and "
            f'{describe(shaping)} gives none there; set algorithm.shaping.kind = "steps"'
        )
    by_score = TASK in rewards.weights or not (rewards.weights or learned)
    if not isinstance(task, PlaysTurns) or not isinstance(shaping, OutcomeReward) or not by_score:
        return
    if shaping.scale and shaping.step_scale:
        yield (
            f"algorithm.shaping: an episode's score is what its turns brought, and step_scale = {shaping.step_scale:g} "
            'adds each turn\'s reward once more; set algorithm.shaping.kind = "steps" for rewards where turns end, or '
            "algorithm.shaping.step_scale = 0.0 for the score at the end"
        )


def _of_episodes(recipe: Recipe, task: Task) -> Iterator[str]:
    """Require that an episode is played in one go, and is one text for what reads it as such."""
    if not isinstance(task, EnvironmentTask | SessionTask):
        return
    readers = {"a reward model": recipe.preference, **{f"routing.{key}": True for key in recipe.routing.changed}}
    reader = next((name for name, there in readers.items() if there), None)
    if reader and (parts := task.in_parts):
        yield f"{parts}: {reader} reads an episode as one text, and under it an episode may have several; take it out"
    if recipe.rollout.turn_tokens is not None:
        yield (
            f"rollout.turn_tokens = {recipe.rollout.turn_tokens}: an episode is played whole and does not wait for "
            "newer weights; take it out (task.turn_tokens is the limit of a turn)"
        )


def _of_no_answers(recipe: Recipe, rewards: RewardWeights) -> Iterator[str]:
    """Require another score than that of the task, which has no right answers, and that nothing reads the task's."""
    preference, check = recipe.preference, recipe.task.get("check")
    if preference is None and not rewards.weights:
        what = "a reward model must score" if check == "learned" else "at least one reward is needed"
        yield (
            f"task.check = {check!r}: there are no right answers, so {what}; add [rewards.NAME] with "
            'use = "my_rewards.py:function", or [preference] with a path (pairs) or a model (a folder)'
        )
    if preference is not None and preference.source == SAMPLED_PAIRS:
        yield (
            f"task.check = {check!r}: there are no right answers to rank sampled pairs by; set preference.path (pairs) "
            "or preference.model (a folder)"
        )
    if TASK in rewards.weights:
        yield f"rewards.{TASK}: the task has no score of its own here; take it out"


def _of_the_machine(plan: Plan) -> Iterator[str]:
    """Refuse too few checkpoints to go back to, processes that there are none of, and more than memory holds."""
    recipe, every, keep = plan.recipe, plan.recipe.checkpoint.every, plan.recipe.checkpoint.keep
    needed = 1 + math.ceil((RECENT - 1) / every)  # at every step one from before the steps of a warning is kept
    if recipe.guard is Guard.ROLLBACK and keep < needed:
        yield (
            f"guard = 'rollback': a warning speaks of the last {RECENT} steps, and checkpoint.keep = {keep} with "
            f"checkpoint.every = {every} does not always reach back to before them; set checkpoint.keep = {needed}"
        )
    if recipe.placement.ray and not plan.processes:
        yield (
            f"placement.ray = {recipe.placement.ray!r}: nothing of this run lives outside of its own process; take it "
            'out, or set engine.process = "child", or learner.ranks = 2 or more'
        )
    if recipe.prompt_truncation != "none" and not recipe.max_prompt_tokens:
        yield (
            f"prompt_truncation = {recipe.prompt_truncation!r}: no prompt is too long without max_prompt_tokens; set it"
        )
    step = recipe.prompts_per_step * recipe.samples_per_prompt
    evaluation = sum(plan.evaluated.values()) * recipe.evaluation.samples
    for what, count in (("a step", step), ("an evaluation", evaluation)):
        if count > MOST_COMPLETIONS:
            yield f"{what} would have {count} completions; {MOST_COMPLETIONS} are the most: ask for fewer"
