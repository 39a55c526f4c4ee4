"""The whole method on one page: generate, train, load, save, evaluate, of objects that are built."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from groupwise.core.collate import collate, minibatches
from groupwise.core.numbers.metrics import read
from groupwise.core.numbers.seeds import stream
from groupwise.core.processes.stop import Stopped
from groupwise.core.records import Batch
from groupwise.core.stream import RolloutResult
from groupwise.diagnostics.checks import collapse_ahead, require_scores, require_signal
from groupwise.diagnostics.groups import generation_metrics
from groupwise.diagnostics.step import Expected, StepLog, step_row
from groupwise.diagnostics.updates import supervised_update
from groupwise.journal.per_token import PerToken
from groupwise.training.run import (
    Training,
    believed,
    machine_work,
    probed,
    renew_reference,
    report,
    require_finite,
    say_how_long_a_stop_takes,
    taught,
    witnessed,
)
from groupwise.training.settings import Guard, RunSettings


def train(run: Training) -> bool:
    """Go on after `run.progress.step` to the end. False if a person asked to stop first: the state is saved then.

    Raises RunError if early warnings of collapse stop the run; the state is saved then too.
    """
    settings = run.settings
    if run.progress.step == 0 or run.progress.owes_evaluation:
        evaluate(run)
    if run.stop.asked:
        return False  # nothing has changed since the checkpoint, or since the start
    if run.progress.step == 0 and settings.guard is Guard.ROLLBACK:
        run.save()
    first = run.progress.step + 1
    while run.progress.step < settings.steps:
        run.progress.step = step = run.progress.step + 1
        row, machine = supervised_step(run) if settings.supervised_alone else train_step(run)
        run.output.step(row, machine)
        if step == first:
            say_how_long_a_stop_takes(run, row["seconds"])
        last = step == settings.steps
        alarms = () if last or settings.guard is Guard.WARN else run.output.alarms()
        back = run.way_back() if alarms and run.may_go_back else None
        if back is None and (last or (settings.evaluation.every and step % settings.evaluation.every == 0)):
            evaluate(run)
        run.after_step(step)
        due = last or alarms or step % settings.checkpoint.every == 0
        if back is not None:
            run.roll_back(back, alarms)
        elif due:
            saved = run.save()
            if alarms:
                raise collapse_ahead(step, alarms, saved, run.way_back(), run.progress.rollbacks)
        if run.stop.asked and not last:
            if back is None and not due:
                run.save()
            return False
    return not run.progress.owes_evaluation


def train_step(run: Training) -> tuple[dict[str, Any], dict[str, Any]]:
    """Make one step, prompts -> groups -> batch -> updates -> weights; its rows of metrics.jsonl and machine.jsonl."""
    parts, step, phase = run.components, run.progress.step, run.clock.phase
    stream_before, updates_before = parts.batches.state, parts.state.updates
    with phase("generate"):
        sampled = parts.batches.take(run.settings.prompts_per_step, run.clock.switch)
    result = sampled.result
    run.output.faults(step, sampled.faults)
    require_scores(step, result, run.settings.scoring.fault_limit, run.output.log, parts.state.kept)
    require_signal(step, result, parts.algorithm.filter.metric, parts.state.kept)
    if step < run.settings.steps:
        parts.batches.begin(run.settings.prompts_per_step)
    if run.settings.engine_sleeps:
        with phase("sleep"):
            parts.engine.sleep()
    with phase("annotate"):
        batch = annotate(run, result)
    with phase("check"):
        parts.witness.begin(step, result, batch)
    first = step == run.settings.waiting_steps + 1
    expected = Expected(
        newest=step - 1,
        at_start=first,
        old_from_engine=run.settings.old_from_engine,
        other_reference=parts.other_reference,
    )
    log = StepLog(batch, parts.algorithm, parts.learner.routing.replay, parts.learner.routers, expected)
    columns = run.output.columns(batch)
    with phase("update"):
        for minibatch in map(parts.algorithm.weigh, passes(batch, run.settings, step)):
            require_finite(run, update(run, minibatch, log, columns), stream_before, updates_before)
    with phase("check"):
        checks = believed(run, log, result)
    if parts.batches.sampling:
        with phase("wait"):
            parts.batches.finish()
    with phase("load weights"):
        parts.engine.load_weights(parts.learner.weights(), version=step)
        renew_reference(run)
    with phase("check"):
        checks.append(probed(run))
    with phase("journal"):
        run.output.rollouts(step, result, batch, columns)
        report(run, result, batch, checks)
        generation = generation_metrics(sampled, parts.rollout.measure, parts.rollout.tools)
        metrics = log.metrics(generation, parts.limits.tolerance)
    if run.settings.guard is Guard.ROLLBACK:
        metrics["rollbacks"] = len(run.progress.rollbacks)
    return step_row(step, metrics, checks, run.end_step()), machine_work(run, checks, sampled)


def supervised_step(run: Training) -> tuple[dict[str, Any], dict[str, Any]]:
    """Make one step of supervised rows alone, rows -> update; its rows of metrics.jsonl and machine.jsonl."""
    parts, step, updates_before = run.components, run.progress.step, run.components.state.updates
    with run.clock.phase("update"):
        result = parts.learner.update(None, parts.algorithm, taught(run))
    require_finite(run, result.applied, parts.batches.state, updates_before)
    return step_row(step, read(supervised_update(result)), [], run.end_step()), machine_work(run)


def annotate(run: Training, result: RolloutResult) -> Batch:
    """Make the batch, with frozen log-probabilities and values that something reads, rewards and advantages."""
    settings, parts, algorithm = run.settings, run.components, run.components.algorithm
    rewards = parts.rollout.scorer.rewards
    batch = collate(
        result.groups,
        parts.pad,
        mask_truncated=algorithm.filter.mask_truncated,
        steps=algorithm.needs_steps,
        states=algorithm.advantage.reads_states,
        reward_names=tuple(rewards.training) if rewards.each else (),
    )
    old = (settings.updates_per_step > 1 or algorithm.needs_old) and not settings.old_from_engine
    batch = parts.annotate(batch, result.groups, old)
    if settings.old_from_engine:
        batch = batch.add(logp_old=batch.logp_engine)
    if parts.critic is not None:
        batch = batch.add(value=parts.critic.values(batch))
    return algorithm.credit(batch, tuple(rewards.training.values()) if rewards.each else None)


def passes(batch: Batch, settings: RunSettings, step: int) -> Iterator[Batch]:
    """Split the batch into the minibatches of every pass, each pass in an order of its own."""
    for number in range(settings.passes_per_batch or 1):
        yield from minibatches(batch, settings.updates_per_batch, stream(settings.seed, "minibatches", step, number))


def update(run: Training, minibatch: Batch, log: StepLog, columns: PerToken) -> bool:
    """Update critic and policy once; whether both updates were applied, as finite ones are."""
    parts, applied = run.components, True
    with run.clock.phase("check"):
        parts.witness.minibatch(minibatch)
    if parts.critic is not None:
        metrics = parts.critic.update(minibatch)
        parts.witness.critic_updated(minibatch, metrics)
        applied = metrics["critic_updates_skipped"].read() == 0
        log.critic_updated(metrics)
    if run.progress.step <= run.settings.waiting_steps:
        log.policy_waited()
        return applied
    result = parts.learner.update(minibatch, parts.algorithm, taught(run))
    with run.clock.phase("check"):
        parts.witness.updated(minibatch, result)
    with run.clock.phase("journal"):
        log.policy_updated(minibatch, result)
        if result.seen is not None:
            columns.update(minibatch, result.seen)
    return applied and result.applied


def evaluate(run: Training) -> None:
    """Sample the held-out problems under the engine's current weights, and measure held-out rows, if the run has any.

    An evaluation is left when a person asks to stop, and made again when the run is resumed; ranks that score together
    cannot be left in the middle of it.
    """
    parts = run.components
    if parts.evaluate is None:
        return
    run.progress.owes_evaluation = True
    with suppress(Stopped):
        with (
            run.clock.phase("evaluate"),
            run.stop.leaving(when=parts.learner.mesh.alone or not (parts.rollout.judge or parts.supervised)),
        ):
            evaluation, groups = parts.evaluated(run.progress.step)
        run.output.evaluation(run.progress.step, evaluation, groups, run.clock.lap())
        witnessed(run, groups)
        run.progress.owes_evaluation = False
