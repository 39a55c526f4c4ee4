"""Gathers what a step's updates say of its routes, for the metrics and for the run's own checks."""

from collections.abc import Sequence

import torch

from groupwise.core.numbers.metrics import Max, Metrics, Value
from groupwise.core.records import Batch, RoutingRecord, UpdateRecord
from groupwise.diagnostics.checks import Check, replayed_are_used
from groupwise.models.moe.metrics import (
    at_trained,
    difference,
    drift_metrics,
    engine_metrics,
    load_metrics,
    replay_metrics,
)
from groupwise.models.moe.record import Router, RowRoutes
from groupwise.models.moe.settings import ReplayFrom


class RoutingLog:
    """Of one batch while it trains. For a dense policy it says nothing."""

    def __init__(self, batch: Batch, replay: ReplayFrom, routers: Sequence[Router]) -> None:
        self._replay, self._experts = replay, [router.experts for router in routers]
        # The rows of which the old policy's own choice is known, and the choice.
        self._of, self._own = batch, own_of(batch, replay)
        self._updates = 0
        self.checks: list[Check] = []

    def update(self, minibatch: Batch, seen: UpdateRecord) -> Metrics:
        """The metrics of the next update on the batch."""
        if seen.routing is None:
            return {}
        self._updates += 1
        if self._own is None:  # the first update's policy is the old one
            self._of, self._own = minibatch, seen.routing.own
        used = used_metrics(minibatch, seen.routing, self._replay)
        if self._replay is not ReplayFrom.NONE:
            self.checks.append(replayed_are_used(max(value.read() for value in used.values())))
        drift = self._drift(minibatch, seen, seen.routing)
        return {**used, **drift, **_removed(minibatch, seen.routing, self._replay)}

    def metrics(self, newest: int) -> Metrics:
        """Of the whole batch, once it has trained; `newest` is the version of the weights that sampled it."""
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
    """What the routers would have chosen under the old policy; None where no pass says so."""
    return batch.routes_own if replay is ReplayFrom.ENGINE else batch.routes


def used_metrics(minibatch: Batch, routing: RoutingRecord, replay: ReplayFrom) -> dict[str, Value]:
    """Of the experts that computed in an update: the share that the old policy's pass, or the engine, did not use."""
    changed: dict[str, Value] = {}
    if minibatch.routes is not None:
        changed["routing.used_changed"] = Max(difference(routing.used, minibatch.routes))
    if replay is ReplayFrom.ENGINE and minibatch.routes_engine is not None:
        changed["routing.used_engine_changed"] = Max(difference(routing.used, minibatch.routes_engine))
    return changed


def _removed(minibatch: Batch, routing: RoutingRecord, replay: ReplayFrom) -> dict[str, Value]:
    if replay is ReplayFrom.NONE or minibatch.routes is None:
        return {}
    own, replayed = (at_trained(rows, minibatch.mask) for rows in (routing.own, minibatch.routes))
    return replay_metrics(own, replayed, routing.live)
