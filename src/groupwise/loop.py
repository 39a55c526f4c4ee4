"""The whole method on one page. It takes built objects, never configuration."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from groupwise.algorithms.algorithm import Algorithm
from groupwise.core.clock import BEFORE, Clock
from groupwise.core.collate import collate, minibatches
from groupwise.core.engine import Engine
from groupwise.core.records import Batch, Evaluation, RolloutResult
from groupwise.core.seeds import stream
from groupwise.diagnostics.checks import Check, Probe, require_passed
from groupwise.diagnostics.groups import generation_metrics, in_words
from groupwise.diagnostics.safeguards import MOST_SKIPPED, never_finite, require_scores, require_signal
from groupwise.diagnostics.step import Expected, StepLog, step_row
from groupwise.diagnostics.tolerance import Limits
from groupwise.journal.output import Output
from groupwise.journal.per_token import PerToken
from groupwise.rollout.ahead import Batches
from groupwise.rollout.collect import Rollout
from groupwise.training.critic import Critic
from groupwise.training.learner import Learner
from groupwise.training.state import Progress, RunState


@dataclass(frozen=True)
class LoopSettings:
    """What the loop itself goes by.

    evaluate_every   steps between two evaluations; 0: before and after only
    waiting_steps    the first steps, in which the critic learns and the policy waits
    old_from_engine  whether logp_old is the engine's and not measured by the learner
    fault_limit      the largest share of a step's completions that may go without a score
    pad              the id that fills up rows
    other_reference  why the reference is not the starting policy, on purpose; "" where it is
    """

    seed: int
    steps: int
    prompts_per_step: int
    updates_per_batch: int
    passes_per_batch: int
    evaluate_every: int
    checkpoint_every: int
    waiting_steps: int
    old_from_engine: bool
    fault_limit: float
    pad: int
    other_reference: str = ""


@dataclass(frozen=True)
class Components:
    """What acts in a run. `batches` are the rollout's, a step each; `limits` say what rounding may do to the checks'
    comparisons; a run without held-out problems has no `evaluate`.
    """

    algorithm: Algorithm
    rollout: Rollout
    batches: Batches
    engine: Engine
    learner: Learner
    critic: Critic | None
    probe: Probe
    limits: Limits
    evaluate: Callable[[], Evaluation] | None
    state: RunState


@dataclass
class Training:
    """A run that is built, and how far it is.

    stop_requested  whether a person, or what is called after a step, asked to stop
    after_step      called with each step that has ended, before it is saved
    """

    settings: LoopSettings
    components: Components
    output: Output
    stop_requested: Callable[[], bool]
    after_step: Callable[[int], None] = lambda step: None
    progress: Progress = field(default_factory=Progress)
    clock: Clock = field(default_factory=Clock)


def train(run: Training) -> bool:
    """Go on after `run.progress.step` to the end. False where a person asked to stop first: the state is saved then."""
    settings, progress = run.settings, run.progress
    if progress.step == 0:
        evaluate(run)
    while progress.step < settings.steps:
        progress.step += 1
        run.output.step(train_step(run))
        last = progress.step == settings.steps
        if last or (settings.evaluate_every and progress.step % settings.evaluate_every == 0):
            evaluate(run)
        run.after_step(progress.step)
        stop = run.stop_requested()
        if last or stop or progress.step % settings.checkpoint_every == 0:
            with run.clock.phase("save"):
                run.components.state.save(progress, run.components.batches.state, run.clock.total)
        if stop and not last:
            return False
    return True


def train_step(run: Training) -> dict[str, Any]:
    """Prompts -> groups -> batch -> updates -> weights back to the engine; the step's row of metrics.jsonl."""
    parts, step, phase = run.components, run.progress.step, run.clock.phase
    stream_before, updates_before = parts.batches.state, parts.state.updates
    with phase("generate"):
        sampled = parts.batches.take(run.settings.prompts_per_step, run.clock.switch)
    result = sampled.result
    run.output.faults(step, sampled.faults)
    require_scores(step, result, run.settings.fault_limit, run.output.log)
    require_signal(step, result, parts.algorithm.filter.metric)
    if step < run.settings.steps:
        parts.batches.begin(run.settings.prompts_per_step)
    with phase("annotate"):
        batch = annotate(run, result)
    first = step == run.settings.waiting_steps + 1
    expected = Expected(
        newest=step - 1,
        at_start=first,
        old_from_engine=run.settings.old_from_engine,
        other_reference=run.settings.other_reference,
    )
    log = StepLog(batch, parts.algorithm, parts.learner.routing.replay, parts.learner.routers, expected)
    columns = run.output.columns(batch)
    with phase("update"):
        for minibatch in map(parts.algorithm.weigh, passes(batch, run.settings, step)):
            if run.progress.count(update(run, minibatch, log, columns)) >= MOST_SKIPPED:
                before = dataclasses.replace(run.progress, step=step - 1, skipped_in_a_row=0)
                saved = parts.state.save(before, stream_before, run.clock.total, updates_before)
                raise never_finite(step, saved, has_critic=parts.critic is not None)
    with phase("check"):
        checks = believed(run, log, result)
    with phase("generate"):
        parts.batches.finish()
    with phase("load weights"):
        parts.engine.load_weights(parts.learner.weights(), version=step)
        renew_reference(run)
    with phase("check"):
        checks.append(probed(run, result))
    with phase("journal"):
        run.output.rollouts(step, result, batch, columns)
        report(run, result, checks)
        metrics = log.metrics(generation_metrics(sampled, parts.rollout.measure))
    seconds = run.clock.lap()
    run.progress.seconds_training += math.fsum(value for name, value in seconds.items() if name not in BEFORE)
    return step_row(step, metrics, checks, seconds)


def renew_reference(run: Training) -> None:
    """The reference becomes the policy of today, after each step that it is renewed after."""
    reference, step = run.components.state.reference, run.progress.step
    if reference is not None and reference.renew(step, run.components.learner.weights()):
        run.output.say(step, "the reference is the policy after this step")


def annotate(run: Training, result: RolloutResult) -> Batch:
    """The batch with frozen log-probabilities and values, only where something reads them; rewards and advantages."""
    settings, parts, algorithm = run.settings, run.components, run.components.algorithm
    mix = parts.rollout.scorer.mix
    batch = collate(
        result.groups,
        settings.pad,
        mask_truncated=algorithm.filter.mask_truncated,
        steps=algorithm.needs_steps,
        reward_names=tuple(mix.weights) if mix.each else (),
    )
    several = settings.updates_per_batch * settings.passes_per_batch > 1
    old = (several or algorithm.needs_old) and not settings.old_from_engine
    batch = parts.learner.annotate(batch, old=old, ref=algorithm.needs_reference)
    if settings.old_from_engine:
        batch = batch.add(logp_old=batch.logp_engine)
    if parts.critic is not None:
        batch = batch.add(value=parts.critic.values(batch))
    return algorithm.credit(batch, tuple(mix.weights.values()) if mix.each else None)


def passes(batch: Batch, settings: LoopSettings, step: int) -> Iterator[Batch]:
    """The minibatches of every pass over the batch, each pass in an order of its own."""
    for number in range(settings.passes_per_batch):
        yield from minibatches(batch, settings.updates_per_batch, stream(settings.seed, "minibatches", step, number))


def update(run: Training, minibatch: Batch, log: StepLog, columns: PerToken) -> bool:
    """One optimizer update of critic and policy -> whether both were applied, as finite ones are."""
    parts, applied = run.components, True
    if parts.critic is not None:
        metrics = parts.critic.update(minibatch)
        applied = metrics["critic_updates_skipped"].read() == 0
        log.critic_updated(metrics)
    if run.progress.step <= run.settings.waiting_steps:
        log.policy_waited()
        return applied
    result = parts.learner.update(minibatch, parts.algorithm)
    with run.clock.phase("journal"):
        log.policy_updated(minibatch, result)
        columns.update(minibatch, result.seen)
    return applied and result.applied


def believed(run: Training, log: StepLog, result: RolloutResult) -> list[Check]:
    """The step's checks; where one fails, under what rounding does to the policy of today."""
    limits = run.components.limits
    checks = log.checks(limits.tolerance)
    if any(check.failed for check in checks) and measured_again(run, result):
        checks = log.checks(limits.tolerance)
    return checks


def probed(run: Training, result: RolloutResult) -> Check:
    """Whether the engine has the learner's weights; where it seems not to, the same holds."""
    probe = run.components.probe
    probe.ask()
    check = probe.judge()
    return probe.judge() if check.failed and measured_again(run, result) else check


def measured_again(run: Training, result: RolloutResult) -> bool:
    """Measure rounding on the step's completions, and say so -> whether the limits are wider than they were."""
    limits = run.components.limits
    wider = limits.measure_again(result.groups)
    for line in limits.tolerance.lines() if wider else ():
        run.output.say(run.progress.step, f"tolerance measured again: {line}")
    return wider


def report(run: Training, result: RolloutResult, checks: list[Check]) -> None:
    """Say what groups without signal mean, and the checks once; stop where one failed."""
    step = run.progress.step
    if words := in_words(result.generated, run.components.rollout.by_score):
        run.output.say(step, words)
    if step == run.settings.waiting_steps + 1:
        run.output.checks(step, checks)
    require_passed(checks, step)


def evaluate(run: Training) -> None:
    """Sample the held-out problems under the engine's current weights, where the run has any."""
    if run.components.evaluate is None:
        return
    with run.clock.phase("evaluate"):
        evaluation = run.components.evaluate()
    run.output.evaluation(run.progress.step, evaluation, run.clock.lap())
