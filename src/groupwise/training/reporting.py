"""What a step says of itself: its checks, what is wrong with it, what the machine did, and how long a stop takes."""

from collections.abc import Mapping, Sequence
from typing import Any

from groupwise.core.records import Batch, Group
from groupwise.core.stream import RolloutResult, Sampled
from groupwise.diagnostics.checks import Check, no_older, not_asked, require_passed
from groupwise.diagnostics.groups import in_words
from groupwise.diagnostics.step import StepLog, timeline
from groupwise.training.run import Training, seconds_of_training

#: Seconds that a stop takes without its being said.
PATIENCE = 10.0


def say_how_long_a_stop_takes(run: Training, seconds: Mapping[str, float]) -> None:
    """Say so if a step is long: a stop waits for its end, and what ends runs by a signal may not."""
    step = seconds_of_training(seconds)
    if step > PATIENCE:
        run.output.say(
            run.progress.step,
            f"a step takes {step:.0f} s, and Ctrl-C or SIGTERM waits for its end; a kill before that would lose what "
            f"came after the last checkpoint (checkpoint.every = {run.settings.checkpoint.every})",
        )


def believed(run: Training, log: StepLog, result: RolloutResult) -> list[Check]:
    """Make the step's checks; if one fails, again after measuring the noise of today's policy."""
    limits = run.components.limits
    checks = log.checks(limits.tolerance)
    if any(check.failed for check in checks) and measured_again(run, result.groups):
        checks = log.checks(limits.tolerance)
    groups = (*result.generated, *result.groups) if run.settings.rollout.free is not None else result.generated
    return [*checks, no_older(groups, newest=run.progress.step - 1, most=run.settings.most_age)]


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


def machine_work(run: Training, sampled: Sampled) -> dict[str, Any]:
    """Return what the machine did in the step that has ended: who worked when, and with which trouble."""
    work = timeline(run.clock.take_extents(), beside=run.components.batches.take_extents())
    ahead = {} if sampled.ahead_seconds is None else {"ahead_seconds": round(sampled.ahead_seconds, 6)}
    return {"timeline": work, "engine_restarts": run.components.engine.restarts, **ahead}
