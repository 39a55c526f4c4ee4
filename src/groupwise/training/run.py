"""A run that is built: what acts in it, what its loop goes by, how far it is; saved and put back as one."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from groupwise.algorithms.algorithm import Algorithm
from groupwise.core.engine import Engine
from groupwise.core.machine.clock import BEFORE, Clock
from groupwise.core.processes.stop import Stop
from groupwise.core.records import Evaluation, Group
from groupwise.diagnostics.checks import CheckSettings, Probe
from groupwise.diagnostics.tolerance import Limits
from groupwise.journal.output import Output
from groupwise.rollout.ahead import Batches
from groupwise.rollout.collect import Rollout
from groupwise.rollout.free import FreeBatches
from groupwise.training.critic import Critic
from groupwise.training.learner import Learner
from groupwise.training.rollback import Guard, Rollback, RollbackSettings
from groupwise.training.state import Progress, RunState


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
