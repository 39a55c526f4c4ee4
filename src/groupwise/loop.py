"""The whole method on one page. It takes built objects, never configuration."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from groupwise.algorithms.algorithm import Algorithm
from groupwise.core.clock import BEFORE, LOST, Clock
from groupwise.core.collate import collate, minibatches
from groupwise.core.engine import Engine
from groupwise.core.records import Batch, Evaluation, Group
from groupwise.core.seeds import stream
from groupwise.core.stop import Stop, Stopped
from groupwise.core.stream import RolloutResult, Sampled
from groupwise.diagnostics.checks import Check, CheckSettings, Probe, no_older, not_asked, require_passed
from groupwise.diagnostics.groups import generation_metrics, in_words
from groupwise.diagnostics.safeguards import MOST_SKIPPED, collapse_ahead, never_finite, require_scores, require_signal
from groupwise.diagnostics.step import Expected, StepLog, step_row
from groupwise.diagnostics.timeline import timeline
from groupwise.diagnostics.tolerance import Limits
from groupwise.health.symptoms.base import Finding
from groupwise.journal.output import Output
from groupwise.journal.per_token import PerToken
from groupwise.rollout.ahead import Batches
from groupwise.rollout.collect import Rollout
from groupwise.rollout.free import FreeBatches
from groupwise.training.critic import Critic
from groupwise.training.learner import Learner
from groupwise.training.rollback import Guard, Rollback, RollbackSettings
from groupwise.training.state import Progress, RunState

#: Seconds that a stop takes without its being said.
PATIENCE = 10.0


@dataclass(frozen=True)
class LoopSettings:
    """What the loop itself goes by.

    evaluate_every   steps between two evaluations; 0: before and after only
    waiting_steps    the first steps, in which the critic learns and the policy waits
    old_from_engine  whether logp_old is the engine's and not measured by the learner
    fault_limit      the largest share of a step's completions that may go without a score
    pad              the id that fills up rows
    guard            what an early warning of collapse does
    rollback         how a run goes back, where that is it
    other_reference  why the reference is not the starting policy, on purpose; "" where it is
    most_age         versions that a sampled token may be older than the weights that train on it
    free             whether that holds of groups that waited for a step, too
    checks           how often the probe is asked
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
    guard: Guard = Guard.WARN
    rollback: RollbackSettings = RollbackSettings()
    other_reference: str = ""
    most_age: int = 0
    free: bool = False
    checks: CheckSettings = CheckSettings()


@dataclass(frozen=True)
class Components:
    """What acts in a run. `batches` are the rollout's, a step each; `limits` say what rounding may do to the checks'
    comparisons; a run without held-out problems has no `evaluate`.
    """

    algorithm: Algorithm
    rollout: Rollout
    batches: Batches | FreeBatches
    engine: Engine
    learner: Learner
    critic: Critic | None
    probe: Probe
    limits: Limits
    evaluate: Callable[[], tuple[Evaluation, Sequence[Group]]] | None
    state: RunState


@dataclass
class Training:
    """A run that is built, and how far it is.

    stop        whether a person, or what is called after a step, asked to stop
    after_step  called with each step that has ended, before it is saved
    """

    settings: LoopSettings
    components: Components
    output: Output
    stop: Stop
    after_step: Callable[[int], None] = lambda step: None
    progress: Progress = field(default_factory=Progress)
    clock: Clock = field(default_factory=Clock)


def train(run: Training) -> bool:
    """Go on after `run.progress.step` to the end. False where a person asked to stop first: the state is saved then.

    Raises RunError where early warnings of collapse stop the run; the state is saved then too.
    """
    settings = run.settings
    if run.progress.step == 0 or run.progress.owes_evaluation:
        evaluate(run)
    if run.stop.asked:
        return False  # nothing has changed since the checkpoint, or since the start
    if run.progress.step == 0 and settings.guard is Guard.ROLLBACK:
        save(run)
    first = run.progress.step + 1
    while run.progress.step < settings.steps:
        run.progress.step = step = run.progress.step + 1
        row, machine = train_step(run)
        run.output.step(row, machine)
        if step == first:
            say_how_long_a_stop_takes(run, row["seconds"])
        last = step == settings.steps
        alarms = () if last or settings.guard is Guard.WARN else run.output.alarms()
        back = way_back(run) if alarms and may_go_back(run) else None
        if back is None and (last or (settings.evaluate_every and step % settings.evaluate_every == 0)):
            evaluate(run)
        run.after_step(step)
        due = last or alarms or step % settings.checkpoint_every == 0
        if back is not None:
            roll_back(run, back, alarms)
        elif due:
            saved = save(run)
            if alarms:
                raise collapse_ahead(step, alarms, saved, way_back(run), run.progress.rollbacks)
        if run.stop.asked and not last:
            if back is None and not due:
                save(run)
            return False
    return not run.progress.owes_evaluation


def say_how_long_a_stop_takes(run: Training, seconds: Mapping[str, float]) -> None:
    """A line where a step is long: a stop waits for its end, and what ends runs by a signal may not."""
    step = math.fsum(value for name, value in seconds.items() if name not in BEFORE)
    if step > PATIENCE:
        run.output.say(
            run.progress.step,
            f"a step takes {step:.0f} s, and Ctrl-C or SIGTERM waits for its end; a kill before that would lose what "
            f"came after the last checkpoint (checkpoint.every = {run.settings.checkpoint_every})",
        )


def save(run: Training) -> Path:
    """A checkpoint of the run as it is."""
    with run.clock.phase("save"):
        return run.components.state.save(run.progress, run.components.batches.state, run.clock.total)


def way_back(run: Training) -> Path | None:
    """The checkpoint to go back to from warnings of this step."""
    return run.components.state.way_back(run.progress, run.settings.checkpoint_every)


def may_go_back(run: Training) -> bool:
    """Whether the guard returns the run to a checkpoint, and has not done so too often."""
    return run.settings.guard is Guard.ROLLBACK and len(run.progress.rollbacks) < run.settings.rollback.most


def roll_back(run: Training, folder: Path, alarms: Sequence[Finding]) -> None:
    """Go on from an earlier checkpoint with a smaller learning rate, and with the same problems and random numbers.

    Later checkpoints are removed, then this one is saved again with the return in it, then rows are taken out: killed
    at any moment of this, a run is resumed from before the return, which it will make again, or from after it.
    """
    parts, at, most = run.components, run.progress.step, run.settings.rollback.most
    to = int(folder.name.rpartition("-")[2])
    rollback = Rollback(
        from_step=at, to_step=to, warnings=[a.name for a in alarms], rate_factor=run.settings.rollback.rate_factor
    )
    rollbacks = (*run.progress.rollbacks, rollback)
    seconds_before = run.progress.seconds_before
    with run.clock.phase("load weights"):
        put_back(run, folder, rollbacks)
    run.progress.seconds_before = seconds_before  # this process goes on
    parts.state.remove_after(to)
    save(run)
    run.clock.add(LOST, run.output.cut_back(to))
    run.output.rolled_back([one.model_dump() for one in rollbacks])
    names = ", ".join(rollback.warnings)
    run.output.say(
        at,
        f"early warning of collapse ({names}): back to step {to}, return {len(rollbacks)} of at most {most}; the "
        f"learning rate is {run.progress.rate_factor:.3g} times the recipe's",
    )


def put_back(run: Training, folder: Path, rollbacks: Sequence[Rollback] | None = None) -> None:
    """A built run is put where a checkpoint left it, bit for bit; `rollbacks` are its returns where this is one."""
    parts = run.components
    run.progress, parts.batches.state = parts.state.restore(folder, rollbacks)
    parts.learner.optimizer.factor = run.progress.rate_factor
    parts.engine.load_weights(parts.learner.weights(), version=run.progress.step)
    parts.probe.restart()


def train_step(run: Training) -> tuple[dict[str, Any], dict[str, Any]]:
    """Prompts -> groups -> batch -> updates -> weights back to the engine; the step's rows of metrics.jsonl and
    machine.jsonl.
    """
    parts, step, phase = run.components, run.progress.step, run.clock.phase
    stream_before, updates_before = parts.batches.state, parts.state.updates
    with phase("generate"):
        sampled = parts.batches.take(run.settings.prompts_per_step, run.clock.switch)
    result = sampled.result
    run.output.faults(step, sampled.faults)
    require_scores(step, result, run.settings.fault_limit, run.output.log, parts.state.kept)
    require_signal(step, result, parts.algorithm.filter.metric, parts.state.kept)
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
    if parts.batches.sampling:
        with phase("wait"):
            parts.batches.finish()
    with phase("load weights"):
        parts.engine.load_weights(parts.learner.weights(), version=step)
        renew_reference(run)
    with phase("check"):
        due = run.settings.checks.asks(step)
        checks.append(probed(run) if due else not_asked(run.settings.checks.probe_every))
    with phase("journal"):
        run.output.rollouts(step, result, batch, columns)
        report(run, result, batch, checks)
        metrics = log.metrics(generation_metrics(sampled, parts.rollout.measure, parts.rollout.tools))
    if run.settings.guard is Guard.ROLLBACK:
        metrics["rollbacks"] = len(run.progress.rollbacks)
    seconds = run.clock.lap()
    run.progress.seconds_training += math.fsum(value for name, value in seconds.items() if name not in BEFORE)
    return step_row(step, metrics, checks, seconds), machine_work(run, sampled)


def machine_work(run: Training, sampled: Sampled) -> dict[str, Any]:
    """What the machine did in the step that has ended: who worked when, and with which trouble."""
    work = timeline(run.clock.take_extents(), beside=run.components.batches.take_extents())
    ahead = {} if sampled.ahead_seconds is None else {"ahead_seconds": round(sampled.ahead_seconds, 6)}
    return {"timeline": work, "engine_restarts": run.components.engine.restarts, **ahead}


def renew_reference(run: Training) -> None:
    """The reference becomes the policy of today, after each step that it is renewed after."""
    reference, step = run.components.state.reference, run.progress.step
    if reference is not None and reference.renew(step, run.components.learner):
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
        states=algorithm.advantage.reads_states,
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
        if result.seen is not None:
            columns.update(minibatch, result.seen)
    return applied and result.applied


def believed(run: Training, log: StepLog, result: RolloutResult) -> list[Check]:
    """The step's checks; where one fails, under what rounding does to the policy of today."""
    limits = run.components.limits
    checks = log.checks(limits.tolerance)
    if any(check.failed for check in checks) and measured_again(run, result.groups):
        checks = log.checks(limits.tolerance)
    groups = (*result.generated, *result.groups) if run.settings.free else result.generated
    return [*checks, no_older(groups, newest=run.progress.step - 1, most=run.settings.most_age)]


def probed(run: Training) -> Check:
    """Whether the engine has the learner's weights; where it seems not to, the same holds, on what it was asked."""
    probe = run.components.probe
    probe.ask()
    check = probe.judge()
    return probe.judge() if check.failed and measured_again(run, probe.groups, probe_alone=True) else check


def measured_again(run: Training, groups: Sequence[Group], probe_alone: bool = False) -> bool:
    """Measure rounding on these completions, and say so -> whether the limits are wider than they were."""
    limits = run.components.limits
    wider = limits.measure_again(groups, probe_alone)
    for line in limits.tolerance.lines() if wider else ():
        run.output.say(run.progress.step, f"tolerance measured again: {line}")
    return wider


def report(run: Training, result: RolloutResult, batch: Batch, checks: list[Check]) -> None:
    """Say why a step has nothing to prefer, and the checks once; stop where one failed."""
    step, parts = run.progress.step, run.components
    if words := in_words(result.generated, parts.rollout.by_score, batch, parts.algorithm):
        run.output.say(step, words)
    if step == run.settings.waiting_steps + 1:
        run.output.checks(step, checks)
    require_passed(checks, step)


def evaluate(run: Training) -> None:
    """Sample the held-out problems under the engine's current weights, where the run has any.

    Left where a person asks to stop; it is made, the same, when the run goes on. Ranks that score together cannot be
    left in the middle of it.
    """
    parts = run.components
    if parts.evaluate is None:
        return
    run.progress.owes_evaluation = True
    with suppress(Stopped):
        with (
            run.clock.phase("evaluate"),
            run.stop.leaving(when=parts.learner.mesh.alone or parts.rollout.judge is None),
        ):
            evaluation, groups = parts.evaluate()
        run.output.evaluation(run.progress.step, evaluation, groups, run.clock.lap())
        run.progress.owes_evaluation = False
