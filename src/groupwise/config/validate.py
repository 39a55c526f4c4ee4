"""Refusals of keys that do not go together, before anything heavy is loaded."""

import math
from pathlib import Path

from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.parts.filters import KeepAll
from groupwise.algorithms.parts.shaping import OutcomeReward, Shaping
from groupwise.algorithms.parts.trust import NoTrust
from groupwise.algorithms.settings import describe
from groupwise.config.plan import OWN_CRITIC, OWN_REFERENCE, OWN_START, REWARD_MODEL, Plan
from groupwise.config.recipe import Recipe
from groupwise.config.rewards import require_metric, require_weights
from groupwise.core.engine import Sampling
from groupwise.core.errors import UsageError
from groupwise.core.files.paths import location
from groupwise.core.reward import TASK
from groupwise.core.task import Bounded, BoundedTurns, Notes, PlaysTurns, ScoresSteps, Task
from groupwise.health.symptoms.base import RECENT
from groupwise.models.precision import require_precision
from groupwise.models.value import POLICY_START, REWARD_START
from groupwise.rollout.scoring import RewardWeights, has_answers
from groupwise.tasks.environment import EnvironmentTask
from groupwise.training.critic import CriticSettings
from groupwise.training.reference import START
from groupwise.training.rollback import Guard
from groupwise.training.start.initial_policy import check_model
from groupwise.training.start.reward_model import SAMPLED_PAIRS
from groupwise.training.start.run_policy import run_policy

#: Completions of a step, and of an evaluation, at most: each is held in memory.
MOST_COMPLETIONS = 2**20
#: The keys of a sampling that leave tokens out.
TRUNCATIONS = ("top_p", "top_k", "min_p")


def require_runnable(plan: Plan) -> None:
    """Raise UsageError, one line, if the plan's settings do not go together."""
    recipe, row, task, rewards, folder = plan.recipe, plan.algorithm, plan.task, plan.rewards, plan.folder
    needed = row.advantage.smallest_group
    if recipe.samples_per_prompt < needed:
        raise UsageError(
            f"samples_per_prompt = {recipe.samples_per_prompt}: {describe(row.advantage)} compares the "
            f"completions of one prompt and needs at least {needed}"
        )
    if recipe.sampling.temperature == 0:
        raise UsageError("sampling.temperature = 0: greedy completions are all equal, so nothing can be compared")
    _require_trainable(recipe.sampling)
    _require_correction(recipe, row)
    _require_read("evaluation", recipe.evaluation_sampling)
    for section, sampling in (("sampling", recipe.sampling), ("evaluation", recipe.evaluation_sampling)):
        if sampling.min_new_tokens > sampling.max_new_tokens:
            raise UsageError(
                f"{section}.min_new_tokens = {sampling.min_new_tokens}: more than sampling.max_new_tokens = "
                f"{sampling.max_new_tokens}"
            )
    if recipe.updates_per_batch > recipe.prompts_per_step:
        raise UsageError(
            f"updates_per_batch = {recipe.updates_per_batch}: a batch of {recipe.prompts_per_step} groups cannot be "
            "split into more minibatches than that"
        )
    location(recipe.name, "name")
    recipe.adapter.require_installed()
    _require_origins(recipe, folder, plan.copies_reference)
    if isinstance(task, Notes):
        task.notes()  # a task that cannot read its files, or protect this machine, refuses here
    if recipe.critic is not None:
        _require_critic(recipe.critic, recipe, folder)
    for section in ("learner", "engine", "reference"):
        require_precision(f"{section}.precision", getattr(recipe, section).precision, recipe.device)
    _require_time_to_score(task, recipe.scoring.deadline)
    _require_steps(row, task)
    _require_turns_once(row.shaping, task, rewards, learned=recipe.preference is not None)
    _require_whole_episodes(recipe, task)
    _require_sources(recipe, row, folder)
    _require_scores(recipe, row, task, rewards)
    require_weights(rewards, row, recipe.preference is not None)
    _require_way_back(recipe)
    require_rankable(recipe)
    if recipe.placement.ray and not plan.processes:
        raise UsageError(
            f"placement.ray = {recipe.placement.ray!r}: nothing of this run lives outside of its own process; take it "
            'out, or set engine.process = "child", or learner.ranks = 2 or more'
        )
    if recipe.prompt_truncation != "none" and not recipe.max_prompt_tokens:
        raise UsageError(
            f"prompt_truncation = {recipe.prompt_truncation!r}: no prompt is too long without max_prompt_tokens; set it"
        )
    step = recipe.prompts_per_step * recipe.samples_per_prompt
    evaluation = sum(plan.evaluated.values()) * recipe.evaluation.samples
    for what, count in (("a step", step), ("an evaluation", evaluation)):
        if count > MOST_COMPLETIONS:
            raise UsageError(f"{what} would have {count} completions; {MOST_COMPLETIONS} are the most: ask for fewer")


def require_rankable(recipe: Recipe) -> None:
    """Raise UsageError for what is not there yet for a policy that several processes hold together."""
    reasons = {
        "device": recipe.device != "cpu" and "they compute on CPUs alone so far: set it to 'cpu'",
        "learner.compile": recipe.learner.compile and "compiled layers have not been tried in shards: set it to false",
    }
    for key, reason in reasons.items():
        if recipe.learner.ranks > 1 and reason:
            raise UsageError(f"learner.ranks = {recipe.learner.ranks} with {key}: {reason}, or learner.ranks to 1")


def _require_way_back(recipe: Recipe) -> None:
    """Require that a run which goes back keeps, at every step, a checkpoint from before the steps of a warning."""
    every, keep = recipe.checkpoint.every, recipe.checkpoint.keep
    needed = 1 + math.ceil((RECENT - 1) / every)
    if recipe.guard is Guard.ROLLBACK and keep < needed:
        raise UsageError(
            f"guard = 'rollback': a warning speaks of the last {RECENT} steps, and checkpoint.keep = {keep} with "
            f"checkpoint.every = {every} does not always reach back to before them; set checkpoint.keep = {needed}"
        )


def _require_origins(recipe: Recipe, folder: Path, copies_reference: bool) -> None:
    """Require the models that policy and reference begin as; a run has its own copy of what came from another run."""
    start, reference = recipe.start, recipe.reference.model
    if not (folder / OWN_START).is_dir():
        if start is not None and run_policy(start) is None:
            raise UsageError(f"start = {start!r}: there is no such run (RUN or RUN:STEP); a model's folder is `model`")
        check_model("model", recipe.origin)
    if copies_reference and reference != START and not (folder / OWN_REFERENCE).is_dir():
        check_model("reference.model", reference, [START])


def _require_trainable(sampling: Sampling) -> None:
    """Require that the learner can compute the probability that each token was drawn with."""
    if sampling.repetition_penalty != 1:
        raise UsageError(
            f"sampling.repetition_penalty = {sampling.repetition_penalty:g}: it changes each token's distribution by "
            "what came before in its row, which the learner does not follow, so that its log-probabilities would not "
            "be the sampled ones; take it out, or set evaluation.repetition_penalty"
        )


def _require_correction(recipe: Recipe, row: Algorithm) -> None:
    """Require that something holds or corrects an update on completions of an older policy."""
    corrected = row.corrects or recipe.logp_old == "engine"
    if recipe.most_age and isinstance(row.trust, NoTrust) and not corrected:
        ahead, turn = recipe.rollout.ahead, recipe.rollout.turn_tokens
        key, remedy = f"turn_tokens = {turn}", "no rollout.turn_tokens"
        if ahead:
            key, remedy = f"ahead = {ahead}", "rollout.ahead = 0"
        if recipe.rollout.free is not None:
            key, remedy = f"free = {recipe.rollout.free}", "no rollout.free"
        raise UsageError(
            f"rollout.{key}: the completions are an older policy's, and {row.name} ({describe(row.trust)}) neither "
            'corrects for that nor is held by a trust region; set algorithm.mismatch.kind, such as "tis", or '
            f'logp_old = "engine", or {remedy}'
        )


def _require_read(section: str, sampling: Sampling) -> None:
    """Refuse keys that leave tokens out beside greedy sampling, which does not read them."""
    unread = [key for key in TRUNCATIONS if getattr(sampling, key) != Sampling.model_fields[key].default]
    if sampling.temperature == 0 and unread:
        raise UsageError(
            f"{section}.{unread[0]} = {getattr(sampling, unread[0]):g}: {section}.temperature = 0 takes the most "
            "likely token, which is never left out; take one of the two out"
        )


def _require_critic(critic: CriticSettings, recipe: Recipe, folder: Path) -> None:
    start = critic.start
    if start == REWARD_START and recipe.preference is None:
        raise UsageError(f"critic.start = {start!r}: this run has no reward model; add [preference], or a folder")
    known = start in (POLICY_START, REWARD_START) or (folder / OWN_CRITIC).is_dir()
    if not known and not Path(start).is_dir() and run_policy(start) is None:
        raise UsageError(f"critic.start = {start!r}: no such folder; or {POLICY_START!r}, or {REWARD_START!r}")
    if critic.warmup_steps >= recipe.steps:
        raise UsageError(
            f"critic.warmup_steps = {critic.warmup_steps}: the policy would wait through all {recipe.steps} steps"
        )


def _require_time_to_score(task: Task, deadline: float) -> None:
    """Require that the task's own limit comes first: at it a completion is wrong, at the pool's it has no score."""
    if isinstance(task, Bounded) and task.longest > deadline + 1e-6:
        most = deadline - (task.longest - task.seconds)
        shorter = f", or task.seconds = {most:g} or less" if most > 0 else ""
        raise UsageError(
            f"task.seconds = {task.seconds:g}, scoring.deadline = {deadline:g}: a score may take {task.longest:g} s, "
            "and a program that hangs would have none instead of a wrong one; "
            f"set scoring.deadline = {task.longest:g} or more{shorter}"
        )
    if isinstance(task, BoundedTurns) and task.longest_turn > deadline + 1e-6:
        raise UsageError(
            f"scoring.deadline = {deadline:g}: an answer of the environment may take {task.longest_turn:g} s, and a "
            "program that hangs would be a fault instead of a wrong one; "
            f"set scoring.deadline = {task.longest_turn:g} or more, or task.settings.seconds lower"
        )


def _require_scores(recipe: Recipe, row: Algorithm, task: Task, rewards: RewardWeights) -> None:
    """Require something that scores, and that what is measured is a score of this run."""
    known = has_answers(task)
    learned = recipe.preference is not None
    if not known:
        _require_other_scores(recipe, rewards)
    require_metric("evaluation.metric", recipe.measure.metric, rewards, known, learned)
    if not isinstance(row.filter, KeepAll):
        require_metric("algorithm.filter.metric", row.filter.metric, rewards, known, learned)


def _require_other_scores(recipe: Recipe, rewards: RewardWeights) -> None:
    """Require another score than that of the task, which has no right answers, and that nothing reads the task's."""
    preference, check = recipe.preference, recipe.task.get("check")
    if preference is None and not rewards.weights:
        what = "a reward model must score" if check == "learned" else "at least one reward is needed"
        raise UsageError(
            f"task.check = {check!r}: there are no right answers, so {what}; add [rewards.NAME] with "
            'use = "my_rewards.py:function", or [preference] with a path (pairs) or a model (a folder)'
        )
    if preference is not None and preference.source == SAMPLED_PAIRS:
        raise UsageError(
            f"task.check = {check!r}: there are no right answers to rank sampled pairs by; set preference.path (pairs) "
            "or preference.model (a folder)"
        )
    if TASK in rewards.weights:
        raise UsageError(f"rewards.{TASK}: the task has no score of its own here; take it out")


def _require_steps(row: Algorithm, task: Task) -> None:
    """Require scores of steps for an algorithm that reads them; an episode's turns are its steps."""
    if row.needs_steps and not isinstance(task, ScoresSteps | PlaysTurns):
        raise UsageError(f"algorithm.name = {row.name!r}: it needs scores of steps, and {task} has none")
    if row.advantage.reads_states and not isinstance(task, PlaysTurns):
        raise UsageError(
            f"algorithm.advantage.kind: {describe(row.advantage)} compares turns that were spoken in one "
            f"state, and {task} plays no turns; take another kind"
        )
    if row.advantage.reads_steps and not row.shaping.reads_steps:
        raise UsageError(
            f"algorithm.advantage.kind: {describe(row.advantage)} reads rewards at step ends, and "
            f'{describe(row.shaping)} gives none there; set algorithm.shaping.kind = "steps"'
        )


def _require_turns_once(shaping: Shaping, task: Task, rewards: RewardWeights, learned: bool) -> None:
    """Refuse a reward of an episode's score and of its turns: the score is the sum of what the turns brought.

    learned  whether a reward model scores
    """
    by_score = TASK in rewards.weights or not (rewards.weights or learned)
    if not isinstance(task, PlaysTurns) or not isinstance(shaping, OutcomeReward) or not by_score:
        return
    if shaping.scale and shaping.step_scale:
        raise UsageError(
            f"algorithm.shaping: an episode's score is what its turns brought, and step_scale = {shaping.step_scale:g} "
            'adds each turn\'s reward once more; set algorithm.shaping.kind = "steps" for rewards where turns end, or '
            "algorithm.shaping.step_scale = 0.0 for the score at the end"
        )


def _require_whole_episodes(recipe: Recipe, task: Task) -> None:
    """Require that an episode is played in one go, and is one text for what reads it as such."""
    if not isinstance(task, EnvironmentTask):
        return
    tokens = recipe.rollout.turn_tokens
    readers = {"a critic": recipe.critic, "a reward model": recipe.preference}
    reader = next((name for name, there in readers.items() if there), None)
    if task.history == "rewrite" and reader:
        raise UsageError(
            f'task.history = "rewrite": {reader} reads an episode as one text, and under it each turn has a prompt of '
            f'its own; set task.history = "grow", or train without {reader}'
        )
    if tokens is not None:
        raise UsageError(
            f"rollout.turn_tokens = {tokens}: an episode is played whole and does not wait for newer weights; take it "
            "out (task.turn_tokens is the limit of a turn)"
        )


def _require_sources(recipe: Recipe, row: Algorithm, folder: Path) -> None:
    """Require the reward model, and refuse a correction of the engine's own log-probabilities."""
    model = recipe.preference.model if recipe.preference else None
    # A run that has begun has a copy of its own.
    if model is not None and not any(place.is_dir() for place in (Path(model), folder / REWARD_MODEL)):
        raise UsageError(f"preference.model = {model!r}: there is no such folder")
    for slot, part in row.corrections:
        if recipe.logp_old == "engine" and part.reads_engine:
            raise UsageError(
                f"logp_old = 'engine': then pi_old / pi_engine is 1 and algorithm.{slot}, {describe(part)}, corrects "
                f'nothing; set algorithm.{slot}.kind = "none", or logp_old = "learner"'
            )
