"""Rules of a run as its recipe has them: what the witness judges a step by, besides the row of parts."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class UpdateRules:
    """Rules of an optimizer's updates.

    rate       after the warmup
    schedule   how it goes on: "constant", "linear" or "cosine"
    warmup     updates
    total      updates of the whole run
    clip_norm  largest norm of the gradient; 0: any
    """

    rate: float
    schedule: str
    warmup: int
    total: int
    clip_norm: float


@dataclass(frozen=True)
class Rules:
    """Rules of a step.

    groups      that train
    samples     completions of each
    parts       minibatches of a pass
    passes      over a batch
    waiting     first steps in which the policy is not updated
    weights     of the rewards that train, by name; none where the task's score or a reward model's does
    each        rewards are compared one by one, and added afterwards
    learner     of the policy's optimizer
    critic      of the critic's; None where there is none
    truncates   sampling leaves ids out, by top-p, top-k or min-p
    """

    groups: int
    samples: int
    parts: int
    passes: int
    waiting: int
    weights: Mapping[str, float]
    each: bool
    learner: UpdateRules
    critic: UpdateRules | None = None
    truncates: bool = True
