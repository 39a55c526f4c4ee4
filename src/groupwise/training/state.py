"""State of a run: how far it is, what a checkpoint holds of it, and how it is put back there."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from safetensors import SafetensorError

from groupwise.core.errors import UsageError, one_line
from groupwise.core.files.dataclass_json import from_json, to_json
from groupwise.core.stream import StreamState
from groupwise.health.symptoms.base import RECENT
from groupwise.training import checkpoint
from groupwise.training.checkpoint import damaged, folder_of, steps
from groupwise.training.critic import Critic
from groupwise.training.learner import Learner
from groupwise.training.ranks.parts import is_stored
from groupwise.training.reference import Reference

#: Characters of a library's message that are shown: it may list every tensor of a model.
LONGEST = 300


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
    """Return what the policy's learning rate is multiplied by after these returns."""
    return math.prod(rollback.rate_factor for rollback in rollbacks)


def way_back(root: Path, step: int, every: int, returned_to: int = 0, needed: Sequence[str] = ()) -> Path | None:
    """Return the newest good checkpoint from before the steps that a warning at `step` speaks of; None without one.

    Only checkpoints that a run makes whoever stops it count, after each `every` steps and before the first: a run that
    was stopped and gone on with returns to where it would have without the stop.

    returned_to  the step that the run last went back to: no warning spoke of it, so it serves again
    needed       tensors that it must have, by the name of their file
    """
    last = max(step - RECENT, returned_to)
    regular = (folder_of(root, before) for before in reversed(steps(root)) if before <= last and before % every == 0)
    whole = (folder for folder in regular if not damaged(folder))
    return next((folder for folder in whole if all(is_stored(folder, name) for name in needed)), None)


@dataclass
class Progress:
    """Progress of a run.

    step               the last one that is done; while a step runs, that one
    skipped_in_a_row   optimizer updates whose loss or gradient was not finite, since the last that was applied
    seconds_before     of earlier processes of this run
    seconds_training   of all steps so far, without what came before the first
    rollbacks          each return to a checkpoint, in order
    owes_evaluation    whether the evaluation after the step was left for a stop, and is still to be made
    """

    step: int = 0
    skipped_in_a_row: int = 0
    seconds_before: float = 0.0
    seconds_training: float = 0.0
    rollbacks: tuple[Rollback, ...] = ()
    owes_evaluation: bool = False

    @property
    def rate_factor(self) -> float:
        """Factor on the policy's learning rate."""
        return rate_after(self.rollbacks)

    def count(self, applied: bool) -> int:
        """Count an update -> how many were skipped in a row, this one included."""
        self.skipped_in_a_row = 0 if applied else self.skipped_in_a_row + 1
        return self.skipped_in_a_row


class _Stream(BaseModel):
    cursor: int = Field(ge=0)
    keep_rate: float = Field(ge=0, le=1)
    levels: dict[str, int]
    surplus: list[dict[str, Any]]
    ahead: dict[str, Any] | None = None
    begun: list[dict[str, Any]] = []


class _Saved(BaseModel):
    """Types of what `RunState.save` writes; what is in the groups that wait is read by their own."""

    step: int = Field(ge=0)
    reference: str
    reference_step: int = Field(ge=0)
    updates: int = Field(ge=0)
    critic_updates: int = Field(ge=0)
    supervised: str = ""
    skipped_in_a_row: int = Field(ge=0)
    seconds_total: float = Field(ge=0, lt=1e12)
    seconds_training: float = Field(ge=0, lt=1e12)
    stream: _Stream
    rollbacks: list[Rollback] = []
    owes_evaluation: bool = False


@dataclass(frozen=True)
class RunState:
    """State that a checkpoint saves: weights, optimizers, counters and the stream of prompts.

    folder     holds a folder for each checkpoint, of which the newest `keep` stay
    reference  None where the algorithm reads none
    every      one after another number of steps takes no place among them
    supervised  a hash of the supervised rows; "" without any. The updates so far are the place in them
    """

    folder: Path
    keep: int
    reference: Reference | None
    tokenizer: Any
    learner: Learner
    critic: Critic | None
    every: int = 1
    supervised: str = ""

    @property
    def updates(self) -> dict[str, int]:
        """Optimizer updates that policy and critic have had."""
        critic_updates = self.critic.optimizer.updates if self.critic else 0
        return {"updates": self.learner.optimizer.updates, "critic_updates": critic_updates}

    def save(
        self, progress: Progress, stream: StreamState, seconds: float, updates: Mapping[str, int] | None = None
    ) -> Path:
        """Save a checkpoint of the run as it is, after `seconds` of this process -> its folder.

        `updates` are those of the step's start where no weight has moved since, so that it can be tried again.
        """
        state = {
            "step": progress.step,
            "reference": self.reference.digest if self.reference else "",
            "reference_step": self.reference.step if self.reference else 0,
            **(updates or self.updates),
            **({"supervised": self.supervised} if self.supervised else {}),
            "skipped_in_a_row": progress.skipped_in_a_row,
            "seconds_total": progress.seconds_before + seconds,
            "seconds_training": progress.seconds_training,
            "stream": to_json(stream),
            "rollbacks": [rollback.model_dump() for rollback in progress.rollbacks],
            "owes_evaluation": progress.owes_evaluation,
        }

        def write(folder: Path) -> dict[str, str]:
            hashes = self.learner.save(folder, self.tokenizer)
            if self.critic is not None:
                hashes |= self.critic.save(folder)
            if self.reference is not None:
                hashes |= self.reference.save(folder, self.learner)
            checkpoint.write_state(folder, state)
            return hashes

        return checkpoint.save(self.folder, progress.step, write, self.keep, self.every)

    def kept(self) -> str:
        """Return what a run that has to stop now leaves to go on with, as a sentence."""
        saved = checkpoint.steps(self.folder)
        return f"The checkpoint of step {saved[-1]} is kept" if saved else "No checkpoint was saved yet"

    def restore(self, folder: Path, rollbacks: Sequence[Rollback] | None = None) -> tuple[Progress, StreamState]:
        """Put learner and critic where a checkpoint left them, bit for bit -> the run's progress and stream then.

        rollbacks  the returns so far, if this is one; None: those that the checkpoint has
        Raises UsageError if the reference is another one than at the start, or the checkpoint does not fit what the
        recipe makes.
        """
        try:
            state = checkpoint.read_state(folder)
            saved = _Saved.model_validate(state, strict=True)
            if saved.supervised != self.supervised:
                raise UsageError(f"{folder}: the rows of [supervised] were others; resume with the files that it had")
            if self.reference is not None:
                self._restore_reference(self.reference, folder, saved)
            self.learner.restore(folder, saved.updates)
            if self.critic is not None:
                self.critic.restore(folder, saved.critic_updates)
            progress = Progress(
                step=saved.step,
                skipped_in_a_row=saved.skipped_in_a_row,
                seconds_before=saved.seconds_total,
                seconds_training=saved.seconds_training,
                rollbacks=tuple(saved.rollbacks if rollbacks is None else rollbacks),
                owes_evaluation=saved.owes_evaluation,
            )
            return progress, from_json(StreamState, state["stream"])
        except (OSError, KeyError, TypeError, ValueError, AttributeError, RuntimeError, SafetensorError) as error:
            raise UsageError(
                f"{folder}: does not fit what the run's recipe makes now: {one_line(error)[:LONGEST]}; "
                "resume with the recipe and the model that it had"
            ) from None

    def _restore_reference(self, reference: Reference, folder: Path, saved: _Saved) -> None:
        """Put the reference back. One that was never renewed is in no checkpoint: it is made or loaded again."""
        if not saved.reference_step and saved.reference != reference.digest:
            raise UsageError(
                f"{folder}: the run's reference was policy {saved.reference}, and what is made or loaded now is "
                f"{reference.digest}; resume with the model folder, library versions and number of threads that it had"
            )
        reference.restore(folder, saved.reference_step, self.learner)
