"""A return of a run to a checkpoint from before an early warning of collapse."""

from collections.abc import Sequence
from pathlib import Path

from groupwise.core.machine.clock import LOST
from groupwise.health.symptoms.base import Finding
from groupwise.training.rollback import Guard, Rollback
from groupwise.training.run import Training


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
        run.put_back(folder, rollbacks)
    run.progress.seconds_before = seconds_before  # this process goes on
    parts.state.remove_after(to)
    run.save()
    run.clock.add(LOST, run.output.cut_back(to))
    run.output.rolled_back([one.model_dump() for one in rollbacks])
    names = ", ".join(rollback.warnings)
    run.output.say(
        at,
        f"early warning of collapse ({names}): back to step {to}, return {len(rollbacks)} of at most {most}; the "
        f"learning rate is {run.progress.rate_factor:.3g} times the recipe's",
    )
