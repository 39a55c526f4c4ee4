"""A run that is built: its settings, what acts in it, how far it is; saved and put back as one."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from groupwise.algorithms.algorithm import Algorithm
from groupwise.core.engine import Engine
from groupwise.core.machine.clock import BEFORE, LOST, Clock
from groupwise.core.processes.stop import Stop
from groupwise.core.records import Evaluation, Group
from groupwise.diagnostics.checks import Probe
from groupwise.diagnostics.tolerance import Limits
from groupwise.health.symptoms.base import Finding
from groupwise.journal.output import Output
from groupwise.rollout.asynchronous import AsynchronousBatches
from groupwise.rollout.batches import Batches
from groupwise.rollout.collect import Rollout
from groupwise.training import checkpoint
from groupwise.training.critic import Critic
from groupwise.training.learner import Learner
from groupwise.training.rollback import Guard, Rollback
from groupwise.training.settings import RunSettings
from groupwise.training.state import Progress, RunState


@dataclass(frozen=True)
class Components:
    """What acts in a run.

    batches          the rollout's, a step each
    limits           what numerical noise may do to the checks' comparisons
    evaluate         samples the held-out problems, if there are any
    pad              the id that fills up rows
    other_reference  why the reference is not the starting policy, on purpose; "" if it is
    """

    algorithm: Algorithm
    rollout: Rollout
    batches: Batches | AsynchronousBatches
    engine: Engine
    learner: Learner
    critic: Critic | None
    probe: Probe
    limits: Limits
    evaluate: Callable[[], tuple[Evaluation, Sequence[Group]]] | None
    state: RunState
    pad: int
    other_reference: str


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

    def way_back(self) -> Path | None:
        """Return the checkpoint to go back to from warnings of this step."""
        return self.components.state.way_back(self.progress, self.settings.checkpoint.every)

    @property
    def may_go_back(self) -> bool:
        """Whether the guard returns the run to a checkpoint, and has not done so too often."""
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
