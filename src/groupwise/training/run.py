"""A run that is built: its settings, what acts in it, how far it is; saved and put back as one."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from groupwise.algorithms.algorithm import Algorithm
from groupwise.core.engine import Engine
from groupwise.core.machine.clock import BEFORE, Clock
from groupwise.core.processes.stop import Stop
from groupwise.core.records import Evaluation, Group
from groupwise.diagnostics.checks import Probe
from groupwise.diagnostics.tolerance import Limits
from groupwise.journal.output import Output
from groupwise.rollout.ahead import Batches
from groupwise.rollout.collect import Rollout
from groupwise.rollout.free import FreeBatches
from groupwise.training.critic import Critic
from groupwise.training.learner import Learner
from groupwise.training.rollback import Rollback
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
    batches: Batches | FreeBatches
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

    def end_step(self) -> dict[str, float]:
        """The seconds of the step that has ended, by phase, counted into the run's."""
        seconds = self.clock.lap()
        self.progress.seconds_training += seconds_of_training(seconds)
        return seconds


def seconds_of_training(seconds: Mapping[str, float]) -> float:
    """The seconds of a step by phase, without what came before the first step."""
    return math.fsum(value for name, value in seconds.items() if name not in BEFORE)
