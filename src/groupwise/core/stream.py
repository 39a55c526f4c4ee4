"""Records of the stream of prompts: what it gives a step, and where it stands between two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from groupwise.core.records import Completion, Group, Prompt


@dataclass(frozen=True)
class RolloutResult:
    """Groups that a step generated, and those of them that train.

    groups      the groups that train
    generated   every group generated in this step, dropped and surplus ones included
    dropped     groups that the filter took out
    fallback    dropped groups that train all the same, because the budget of rounds was spent
    surplus     kept groups beyond what the step needs; they train first in the next step
    rounds      rounds of generation
    unfinished    completions that were begun and have not ended
    """

    groups: tuple[Group, ...]
    generated: tuple[Group, ...]
    dropped: int
    fallback: int
    surplus: tuple[Group, ...]
    rounds: int
    unfinished: int = 0


@dataclass(frozen=True)
class Sampled:
    """One step's generation with all that the step needs of it, also where it comes from a checkpoint.

    every            its groups, each once
    trains, generated, waits   places in `every` of what RolloutResult calls groups, generated and surplus
    dropped, fallback, rounds, unfinished  as there
    levels           of each source after it, where the task has levels
    logged           (reward.metric, sum, count) of what reward functions logged of their calls, over completions
    logged_totals    (reward.metric, sum) of the same over calls
    faults           the first scoring fault of each kind, a line each
    scoring_seconds  that processes have scored; None where there are none
    ahead_seconds    that it took, where it was sampled ahead
    """

    every: tuple[Group, ...]
    trains: tuple[int, ...]
    generated: tuple[int, ...]
    waits: tuple[int, ...]
    dropped: int
    fallback: int
    rounds: int
    unfinished: int = 0
    levels: Mapping[str, int] = field(default_factory=dict)
    logged: tuple[tuple[str, float, float], ...] = ()
    logged_totals: tuple[tuple[str, float], ...] = ()
    faults: tuple[str, ...] = ()
    scoring_seconds: float | None = None
    ahead_seconds: float | None = None

    @classmethod
    def of(cls, result: RolloutResult, **more: Any) -> Sampled:
        """Join a result and what else belongs to it.

        >>> Sampled.of(RolloutResult((), (), dropped=1, fallback=0, surplus=(), rounds=2)).rounds
        2
        """
        every = list({id(g): g for g in (*result.groups, *result.generated, *result.surplus)}.values())
        place = {id(group): i for i, group in enumerate(every)}
        trains, generated, waits = (
            tuple(place[id(group)] for group in some) for some in (result.groups, result.generated, result.surplus)
        )
        counts = (result.dropped, result.fallback, result.rounds, result.unfinished)
        return cls(tuple(every), trains, generated, waits, *counts, **more)

    @property
    def result(self) -> RolloutResult:
        """A group that several of its parts have is one object in it."""
        groups, generated, surplus = (
            tuple(self.every[i] for i in places) for places in (self.trains, self.generated, self.waits)
        )
        return RolloutResult(groups, generated, self.dropped, self.fallback, surplus, self.rounds, self.unfinished)


@dataclass(frozen=True)
class Cohort:
    """Groups that are begun in one segment, and end together.

    seeds        of each prompt's completions
    completions  of each prompt, as far as they are sampled; none before the first segment
    """

    prompts: tuple[Prompt, ...]
    seeds: tuple[int, ...]
    completions: tuple[tuple[Completion, ...], ...] = ()


@dataclass(frozen=True)
class StreamState:
    """State of the stream of prompts.

    cursor     how many were drawn
    surplus    kept groups that wait for a step
    keep_rate  the last share of groups kept
    levels     of each source, where the task has levels
    ahead      a batch that was sampled ahead of its step
    begun      the cohorts that have not ended, oldest first
    """

    cursor: int = 0
    surplus: tuple[Group, ...] = ()
    keep_rate: float = 1.0
    levels: Mapping[str, int] = field(default_factory=dict)
    ahead: Sampled | None = None
    begun: tuple[Cohort, ...] = ()
