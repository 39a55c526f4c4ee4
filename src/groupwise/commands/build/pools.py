"""The processes in which a run scores: of how many workers, and where they live."""

import math
import os
from collections.abc import Mapping
from typing import Any

from groupwise.config.plan import Plan
from groupwise.core.processes.place import HERE, Place
from groupwise.rewards.pool.dispatch import Limits
from groupwise.rewards.pool.pool import Pool, ScorePool
from groupwise.rewards.pool.remote import Note, RemotePool


def limits_of(plan: Plan, place: Place = HERE) -> Limits:
    """What the processes of a pool may use; elsewhere there are as many as the pool has CPUs there."""
    s = plan.recipe.scoring
    cores = (os.cpu_count() or 1) if place.own else math.ceil(plan.recipe.placement.pool_cpus)
    return Limits(workers=s.workers or cores, seconds=s.deadline, memory=s.memory_mib * 2**20)


def pool_at(plan: Plan, place: Place, note: Note, rewards: Mapping[str, Any], limits: Limits) -> ScorePool:
    """A pool of these rewards: its processes are children of this one, or live at the place."""
    if place.own:
        return Pool(rewards, limits)
    return RemotePool(rewards, limits, place, plan.recipe.placement.deadline, note)


def pool_of(plan: Plan, place: Place = HERE, note: Note = lambda line: None) -> ScorePool | None:
    """The processes that score, where anything is not quick."""
    rewards = plan.slow_rewards
    return pool_at(plan, place, note, rewards, limits_of(plan, place)) if rewards else None
