"""Rewards from a recipe's tables [rewards.NAME]: what goes together, and what a run is measured by."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.settings import describe
from groupwise.core.code.user_code import NO_FILES, Files
from groupwise.core.errors import UsageError, brief, nearest
from groupwise.core.numbers.measure import CORRECTNESS, REWARD
from groupwise.core.samples import LEARNED, TASK, Reward
from groupwise.core.settings import Settings, model_of, validated
from groupwise.rewards.functions.form import KINDS, FromFile, User, with_file
from groupwise.rewards.judge.judge import Judge
from groupwise.rollout.collect import EvaluationSettings
from groupwise.rollout.scoring import RewardWeights

#: How the plan describes the two rewards that are not functions.
OF_THE_RUN = {TASK: "the task's own score", LEARNED: "the reward model's score"}


class RewardTable(Settings):
    """Keys that every table [rewards.NAME] may hold; the fields of the reward's own class stand beside it.

    weight  factor on the reward before rewards are added; 0: measure it only
    """

    weight: float = Field(default=1.0, ge=-1e6, le=1e6)


def read_reward_weights(tables: Mapping[str, Any] | None, each: bool, files: Files = NO_FILES) -> RewardWeights:
    """Make the rewards from their tables by name; `files` are those that a run keeps.

    Raises UsageError for a kind, key or weight that is none, or if nothing would train.
    """
    if tables is None:
        if each:
            raise UsageError("scoring.combine = 'after': there is one reward only; name several under [rewards.NAME]")
        return RewardWeights()
    weights: dict[str, float] = {}
    own: dict[str, Reward] = {}
    for name, table in tables.items():
        if name not in OF_THE_RUN:
            weights[name], reward = _own(name, dict(table))
            own[name] = with_file(reward, files) if isinstance(reward, User) else reward
        elif others := [key for key in table if key != "weight"]:
            raise UsageError(f"rewards.{name}: it has a weight and nothing else, not {', '.join(others)}")
        else:
            weights[name] = validated(RewardTable, f"rewards.{name}", table).weight
    if not any(weights.values()):
        raise UsageError("rewards: every weight is 0, so nothing would train")
    return RewardWeights(weights, own, each)


def require_weights(rewards: RewardWeights, row: Algorithm, has_reward_model: bool) -> None:
    """Raise UsageError if rewards do not go together with a reward model or the algorithm."""
    if LEARNED in rewards.weights and not has_reward_model:
        raise UsageError(f"rewards.{LEARNED}: this run has no reward model; add [preference]")
    if rewards.weights and has_reward_model and LEARNED not in rewards.weights:
        raise UsageError(f"preference: its score would train nothing; add [rewards.{LEARNED}] or take [preference] out")
    if not rewards.each:
        return
    each = f"algorithm.name = {row.name!r}" if row.advantage.by_reward else "scoring.combine = 'after'"
    if row.advantage.smallest_group < 2 or row.advantage.reads_steps:
        raise UsageError(
            f"{each}: {describe(row.advantage)} compares no outcomes inside a group, so there is no "
            'group normalisation to combine after; set scoring.combine = "before"'
        )
    if row.kl.in_reward or getattr(row.shaping, "overlong_cache", 0) or row.reads_steps:
        raise UsageError(
            f"{each}: a KL term, an overlong penalty or step scores inside the reward would count once for each one; "
            'set algorithm.kl.place = "loss" and algorithm.shaping.overlong_cache = 0.0, or '
            + ('algorithm.name = "grpo"' if row.advantage.by_reward else 'scoring.combine = "before"')
        )


def default_metric(rewards: RewardWeights, has_answers: bool, has_reward_model: bool) -> str:
    """Choose what a run is measured by: correctness if the task's score or a reward model trains, else the reward.

    >>> default_metric(RewardWeights({"mine": 1.0}), True, False)
    'reward'
    >>> default_metric(RewardWeights({"task": 1.0, "mine": 0.1}), True, False)
    'correctness'
    """
    if has_answers and (not rewards.weights or rewards.weights.get(TASK) or rewards.weights.get(LEARNED)):
        return CORRECTNESS
    return LEARNED if has_reward_model and not rewards.weights else REWARD


def measured_by(settings: EvaluationSettings, metric: str) -> EvaluationSettings:
    """Fill in what the settings leave open: `metric`, and for correctness a score of 1 as the pass mark."""
    chosen = settings.metric or metric
    pass_at = 1.0 if settings.pass_at is None and chosen == CORRECTNESS else settings.pass_at
    return settings.replace(metric=chosen, pass_at=pass_at)


def require_metric(key: str, metric: str, rewards: RewardWeights, has_answers: bool, has_reward_model: bool) -> None:
    """Raise UsageError if nothing in the run gives such a value."""
    if metric == CORRECTNESS and not has_answers:
        raise UsageError(f"{key} = {CORRECTNESS!r}: the task has no right answers; take {REWARD!r}")
    known = list(dict.fromkeys([*[CORRECTNESS] * has_answers, REWARD, *rewards.weights, *[LEARNED] * has_reward_model]))
    if metric not in known:
        raise UsageError(f"{key} = {brief(metric)}: no such reward in this run; {nearest(metric, known)}")


def with_whole_paths(tables: Mapping[str, Any] | None, rewards: RewardWeights) -> dict[str, Any] | None:
    """Name each reward's files from the root on, for a run is resumed from any folder."""
    if tables is None:
        return None
    return {name: {**table, **_whole_paths(rewards.own.get(name))} for name, table in tables.items()}


def _whole_paths(reward: Reward | None) -> dict[str, str]:
    if isinstance(reward, FromFile):
        return {"use": reward.use}
    if isinstance(reward, Judge):
        return {"cache": reward.cache, **({"key_file": reward.key_file} if reward.key_file else {})}
    return {}


def describe_weights(rewards: RewardWeights) -> list[str]:
    """Say what trains and what watches, a line for each reward."""
    lines = [
        f"{f'{weight:g} x' if weight else 'watched by'} {name}: {OF_THE_RUN.get(name) or repr(rewards.own[name])}"
        for name, weight in rewards.weights.items()
    ]
    if rewards.each:
        lines.append("advantages are computed for each reward by itself, then added by weight")
    return lines


def _own(name: str, table: dict[str, Any]) -> tuple[float, Reward]:
    """Make the weight and the reward of a table: of its `kind`, else NAME itself, or a user's own if `use` is set."""
    kind = table.pop("kind", "user" if "use" in table else name)
    if not isinstance(kind, str) or kind not in KINDS:
        raise UsageError(f"rewards.{name}.kind = {kind!r}: there is no such reward; {nearest(str(kind), KINDS)}")
    checked = validated(model_of(KINDS[kind], RewardTable, kind), f"rewards.{name}", table, known=["kind"])
    try:
        return checked.weight, KINDS[kind](**{key: getattr(checked, key) for key in table if key != "weight"})
    except UsageError as error:
        raise UsageError(f"rewards.{name}: {error}") from None
