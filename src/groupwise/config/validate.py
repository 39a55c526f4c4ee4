"""Combinations in a recipe that no single key can be blamed for, refused before anything heavy is loaded."""

from pathlib import Path

from groupwise.algorithms.parts.filters import KeepAll
from groupwise.algorithms.settings import describe
from groupwise.config.plan import REWARD_MODEL, Plan
from groupwise.config.rewards import require_mix
from groupwise.core.errors import UsageError
from groupwise.core.paths import location
from groupwise.core.task import Bounded, Judged, Notes, ScoresSteps
from groupwise.models.precision import require_precision
from groupwise.models.value import POLICY_START, REWARD_START
from groupwise.rollout.scoring import LEARNED, TASK
from groupwise.training.critic import CriticSettings
from groupwise.training.initial_policy import check_model
from groupwise.training.reward_model import SAMPLED_PAIRS

#: Completions of a step, and of an evaluation, at most: each is held in memory.
MOST_COMPLETIONS = 2**20


def require_runnable(plan: Plan) -> None:
    """Raises UsageError, one line, where the plan's settings do not go together."""
    recipe = plan.recipe
    needed = plan.algorithm.advantage.smallest_group
    if recipe.samples_per_prompt < needed:
        raise UsageError(
            f"samples_per_prompt = {recipe.samples_per_prompt}: {describe(plan.algorithm.advantage)} compares the "
            f"completions of one prompt and needs at least {needed}"
        )
    if recipe.sampling.temperature == 0:
        raise UsageError("sampling.temperature = 0: greedy completions are all equal, so nothing can be compared")
    if recipe.updates_per_batch > recipe.prompts_per_step:
        raise UsageError(
            f"updates_per_batch = {recipe.updates_per_batch}: a batch of {recipe.prompts_per_step} groups cannot be "
            "split into more minibatches than that"
        )
    location(recipe.name, "name")
    recipe.adapter.require_installed()
    check_model(recipe.model)
    if isinstance(plan.task, Notes):
        plan.task.notes()  # a task that cannot read its files, or protect this machine, refuses here
    if recipe.critic is not None:
        _require_critic(plan, recipe.critic)
    for section in ("learner", "engine", "reference"):
        require_precision(f"{section}.precision", getattr(recipe, section).precision, recipe.device)
    _require_time_to_score(plan)
    _require_steps(plan)
    _require_sources(plan)
    _require_judge(plan)
    require_mix(plan.mix, plan.algorithm, recipe.preference is not None)
    if recipe.prompt_truncation != "none" and not recipe.max_prompt_tokens:
        raise UsageError(
            f"prompt_truncation = {recipe.prompt_truncation!r}: no prompt is too long without max_prompt_tokens; set it"
        )
    step = recipe.prompts_per_step * recipe.samples_per_prompt
    evaluation = sum(plan.evaluated.values()) * recipe.evaluation.samples
    for what, count in (("a step", step), ("an evaluation", evaluation)):
        if count > MOST_COMPLETIONS:
            raise UsageError(f"{what} would have {count} completions; {MOST_COMPLETIONS} are the most: ask for fewer")


def _require_critic(plan: Plan, critic: CriticSettings) -> None:
    start = critic.start
    if start == REWARD_START and plan.recipe.preference is None:
        raise UsageError(f"critic.start = {start!r}: this run has no reward model; add [preference], or a folder")
    if start not in (POLICY_START, REWARD_START) and not Path(start).is_dir():
        raise UsageError(f"critic.start = {start!r}: no such folder; or {POLICY_START!r}, or {REWARD_START!r}")
    if critic.warmup_steps >= plan.recipe.steps:
        raise UsageError(
            f"critic.warmup_steps = {critic.warmup_steps}: the policy would wait through all {plan.recipe.steps} steps"
        )


def _require_time_to_score(plan: Plan) -> None:
    """The task's own limit comes first: at it a completion is wrong, at the pool's it has no score."""
    task, deadline = plan.task, plan.recipe.scoring.deadline
    if isinstance(task, Bounded) and task.longest > deadline + 1e-6:
        most = deadline - (task.longest - task.seconds)
        shorter = f", or task.seconds = {most:g} or less" if most > 0 else ""
        raise UsageError(
            f"task.seconds = {task.seconds:g}, scoring.deadline = {deadline:g}: a score may take {task.longest:g} s, "
            "and a program that hangs would have none instead of a wrong one; "
            f"set scoring.deadline = {task.longest:g} or more{shorter}"
        )


def _require_judge(plan: Plan) -> None:
    """A task without right answers needs a reward model from elsewhere, and nothing else may read its scores."""
    if not (isinstance(plan.task, Judged) and plan.task.judged):
        return
    if plan.recipe.preference is None or plan.recipe.preference.source == SAMPLED_PAIRS:
        raise UsageError(
            "task.check = 'learned': there are no right answers, so a reward model must score; set preference.path "
            "(pairs) or preference.model (a folder)"
        )
    if not isinstance(plan.algorithm.filter, KeepAll):
        raise UsageError(
            f"algorithm.filter.kind: {describe(plan.algorithm.filter)} goes by right answers, and there are none "
            'here; set algorithm.filter.kind = "none"'
        )
    if TASK in plan.mix.weights:
        raise UsageError(f"rewards.{TASK}: the task has no score of its own here; use rewards.{LEARNED}")


def _require_steps(plan: Plan) -> None:
    """An algorithm that reads scores of steps has them."""
    if plan.algorithm.needs_steps and not isinstance(plan.task, ScoresSteps):
        raise UsageError(
            f"algorithm.name = {plan.algorithm.name!r}: it needs scores of steps, and {plan.task} has none"
        )
    if plan.algorithm.advantage.reads_steps and not plan.algorithm.shaping.reads_steps:
        raise UsageError(
            f"algorithm.advantage.kind: {describe(plan.algorithm.advantage)} reads rewards at step ends, and "
            f'{describe(plan.algorithm.shaping)} gives none there; set algorithm.shaping.kind = "steps"'
        )


def _require_sources(plan: Plan) -> None:
    """What scores, and what the old log-probabilities are taken from."""
    model = plan.recipe.preference.model if plan.recipe.preference else None
    # A run that has begun has a copy of its own.
    if model is not None and not any(folder.is_dir() for folder in (Path(model), plan.folder / REWARD_MODEL)):
        raise UsageError(f"preference.model = {model!r}: there is no such folder")
    if plan.recipe.logp_old == "engine" and plan.algorithm.mismatch.reads_engine:
        raise UsageError(
            f"logp_old = 'engine': then pi_old / pi_engine is 1 and {describe(plan.algorithm.mismatch)} corrects "
            'nothing; set algorithm.mismatch.kind = "none", or logp_old = "learner"'
        )
