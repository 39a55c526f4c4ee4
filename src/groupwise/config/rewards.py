"""A recipe's tables [rewards.NAME] to the rewards that train, what can go together, and how the plan describes it."""

import math
from collections.abc import Mapping
from typing import Any

from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.settings import describe
from groupwise.core.errors import UsageError
from groupwise.core.reward import Reward
from groupwise.rewards.functions.form import reward
from groupwise.rollout.scoring import LEARNED, TASK, Mix

#: How the plan describes the two rewards that are not functions.
OF_THE_RUN = {TASK: "the task's own score", LEARNED: "the reward model's score"}


def mix_of(tables: Mapping[str, Any] | None, each: bool) -> Mix:
    """The rewards that train, from their tables by name; each has a weight, 1 unless it says otherwise.

    Raises UsageError for a kind, key or weight that is none, or where nothing would train.
    """
    if tables is None:
        if each:
            raise UsageError("scoring.combine = 'after': there is one reward only; name several under [rewards.NAME]")
        return Mix()
    weights: dict[str, float] = {}
    own: dict[str, Reward] = {}
    for name, table in tables.items():
        settings = dict(table)
        weights[name] = _weight(name, settings.pop("weight", 1.0))
        if name not in OF_THE_RUN:
            own[name] = reward(name, settings)
        elif settings:
            raise UsageError(f"rewards.{name}: it has a weight and nothing else, not {', '.join(settings)}")
    if not any(weights.values()):
        raise UsageError("rewards: every weight is 0, so nothing would train")
    return Mix(weights, own, each)


def require_mix(mix: Mix, row: Algorithm, has_reward_model: bool) -> None:
    """Raises UsageError where rewards do not go together with a reward model or the algorithm."""
    if LEARNED in mix.weights and not has_reward_model:
        raise UsageError(f"rewards.{LEARNED}: this run has no reward model; add [preference]")
    if mix.weights and has_reward_model and LEARNED not in mix.weights:
        raise UsageError(f"preference: its score would train nothing; add [rewards.{LEARNED}] or take [preference] out")
    if not mix.each:
        return
    if row.advantage.smallest_group < 2 or row.advantage.reads_steps:
        raise UsageError(
            f"scoring.combine = 'after': {describe(row.advantage)} compares no outcomes inside a group, so there is no "
            'group normalisation to combine after; set scoring.combine = "before"'
        )
    if row.kl.in_reward or getattr(row.shaping, "overlong_cache", 0) or row.reads_steps:
        raise UsageError(
            "scoring.combine = 'after': a KL term, an overlong penalty or step scores inside the reward would count "
            'once for each reward; set algorithm.kl.place = "loss" and algorithm.shaping.overlong_cache = 0.0, or '
            'scoring.combine = "before"'
        )


def describe_mix(mix: Mix) -> list[str]:
    """What trains, a line for each reward."""
    lines = [
        f"{weight:g} x {name}: {OF_THE_RUN.get(name) or repr(mix.own[name])}" for name, weight in mix.weights.items()
    ]
    if mix.each:
        lines.append("advantages are computed for each reward by itself, then added by weight")
    return lines


def _weight(name: str, weight: object) -> float:
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
        raise UsageError(f"rewards.{name}.weight = {weight!r}: must be a number")
    return float(weight)
