"""What one step says about itself, gathered while it trains: metrics, and the checks that its updates allow."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from groupwise.algorithms.algorithm import Algorithm
from groupwise.core.numbers.metrics import Mean, Metrics, Sum, merge, read
from groupwise.core.records import Batch, UpdateRecord, UpdateResult
from groupwise.diagnostics.checks import (
    Check,
    learner_equals_engine,
    live_equals_old,
    nothing_ran,
    reference_is_start,
    weights_reach_total,
    worst,
)
from groupwise.diagnostics.routing import RoutingLog
from groupwise.diagnostics.tolerance import Tolerance
from groupwise.diagnostics.updates import (
    age_metrics,
    batch_metrics,
    engine_gap,
    reward_kl_metrics,
    update_metrics,
    value_metrics,
)
from groupwise.health.checks import LEARNER_IS_ENGINE, LIVE_IS_OLD, REFERENCE_IS_START
from groupwise.models.moe.metrics import comparable
from groupwise.models.moe.record import Router
from groupwise.models.moe.settings import ReplayFrom


@dataclass(frozen=True)
class Expected:
    """What must hold of a batch's first update.

    newest           the version of the weights that are trained, before the update
    at_start         whether these are the starting policy's
    old_from_engine  whether logp_old is the engine's, so that the learner's own is not measured
    other_reference  why the reference is not the starting policy, on purpose; "" where it is
    """

    newest: int
    at_start: bool
    old_from_engine: bool
    other_reference: str = ""


class StepLog:
    """Of one batch: gathers what each update on it gives, and makes the step's metrics and checks of it at the end."""

    def __init__(
        self, batch: Batch, algorithm: Algorithm, replay: ReplayFrom, routers: Sequence[Router], expected: Expected
    ) -> None:
        """`replay` and `routers` are the learner's: whose experts the updates run on, and what chooses them."""
        self._batch, self._algorithm, self._expected = batch, algorithm, expected
        self._routing = RoutingLog(batch, replay, routers)
        self._updates: list[Metrics] = [] if batch.value is None else [value_metrics(batch)]
        self._compare: Callable[[Tolerance], list[Check]] | None = None
        self._checks: list[Check] = []

    def critic_updated(self, metrics: Metrics) -> None:
        """The critic has learned from a minibatch."""
        self._updates.append(metrics)

    def policy_waited(self) -> None:
        """The critic learns alone, and the policy had no update on the minibatch: no number where there is one else."""
        self._updates.append({"updates": Sum(0), "updates_skipped": Sum(0), "share_passed": Mean(0.0, 0.0)})

    def policy_updated(self, minibatch: Batch, update: UpdateResult) -> None:
        """The policy had an update on the minibatch; the first on a batch is the one that checks can be made of."""
        if self._compare is None:
            self._first_update(minibatch, update.seen)
        self._checks.append(weights_reach_total(minibatch.need("weight"), minibatch.mask, self._algorithm.aggregate))
        self._updates.append(update_metrics(minibatch, update))
        if update.seen is not None:
            self._updates.append(self._routing.update(minibatch, update.seen))

    def _first_update(self, minibatch: Batch, seen: UpdateRecord | None) -> None:
        """What the live log-probabilities [n,T] of the first update on a batch must equal, and the engine's gap."""
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

    def checks(self, tolerance: Tolerance) -> list[Check]:
        """One of each name, the worst; `tolerance` is what rounding may do."""
        compared = self._compare(tolerance) if self._compare else []
        return worst([*compared, *self._checks, *self._routing.checks])

    def metrics(self, generation: Metrics) -> dict[str, float]:
        """The whole step's, after those of what it generated."""
        newest = self._expected.newest
        trained = {
            **batch_metrics(self._batch),
            **age_metrics(self._batch, newest),
            **reward_kl_metrics(self._batch, self._algorithm.kl),
        }
        return read(merge([generation, trained, *self._updates, self._routing.metrics(newest)]))


def sampled_by(batch: Batch, version: int) -> Tensor:
    """[N,T] bool, the tokens that these weights sampled; with routes only rows that are theirs from the first token on,
    for what other weights routed is replayed and was not what the engine computed later tokens on.
    """
    whole = (batch.version == version)[:, None]
    if batch.token_version is None or batch.routes_engine is not None:
        return whole.expand(batch.mask.shape)
    return batch.token_version == version


def step_row(
    step: int, metrics: Mapping[str, float], checks: Sequence[Check], seconds: Mapping[str, float]
) -> dict[str, Any]:
    """The step's row of metrics.jsonl."""
    measured = {c.name: {"verdict": c.verdict.value, "value": c.value, "limit": c.limit} for c in checks}
    return {"step": step, **metrics, "checks": measured, "seconds": seconds}
