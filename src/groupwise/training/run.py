"""A run that is built: its settings, what acts in it, how far it is; saved and put back as one.

And what a step of it says: its checks, what is wrong with it, what the machine did, and how long a stop takes.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from groupwise.algorithms.algorithm import Algorithm
from groupwise.core.engine import Engine
from groupwise.core.machine.clock import BEFORE, LOST, Clock
from groupwise.core.processes.stop import Stop
from groupwise.core.records import Batch, Evaluation, Group
from groupwise.core.stream import RolloutResult, Sampled, StreamState
from groupwise.diagnostics.checks import MOST_SKIPPED, Check, Probe, never_finite, no_older, not_asked, require_passed
from groupwise.diagnostics.groups import in_words
from groupwise.diagnostics.step import StepLog, check_table, timeline
from groupwise.diagnostics.tolerance import Limits
from groupwise.diagnostics.witness.witness import Witness
from groupwise.health.checks import WITNESSED
from groupwise.health.symptoms.base import Finding
from groupwise.journal.output import Output
from groupwise.rollout.batches import AsynchronousBatches, Batches
from groupwise.rollout.collect import Rollout
from groupwise.training import checkpoint
from groupwise.training.critic import Critic
from groupwise.training.learner import Learner
from groupwise.training.settings import Guard, RunSettings
from groupwise.training.state import Progress, Rollback, RunState, way_back
from groupwise.training.supervised import SupervisedRows
from groupwise.training.teachers.teaching import Teaching

#: Seconds that a stop takes without its being said.
PATIENCE = 10.0


@dataclass(frozen=True)
class Components:
    """Parts that act in a run.

    batches          the rollout's, a step each
    limits           what numerical noise may do to the checks' comparisons
    witness          reads each step a second time, by definitions of its own
    evaluate         samples the held-out problems, if there are any, and measures held-out supervised rows
    supervised       rows to imitate, if there are any
    rate_teachers    measures on the held-out problems what teaches, if it can be sampled here
    pad              the id that fills up rows
    other_reference  why the reference is not the starting policy, on purpose; "" if it is
    teaching         computes logp_ref where that is not the learner's reference behind the policy's prompts
    """

    algorithm: Algorithm
    rollout: Rollout
    batches: Batches | AsynchronousBatches
    engine: Engine
    learner: Learner
    critic: Critic | None
    probe: Probe
    limits: Limits
    witness: Witness
    evaluate: Callable[[], tuple[Evaluation, Sequence[Group]]] | None
    state: RunState
    pad: int
    other_reference: str
    supervised: SupervisedRows | None = None
    teaching: Teaching | None = None
    rate_teachers: Callable[[], dict[str, dict[str, float]]] = dict

    def evaluated(self, step: int) -> tuple[Evaluation, Sequence[Group]]:
        """Sample the held-out problems, which there are; before the first step by the teachers too."""
        assert self.evaluate is not None
        evaluation, groups = self.evaluate()
        return (evaluation if step else replace(evaluation, teachers=self.rate_teachers())), groups

    def annotate(self, batch: Batch, groups: Sequence[Group], old: bool) -> Batch:
        """Add the frozen log-probabilities that something reads to the batch made of these groups."""
        ref = self.algorithm.needs_reference
        if self.teaching is None or not ref:
            return self.learner.annotate(batch, old=old, ref=ref, top=self.algorithm.kl.top)
        wait = self.teaching.begin(groups, batch)
        return self.learner.annotate(batch, old=old, ref=False).add(logp_ref=wait())


@dataclass
class Training:
    """A run that is built, and how far it is.

    stop        whether a person, or what is called after a step, asked to stop
    after_step  called with each step that has ended, before it is saved
    """

    settings: RunSettings
    components: Components
    output: Output
    stop: Stop
    after_step: Callable[[int], None] = lambda step: None
    progress: Progress = field(default_factory=Progress)
    clock: Clock = field(default_factory=Clock)

    def save(self) -> Path:
        """Write a checkpoint of the run as it is; its folder."""
        with self.clock.phase("save"):
            return self.components.state.save(self.progress, self.components.batches.state, self.clock.total)

    def put_back(self, folder: Path, rollbacks: Sequence[Rollback] | None = None) -> None:
        """Put the run where a checkpoint left it, bit for bit.

        rollbacks  the run's returns to a checkpoint, if this is one; None takes those that the checkpoint has
        """
        parts = self.components
        self.progress, parts.batches.state = parts.state.restore(folder, rollbacks)
        parts.learner.optimizer.factor = self.progress.rate_factor
        parts.engine.load_weights(parts.learner.weights(), version=self.progress.step)
        parts.probe.restart()
        parts.witness.restart(self.progress.step, self.progress.rate_factor, folder)

    def way_back(self) -> Path | None:
        """Return the checkpoint to go back to from warnings of this step."""
        state, rollbacks = self.components.state, self.progress.rollbacks
        return way_back(
            state.folder,
            self.progress.step,
            self.settings.checkpoint.every,
            returned_to=rollbacks[-1].to_step if rollbacks else 0,
            needed=state.reference.files if state.reference is not None else (),
        )

    @property
    def may_go_back(self) -> bool:
        """True if the guard returns the run to a checkpoint, and has not done so too often."""
        return self.settings.guard is Guard.ROLLBACK and len(self.progress.rollbacks) < self.settings.rollback.most

    def roll_back(self, folder: Path, alarms: Sequence[Finding]) -> None:
        """Go on from an earlier checkpoint with a smaller learning rate, and with the same problems and random numbers.

        Later checkpoints are removed, then this one is saved again with the return in it, then rows are taken out:
        killed at any moment of this, a run is resumed from before the return, which it will make again, or from after
        it.
        """
        at, to, settings = self.progress.step, int(folder.name.rpartition("-")[2]), self.settings.rollback
        warnings = [alarm.name for alarm in alarms]
        rollback = Rollback(from_step=at, to_step=to, warnings=warnings, rate_factor=settings.rate_factor)
        rollbacks = (*self.progress.rollbacks, rollback)
        seconds_before = self.progress.seconds_before
        with self.clock.phase("load weights"):
            self.put_back(folder, rollbacks)
        self.progress.seconds_before = seconds_before  # this process goes on
        checkpoint.remove_after(self.components.state.folder, to)
        self.save()
        self.clock.add(LOST, self.output.cut_back(to))
        self.output.rolled_back([one.model_dump() for one in rollbacks])
        self.output.say(
            at,
            f"early warning of collapse ({', '.join(warnings)}): back to step {to}, return {len(rollbacks)} of at most "
            f"{settings.most}; the learning rate is {self.progress.rate_factor:.3g} times the recipe's",
        )

    def end_step(self) -> dict[str, float]:
        """Return the seconds of the step that has ended, by phase, and count them into the run's."""
        seconds = self.clock.lap()
        self.progress.seconds_training += seconds_of_training(seconds)
        return seconds


def seconds_of_training(seconds: Mapping[str, float]) -> float:
    """Return the seconds of a step by phase, without what came before the first step."""
    return math.fsum(value for name, value in seconds.items() if name not in BEFORE)


def say_how_long_a_stop_takes(run: Training, seconds: Mapping[str, float]) -> None:
    """Say so if a step is long: a stop waits for its end, and what ends runs by a signal may not."""
    step = seconds_of_training(seconds)
    if step > PATIENCE:
        run.output.say(
            run.progress.step,
            f"a step takes {step:.0f} s, and Ctrl-C or SIGTERM waits for its end; a kill before that would lose what "
            f"came after the last checkpoint (checkpoint.every = {run.settings.checkpoint.every})",
        )


def taught(run: Training) -> Batch | None:
    """Return the supervised rows of the next update of the policy; None if it has none."""
    rows = run.components.supervised
    return None if rows is None else rows.batch(run.components.learner.optimizer.updates)


def renew_reference(run: Training) -> None:
    """Make the policy of today the reference, after each step that the reference is renewed after."""
    reference, step = run.components.state.reference, run.progress.step
    if reference is not None and reference.renew(step, run.components.learner):
        run.output.say(step, "the reference is the policy after this step")


def require_finite(run: Training, applied: bool, stream: StreamState, updates: Mapping[str, int]) -> None:
    """Count an update; after too many in a row that were skipped, stop the run. `stream` and `updates` are those of the
    step's start, which is saved.
    """
    if run.progress.count(applied) < MOST_SKIPPED:
        return
    step, parts = run.progress.step, run.components
    before = replace(run.progress, step=step - 1, skipped_in_a_row=0)
    saved = parts.state.save(before, stream, run.clock.total, updates)
    raise never_finite(step, saved, has_critic=parts.critic is not None)


def believed(run: Training, log: StepLog, result: RolloutResult) -> list[Check]:
    """Make the step's checks; if one fails, again after measuring the noise of today's policy."""
    limits = run.components.limits
    checks = log.checks(limits.tolerance)
    if any(check.failed for check in checks) and measured_again(run, result.groups):
        checks = log.checks(limits.tolerance)
    groups = (*result.generated, *result.groups) if run.settings.rollout.free is not None else result.generated
    age = no_older(groups, newest=run.progress.step - 1, most=run.settings.most_age)
    return [*checks, age, *run.components.witness.checks()]


def probed(run: Training) -> Check:
    """Check whether the engine has the learner's weights; if it seems not to, again after measuring the noise."""
    checks, probe = run.settings.checks, run.components.probe
    if not checks.asks(run.progress.step):
        return not_asked(checks.probe_every)
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


def witnessed(run: Training, groups: Sequence[Group]) -> None:
    """Show the answers of an evaluation to the witness; stop where they are not what they should be, or say so."""
    step, checks = run.progress.step, run.components.witness.evaluated(run.progress.step, groups)
    for check in checks:
        if check.failed and not check.stops:
            run.output.say(step, f"warning, {check.name}: {check.cause}")
    require_passed(checks, step)


def machine_work(run: Training, checks: Sequence[Check] = (), sampled: Sampled | None = None) -> dict[str, Any]:
    """Return what the machine did in the step that has ended: who worked when, with which trouble, and what the witness
    read.
    """
    work = timeline(run.clock.take_extents(), beside=run.components.batches.take_extents())
    read = [check for check in checks if check.invariant in WITNESSED]
    witness = {"witness": check_table(read)} if read else {}
    ahead = (
        {} if sampled is None or sampled.ahead_seconds is None else {"ahead_seconds": round(sampled.ahead_seconds, 6)}
    )
    return {"timeline": work, "engine_restarts": run.components.engine.restarts, **ahead, **witness}
