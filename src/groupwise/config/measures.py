"""What a run is measured by, and what its filter goes by, where the recipe does not say: what trains."""

from collections.abc import Iterable

from groupwise.core.errors import UsageError, brief, nearest
from groupwise.core.numbers.measure import CORRECTNESS, REWARD
from groupwise.core.reward import LEARNED, TASK
from groupwise.rollout.collect import EvaluationSettings
from groupwise.rollout.scoring import Mix


def default_metric(mix: Mix, has_answers: bool, has_reward_model: bool) -> str:
    """Correctness where the task's score trains, or a reward model in its place; else the reward that trains.

    >>> default_metric(Mix({"mine": 1.0}), True, False), default_metric(Mix({"task": 1.0, "mine": 0.1}), True, False)
    ('reward', 'correctness')
    """
    if has_answers and (not mix.weights or mix.weights.get(TASK) or mix.weights.get(LEARNED)):
        return CORRECTNESS
    return LEARNED if has_reward_model and not mix.weights else REWARD


def measured_by(settings: EvaluationSettings, metric: str) -> EvaluationSettings:
    """The settings with what they leave open: `metric`, and for correctness a score of 1 as the pass mark."""
    chosen = settings.metric or metric
    pass_at = 1.0 if settings.pass_at is None and chosen == CORRECTNESS else settings.pass_at
    return settings.replace(metric=chosen, pass_at=pass_at)


def require_metric(key: str, metric: str, mix: Mix, has_answers: bool, has_reward_model: bool) -> None:
    """Raises UsageError where nothing in the run gives such a value."""
    if metric == CORRECTNESS and not has_answers:
        raise UsageError(f"{key} = {CORRECTNESS!r}: the task has no right answers; take {REWARD!r}")
    known = list(_known(mix, has_answers, has_reward_model))
    if metric not in known:
        raise UsageError(f"{key} = {brief(metric)}: no such reward in this run; {nearest(metric, known)}")


def _known(mix: Mix, has_answers: bool, has_reward_model: bool) -> Iterable[str]:
    yield from dict.fromkeys([*[CORRECTNESS] * has_answers, REWARD, *mix.weights, *[LEARNED] * has_reward_model])
