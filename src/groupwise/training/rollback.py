"""What an early warning of collapse does to a run: nothing, a stop, or a return to a checkpoint from before it."""

import math
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from groupwise.core.settings import Changeable, Settings
from groupwise.health.symptoms.base import RECENT
from groupwise.training.checkpoint import damaged, folder_of, steps
from groupwise.training.ranks.parts import is_stored


class Guard(StrEnum):
    """What a run does when an early warning of collapse begins, beside saying it."""

    WARN = "warn"
    STOP = "stop"
    ROLLBACK = "rollback"


class RollbackSettings(Settings):
    """The section [rollback], of a run with guard = "rollback".

    most         times that the run goes back; the next early warning stops it
    rate_factor  times the policy's learning rate, from each return on
    """

    most: Changeable[int] = Field(default=2, ge=1, le=100)
    rate_factor: Changeable[float] = Field(default=0.3, gt=0, lt=1)


class Rollback(BaseModel):
    """One return of a run to a checkpoint, as state.json, about.json and summary.json have it.

    from_step    the step with which the warnings began
    to_step      the step after which the run went on
    warnings     the names of the findings
    rate_factor  times the policy's learning rate from here on, beside those of earlier returns
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)
    from_step: int = Field(ge=1)
    to_step: int = Field(ge=0)
    warnings: list[str]
    rate_factor: float = Field(gt=0, lt=1)

    def __str__(self) -> str:
        return f"from step {self.from_step} to {self.to_step}"


def rate_after(rollbacks: Sequence[Rollback]) -> float:
    """What the policy's learning rate is multiplied by after these returns."""
    return math.prod(rollback.rate_factor for rollback in rollbacks)


def way_back(root: Path, step: int, every: int, returned_to: int = 0, needed: Sequence[str] = ()) -> Path | None:
    """The newest good checkpoint from before the steps that a warning at `step` speaks of; None where there is none.

    Only checkpoints that a run makes whoever stops it count, after each `every` steps and before the first: a run that
    was stopped and gone on with returns to where it would have without the stop.

    returned_to  the step that the run last went back to: no warning spoke of it, so it serves again
    needed       tensors that it must have, by the name of their file
    """
    last = max(step - RECENT, returned_to)
    regular = (folder_of(root, before) for before in reversed(steps(root)) if before <= last and before % every == 0)
    whole = (folder for folder in regular if not damaged(folder))
    return next((folder for folder in whole if all(is_stored(folder, name) for name in needed)), None)
