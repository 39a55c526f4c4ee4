"""The whole method on one page. It takes built objects, never configuration."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from groupwise.algorithms.algorithm import Algorithm
from groupwise.algorithms.parts.filters import Signal, signal
from groupwise.core.clock import BEFORE, Clock
from groupwise.core.collate import collate, minibatches
from groupwise.core.engine import Engine
from groupwise.core.errors import RunError
from groupwise.core.metrics import Last, Metrics, Sum, merge, read
from groupwise.core.records import Batch, Evaluation, RolloutResult, StreamState, UpdateRecord
from groupwise.core.seeds import stream
from groupwise.diagnostics.checks import (
    Check,
    Probe,
    Verdict,
    demand,
    learner_equals_engine,
    live_equals_old,
    reference_is_start,
    weights_reach_total,
)
from groupwise.diagnostics.routing import RoutingLog
from groupwise.diagnostics.updates import (
    batch_metrics,
    engine_gap,
    group_metrics,
    in_words,
    reward_kl_metrics,
    value_metrics,
    waiting_metrics,
)
from groupwise.health.watch import Watch
from groupwise.journal.journal import LOG, Journal
from groupwise.journal.per_token import PerToken
from groupwise.journal.rollout_rows import Spell
from groupwise.journal.terminal import View
from groupwise.models.moe.metrics import comparable
from groupwise.rollout.collect import Rollout
from groupwise.training.critic import Critic
from groupwise.training.learner import Learner

#: This many optimizer updates in a row with a loss or gradient that is not finite stop the run.
MOST_SKIPPED = 3


@dataclass
class Run:
    """Everything a run is made of, built. `step` is the last one that is done; `start` is the first policy's digest."""

    folder: Path
    seed: int
    steps: int
    prompts_per_step: int
    updates_per_batch: int
    passes_per_batch: int
    evaluate_every: int
    checkpoint_every: int
    pad: int
    start: str
    bf16: bool
    algorithm: Algorithm
    rollout: Rollout
    engine: Engine
    learner: Learner
    probe: Probe
    evaluate: Callable[[], Evaluation]
    save: Callable[[Run], Path]
    journal: Journal
    view: View
    stop_asked: Callable[[], bool]
    critic: Critic | None = None
    old_from_engine: bool = False
    fault_limit: float = 0.0
    spell: Spell | None = None
    token_budget: int = 0
    clock: Clock = field(default_factory=Clock)
    watch: Watch = field(default_factory=Watch)
    step: int = 0
    step_began: tuple[StreamState, int, int] = (StreamState(), 0, 0)
    skipped_in_a_row: int = 0
    seconds_before: float = 0.0
    seconds_training: float = 0.0

    @property
    def waiting_steps(self) -> int:
        """The first steps, in which the critic learns and the policy waits."""
        return 0 if self.critic is None else self.critic.settings.warmup_steps


def train(run: Run) -> bool:
    """Go on from `run.step` to the end. False where a person asked to stop first: the state is saved then."""
    if run.step == 0:
        evaluation(run)
    while run.step < run.steps:
        run.step += 1
        row = train_step(run)
        run.journal.metrics(row)
        run.journal.machine(run.step)
        run.view.step(row)
        warn(run, row)
        last = run.step == run.steps
        if last or (run.evaluate_every and run.step % run.evaluate_every == 0):
            evaluation(run)
        stop = run.stop_asked()
        if last or stop or run.step % run.checkpoint_every == 0:
            run.clock.switch("save")
            run.save(run)
            run.clock.switch("other")
        if stop and not last:
            return False
    return True


def train_step(run: Run) -> dict[str, Any]:
    """Prompts -> groups -> batch -> updates -> weights back to the engine; the step's row of metrics.jsonl."""
    run.clock.switch("generate")
    run.step_began = run.rollout.state, run.learner.updates, run.critic.updates if run.critic else 0
    harvest = run.rollout.collect(run.prompts_per_step, run.clock.switch)
    demand_scores(run, harvest)
    demand_signal(run, harvest)
    run.clock.switch("annotate")
    row = run.algorithm
    mix = run.rollout.scorer.mix
    kept = {"mask_truncated": row.filter.mask_truncated, "steps": row.needs_steps}
    batch = collate(harvest.groups, run.pad, parts=tuple(mix.weights) if mix.each else (), **kept)
    batch = prepare(run, batch)
    run.clock.switch("update")
    tokens = PerToken(batch, run.token_budget)
    updates, checks = update(run, batch, tokens)
    run.clock.switch("load weights")
    run.engine.load_weights(run.learner.model.named_parameters(), version=run.step)
    run.clock.switch("check")
    checks.append(run.probe())
    run.clock.switch("journal")
    run.journal.rollouts(run.step, harvest, batch, tokens, run.spell)
    report(run, checks, harvest)
    trained = {**batch_metrics(batch), **reward_kl_metrics(batch, row.kl)}
    told = [group_metrics(harvest.generated), harvest_metrics(harvest), level_metrics(run.rollout.state)]
    if run.rollout.scorer.pool is not None:
        told.append({"scoring_seconds": Sum(run.rollout.scorer.take_seconds())})
    metrics = merge([*told, trained, *updates])
    return finish_row(run, metrics, checks)


def prepare(run: Run, batch: Batch) -> Batch:
    """Frozen log-probabilities and values, only where something reads them, then rewards and advantages."""
    several = run.updates_per_batch * run.passes_per_batch > 1
    old = (several or run.algorithm.needs_old) and not run.old_from_engine
    batch = run.learner.annotate(batch, old=old, ref=run.algorithm.needs_reference)
    if run.old_from_engine:
        batch = batch.add(logp_old=batch.logp_engine)
    if run.critic is not None:
        batch = batch.add(value=run.critic.values(batch))
    mix = run.rollout.scorer.mix
    return run.algorithm.credit(batch, tuple(mix.weights.values()) if mix.each else None)


def update(run: Run, batch: Batch, tokens: PerToken) -> tuple[list[Metrics], list[Check]]:
    """Every optimizer update on the batch, each told to `tokens`; and the checks that the policy's first one allows."""
    metrics: list[Metrics] = [] if run.critic is None else [value_metrics(batch)]
    checks: list[Check] = []
    routes = RoutingLog(batch, run.learner.routing.replay, run.learner.routers)
    for minibatch in passes(run, batch):
        minibatch = run.algorithm.weigh(minibatch)
        applied = True
        if run.critic is not None:
            metrics.append(run.critic.update(minibatch))
            applied = metrics[-1]["critic_updates_skipped"].read() == 0
        if run.step <= run.waiting_steps:
            metrics.append(waiting_metrics())
        else:
            done = run.learner.update(minibatch, run.algorithm)
            applied = applied and done.applied
            if not checks:
                checks, gap = first_checks(run, batch, minibatch, done.seen)
                metrics.append(gap)
            checks.append(weights_reach_total(minibatch.need("weight"), minibatch.mask, run.algorithm.aggregate))  # type: ignore[arg-type]
            metrics.append(done.metrics)
            run.clock.switch("journal")
            tokens.update(minibatch, done.seen)
            metrics.append(routes.update(minibatch, done.seen))
            run.clock.switch("update")
        count_skipped(run, applied)
    metrics.append(routes.metrics(run.step - 1))
    return metrics, worst([*checks, *routes.checks])


def first_checks(run: Run, batch: Batch, minibatch: Batch, seen: UpdateRecord) -> tuple[list[Check], Metrics]:
    """What the live log-probabilities [n,T] of the first update on a batch must equal, and the engine's gap."""
    first, used = seen.logp_live, seen.routed and seen.routed.used
    measured = None if run.old_from_engine else batch.logp_old
    logp, rows, routes = (first, minibatch, used) if measured is None else (measured, batch, batch.routes)
    start = first if run.step == run.waiting_steps + 1 else None
    before = minibatch.routes, minibatch.routes_own or minibatch.routes
    old, own = (comparable(minibatch.mask, used, other) for other in before)
    fresh = rows.mask & (rows.version == run.step - 1)[:, None]
    sampled = dataclasses.replace(rows, mask=comparable(fresh, routes, rows.routes_engine))
    checks = [
        live_equals_old(first, None if measured is None else minibatch.logp_old, old, run.bf16),
        learner_equals_engine(logp, sampled, run.step - 1, run.bf16),
        reference_is_start(minibatch.logp_ref, start, own, run.bf16),
    ]
    return checks, engine_gap(logp, rows, run.step - 1)


def passes(run: Run, batch: Batch) -> Iterator[Batch]:
    """The minibatches of every pass over the batch, each pass in an order of its own."""
    for number in range(run.passes_per_batch):
        yield from minibatches(batch, run.updates_per_batch, stream(run.seed, "minibatches", run.step, number))


def worst(checks: list[Check]) -> list[Check]:
    """One check per name: a failed one before any other, then the one with the largest value."""
    by_name: dict[str, Check] = {}
    for check in checks:
        known = by_name.get(check.name)
        if known is None or _badness(check) > _badness(known):
            by_name[check.name] = check
    return list(by_name.values())


def _badness(check: Check) -> tuple[bool, float]:
    return check.verdict is Verdict.FAIL, -math.inf if math.isnan(check.value) else check.value


def count_skipped(run: Run, applied: bool) -> None:
    """Skipped updates in a row stop the run, ready to try the step again: no weight has seen what was not finite."""
    run.skipped_in_a_row = 0 if applied else run.skipped_in_a_row + 1
    if run.skipped_in_a_row >= MOST_SKIPPED:
        run.rollout.state, run.learner.updates, critic_updates = run.step_began
        rates = "learner.learning_rate"
        if run.critic is not None:
            run.critic.updates = critic_updates
            rates += " or critic.learning_rate"
        saved = run.save(dataclasses.replace(run, step=run.step - 1, skipped_in_a_row=0))
        raise RunError(
            f"step {run.step}: {MOST_SKIPPED} updates in a row had a loss or gradient that is not finite; each was "
            f"skipped, so the weights are sound. Saved for another try of this step: {saved}. If it happens again, "
            f"start a run with a lower {rates}"
        )


def demand_scores(run: Run, harvest: RolloutResult) -> None:
    """Tell each kind of scoring fault once; stop where more completions than allowed have no score."""
    for line in run.rollout.scorer.take_unshown():
        run.journal.log(f"step {run.step}: {line}")
        run.view.note(f"step {run.step}: first of its kind: {line}")
    completions = [c for g in harvest.generated for c in g.completions]
    faults = Counter(c.fault for c in completions if c.fault)
    if faults.total() > run.fault_limit * len(completions):
        told = ", ".join(f"{count} {cause}" for cause, count in faults.most_common())
        raise RunError(
            f"step {run.step}: {faults.total()} of {len(completions)} completions could not be scored ({told}), more "
            f"than scoring.fault_limit = {run.fault_limit:g} allows; {run.folder / LOG} has the first of each kind. "
            "Mend the reward, or raise scoring.deadline or the limit; the last checkpoint is kept"
        )


def demand_signal(run: Run, harvest: RolloutResult) -> None:
    """A filter that found nothing to keep within its budget ends the run, unless that is because all is solved."""
    solved = all(signal(g) is Signal.ALL_RIGHT for g in harvest.generated)
    if harvest.fallback == len(harvest.groups) and not solved:
        raise RunError(
            f"step {run.step}: {harvest.rounds} rounds gave {len(harvest.generated)} groups and not one that mixes "
            f"right and wrong completions ({in_words(harvest.generated)}). The task is too hard for this policy, or "
            "its scorer is wrong; the last checkpoint is kept"
        )


def report(run: Run, checks: list[Check], harvest: RolloutResult) -> None:
    """Tell what groups without signal mean; stop where a check failed."""
    words = in_words(harvest.generated)
    if words:
        run.journal.log(f"step {run.step}: {words}")
        run.view.note(f"step {run.step}: {words}")
    for check in checks:
        if run.step == run.waiting_steps + 1:
            run.journal.log(f"step {run.step}: {check}")
            run.view.note(f"check        {check}")
    demand(checks, run.step)


def warn(run: Run, row: dict[str, Any]) -> None:
    """Tell each early warning once, when it first becomes true."""
    for found in run.watch(row):
        line = f"step {run.step}: warning, {found.name}: {found.words} Try: {found.advice}."
        run.journal.log(line)
        run.view.note(line)


def harvest_metrics(harvest: RolloutResult) -> Metrics:
    used = {id(g) for g in (*harvest.groups, *harvest.surplus)}
    wasted = [c for g in harvest.generated if id(g) not in used for c in g.completions]
    return {
        "rounds": Sum(harvest.rounds),
        "groups_generated": Sum(len(harvest.generated)),
        "groups_dropped": Sum(harvest.dropped),
        "groups_fallback": Sum(harvest.fallback),
        "groups_surplus": Last(len(harvest.surplus)),
        "generated_tokens_dropped": Sum(sum(len(c.tokens) for c in wasted)),
    }


def level_metrics(state: StreamState) -> Metrics:
    """Where each source of a task with levels stands after the step."""
    return {f"sources.{source}.level": Last(level) for source, level in state.levels.items()}


def finish_row(run: Run, metrics: Metrics, checks: list[Check]) -> dict[str, Any]:
    seconds = run.clock.lap()
    run.seconds_training += math.fsum(value for phase, value in seconds.items() if phase not in BEFORE)
    told = {c.name: {"verdict": c.verdict.value, "value": c.value, "limit": c.limit} for c in checks}
    return {"step": run.step, **read(metrics), "checks": told, "seconds": seconds}


def evaluation(run: Run) -> None:
    """Sample the held-out problems under the engine's current weights. Its row has the seconds since the one before."""
    run.clock.switch("evaluate")
    found = run.evaluate()
    row = {"step": run.step, "evaluation": dataclasses.asdict(found), "seconds": run.clock.lap()}
    run.journal.metrics(row)
    run.view.evaluation(run.step, found)
