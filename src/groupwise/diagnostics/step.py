"""The record of one step, gathered while it trains: metrics, checks that its updates allow, timeline."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from groupwise.algorithms.algorithm import Algorithm
from groupwise.core.machine.clock import Extent
from groupwise.core.numbers.metrics import Max, Mean, Metrics, Sum, Value, merge, read
from groupwise.core.records import Batch
from groupwise.core.updates import RoutingRecord, UpdateRecord, UpdateResult
from groupwise.diagnostics.checks import (
    Check,
    learner_equals_engine,
    live_equals_old,
    nothing_ran,
    reference_is_start,
    replayed_are_used,
    weights_reach_total,
    worst,
)
from groupwise.diagnostics.places import PlacedGap
from groupwise.diagnostics.tolerance import Tolerance
from groupwise.diagnostics.updates import (
    age_metrics,
    batch_metrics,
    engine_gap,
    reward_kl_metrics,
    update_metrics,
    value_metrics,
)
from groupwise.health.checks import LEARNER_IS_ENGINE, LIVE_IS_OLD, REFERENCE_IS_START, WITNESSED
from groupwise.models.moe.metrics import (
    at_trained,
    comparable,
    difference,
    drift_metrics,
    engine_metrics,
    load_metrics,
    replay_metrics,
)
from groupwise.models.moe.record import Router, RowRoutes
from groupwise.models.moe.settings import ReplayFrom


@dataclass(frozen=True)
class Expected:
    """Expectations of a batch's first update.

    newest           the version of the weights that are trained, before the update
    at_start         these are the starting policy's
    old_from_engine  logp_old is the engine's, so that the learner's own is not measured
    other_reference  why the reference is not the starting policy, on purpose; "" if it is
    """

    newest: int
    at_start: bool
    old_from_engine: bool
    other_reference: str = ""


class RoutingLog:
    """The record of one batch's routes while it trains; empty for a dense policy."""

    def __init__(self, batch: Batch, replay: ReplayFrom, routers: Sequence[Router]) -> None:
        self._replay, self._experts = replay, [router.experts for router in routers]
        # The rows of which the old policy's own choice is known, and the choice.
        self._of, self._own = batch, own_of(batch, replay)
        self._updates = 0
        self.checks: list[Check] = []

    def update(self, minibatch: Batch, seen: UpdateRecord) -> Metrics:
        """Measure the next update on the batch."""
        if seen.routing is None:
            return {}
        self._updates += 1
        if self._own is None:  # the first update's policy is the old one
            self._of, self._own = minibatch, seen.routing.own
        used = used_metrics(minibatch, seen.routing, self._replay)
        if self._replay is not ReplayFrom.NONE:
            self.checks.append(replayed_are_used(max(value.read() for value in used.values())))
        drift = self._drift(minibatch, seen, seen.routing)
        if self._replay is ReplayFrom.NONE or minibatch.routes is None:
            return {**used, **drift}
        own, replayed = (at_trained(rows, minibatch.mask) for rows in (seen.routing.own, minibatch.routes))
        return {**used, **drift, **replay_metrics(own, replayed, seen.routing.live)}

    def metrics(self, newest: int) -> Metrics:
        """Measure the whole batch, once it has trained; `newest` is the version of the weights that sampled it."""
        if self._own is None:
            return {}
        return {**load_metrics(torch.cat(self._own), self._experts), **engine_metrics(self._own, self._of, newest)}

    def _drift(self, minibatch: Batch, seen: UpdateRecord, routing: RoutingRecord) -> dict[str, Value]:
        old = own_of(minibatch, self._replay)
        if old is None or minibatch.logp_old is None:
            return {}
        mask = minibatch.mask
        gap = (seen.logp_live - minibatch.logp_old)[mask]
        return drift_metrics(at_trained(routing.own, mask), at_trained(old, mask), gap, self._updates - 1)


def own_of(batch: Batch, replay: ReplayFrom) -> RowRoutes | None:
    """Choose what the routers would have chosen under the old policy; None if no pass says so."""
    return batch.routes_own if replay is ReplayFrom.ENGINE else batch.routes


def used_metrics(minibatch: Batch, routing: RoutingRecord, replay: ReplayFrom) -> dict[str, Value]:
    """Measure the share of an update's experts that the old policy's pass, or the engine, did not use."""
    changed: dict[str, Value] = {}
    if minibatch.routes is not None:
        changed["routing.used_changed"] = Max(difference(routing.used, minibatch.routes))
    if replay is ReplayFrom.ENGINE and minibatch.routes_engine is not None:
        changed["routing.used_engine_changed"] = Max(difference(routing.used, minibatch.routes_engine))
    return changed


class StepLog:
    """The record of one batch: gathers what each update gives, and makes the step's metrics and checks at the end."""

    def __init__(
        self, batch: Batch, algorithm: Algorithm, replay: ReplayFrom, routers: Sequence[Router], expected: Expected
    ) -> None:
        """`replay` and `routers` are the learner's: whose experts the updates run on, and what chooses them."""
        self._batch, self._algorithm, self._expected = batch, algorithm, expected
        self._routing = RoutingLog(batch, replay, routers)
        self._updates: list[Metrics] = [] if batch.value is None else [value_metrics(batch)]
        self._compare: Callable[[Tolerance], list[Check]] | None = None
        self._gap: PlacedGap | None = None
        self._checks: list[Check] = []

    def critic_updated(self, metrics: Metrics) -> None:
        """Note that the critic has learned from a minibatch."""
        self._updates.append(metrics)

    def policy_waited(self) -> None:
        """Note that the critic learns alone and the policy had no update on the minibatch: its numbers are missing."""
        self._updates.append({"updates": Sum(0), "updates_skipped": Sum(0), "share_passed": Mean(0.0, 0.0)})

    def policy_updated(self, minibatch: Batch, update: UpdateResult) -> None:
        """Note the policy's update on a minibatch; the first on a batch is the one that checks can be made of."""
        if self._compare is None:
            self._first_update(minibatch, update.seen)
        self._checks.append(weights_reach_total(minibatch.need("weight"), minibatch.mask, self._algorithm.aggregate))
        self._updates.append(update_metrics(minibatch, update))
        if update.seen is not None:
            self._updates.append(self._routing.update(minibatch, update.seen))

    def _first_update(self, minibatch: Batch, seen: UpdateRecord | None) -> None:
        """Note what live log-probabilities [n,T] of the first update on a batch must equal, and the engine's gap."""
        expected, used = self._expected, None if seen is None or seen.routing is None else seen.routing.used
        old = None if expected.old_from_engine else self._batch.logp_old
        live = None if seen is None else seen.logp_live
        learner, rows, routes = (live, minibatch, used) if old is None else (old, self._batch, self._batch.routes)
        fresh = rows.mask & sampled_by(rows, expected.newest)

        def compare(tolerance: Tolerance) -> list[Check]:
            if learner is None:
                found = [nothing_ran(LEARNER_IS_ENGINE)]
            else:
                sampled = comparable(fresh, routes, rows.routes_engine)
                found = learner_equals_engine(learner, rows.logp_engine, sampled, tolerance)
            if live is None:
                return [*found, nothing_ran(LIVE_IS_OLD), nothing_ran(REFERENCE_IS_START)]
            before, start = None if old is None else minibatch.logp_old, live if expected.at_start else None
            same_experts = comparable(minibatch.mask, used, minibatch.routes)
            same_own = comparable(minibatch.mask, used, minibatch.routes_own or minibatch.routes)
            reference, other = tolerance.reference, expected.other_reference
            return [
                live_equals_old(live, before, same_experts, tolerance.passes),
                *found,
                reference_is_start(minibatch.logp_ref, start, same_own, reference, other),
            ]

        self._compare = compare
        if learner is not None:
            self._updates.append(engine_gap(learner, rows.logp_engine, fresh))
            self._gap = PlacedGap.of(learner, rows.logp_engine, rows.mask, fresh)

    def checks(self, tolerance: Tolerance) -> list[Check]:
        """Make the checks, the worst of each name; `tolerance` is the numerical noise that they may have."""
        compared = self._compare(tolerance) if self._compare else []
        return worst([*compared, *self._checks, *self._routing.checks])

    def metrics(self, generation: Metrics, tolerance: Tolerance) -> dict[str, float]:
        """Read the whole step's metrics, after those of what it generated; `tolerance` is as for the checks."""
        newest = self._expected.newest
        placed = self._gap.metrics(tolerance.engine) if self._gap else {}
        trained = {
            **batch_metrics(self._batch),
            **age_metrics(self._batch, newest),
            **reward_kl_metrics(self._batch, self._algorithm.kl),
        }
        return read(merge([generation, trained, *self._updates, placed, self._routing.metrics(newest)]))


def sampled_by(batch: Batch, version: int) -> Tensor:
    """Find the tokens [N,T] that these weights sampled; with routes only rows that are theirs from the first token on,
    for what other weights routed is replayed and was not what the engine computed later tokens on.
    """
    whole = (batch.version == version)[:, None]
    if batch.token_version is None or batch.routes_engine is not None:
        return whole.expand(batch.mask.shape)
    return batch.token_version == version


def step_row(
    step: int, metrics: Mapping[str, float], checks: Sequence[Check], seconds: Mapping[str, float]
) -> dict[str, Any]:
    """Make the step's row of metrics.jsonl, which a run that was resumed has too."""
    told = [check for check in checks if check.failed or check.invariant not in WITNESSED]
    return {"step": step, **metrics, "checks": check_table(told), "seconds": seconds}


def check_table(checks: Sequence[Check]) -> dict[str, dict[str, Any]]:
    """Make the table of checks by their names, as files have them; one that failed has its cause."""
    return {
        c.name: {"verdict": c.verdict.value, "value": c.value, "limit": c.limit}
        | ({"cause": c.cause} if c.failed else {})
        for c in checks
    }


#: The kind of work that a phase of a run's clock is; what is not here is no part of a step.
WORK = {
    "generate": "sampling",
    "score": "scoring",
    "annotate": "training",
    "update": "training",
    "check": "checking",
    "load weights": "loading",
    "wait": "waiting",
    "journal": "writing",
}


def timeline(phases: Mapping[str, Extent], beside: Mapping[str, Extent]) -> dict[str, dict[str, float]]:
    """Tell when each kind of work began and ended: {kind: {"begin", "end"}}, seconds from the step's beginning.

    phases  of the run's own clock, of which some belong to the step
    beside  of the batch that was sampled ahead meanwhile

    >>> timeline({"update": Extent(5.0, 7.0), "save": Extent(1.0, 2.0)}, beside={"generate": Extent(5.5, 9.0)})
    {'training': {'begin': 0.0, 'end': 2.0}, 'sampling': {'begin': 0.5, 'end': 4.0}}
    """
    own = [(WORK[phase], extent) for phase, extent in phases.items() if phase in WORK]
    every = [*own, *((WORK[phase], extent) for phase, extent in beside.items() if phase in WORK)]
    start = min((extent.begin for _, extent in own), default=0.0)
    work: dict[str, dict[str, float]] = {}
    for kind, extent in every:
        so_far = work.setdefault(kind, {"begin": math.inf, "end": -math.inf})
        so_far["begin"] = min(so_far["begin"], round(extent.begin - start, 6))
        so_far["end"] = max(so_far["end"], round(extent.end - start, 6))
    return work
