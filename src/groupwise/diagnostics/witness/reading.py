"""The frame of a reading: what it is shown of a step, and what it says of it."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from groupwise.core.numbers.metrics import Value
from groupwise.core.records import Batch, Group
from groupwise.core.stream import RolloutResult
from groupwise.core.updates import UpdateResult
from groupwise.diagnostics.witness.rows import Rows
from groupwise.diagnostics.witness.rules import Rules
from groupwise.health.checks import Invariant


@dataclass(frozen=True)
class Disagreement:
    """Two readings of one thing, and how far apart they are; up to `limit` they agree.

    about   the thing: "row 3, column 12", "the prompt '1+1='"
    detail  both numbers, and where to look
    wider   the limit once rounding has been measured again in the same step; None: the limit stays
    """

    about: str
    detail: str
    value: float
    limit: float
    wider: Callable[[], float] | None = None

    @property
    def bound(self) -> float:
        """The limit as it is known now."""
        return self.limit if self.wider is None else max(self.limit, self.wider())

    @property
    def real(self) -> bool:
        """True if the readings differ; a distance that is no number is a difference."""
        return not self.value <= self.bound

    @property
    def size(self) -> float:
        """Distance in limits."""
        if math.isnan(self.value):
            return math.inf
        bound = self.bound
        return self.value / bound if bound else math.inf if self.value else 0.0


@dataclass(frozen=True)
class Unmeasured:
    """A part of a reading that could not be made, and why."""

    why: str


Said = Iterable[Disagreement | Unmeasured]


@dataclass(frozen=True)
class StepSeen:
    """A step as the witness sees it: its records, and the batch that was made of them.

    result  as rollouts.jsonl has it
    batch   with credit, before anything of it trained; its rows are the completions of `result.groups`, in their order
    rules   of the run's recipe
    masks_truncated  whether completions that were cut off at the limit are not trained
    slow    whether the slow readings are made in this step too
    """

    step: int
    result: RolloutResult
    batch: Batch
    rules: Rules
    masks_truncated: bool
    slow: bool

    @cached_property
    def rows(self) -> Rows:
        """Rows of the step as its records have them."""
        return Rows(self.result.groups, self.rules.weights, self.masks_truncated)


class Reading:
    """A reading of one subject. Each method is called at its moment of a step and says how far two readings differ.

    subject  the invariant that it is a check of
    rests    whether it needs nothing of the steps before, and so may leave some out
    """

    subject: Invariant
    rests = False

    def restart(self, step: int, rate_factor: float) -> None:
        """Forget what came before: the run goes on from its state after `step`.

        rate_factor  what returns from collapses have made of the policy's learning rate
        """

    def put_back(self, folder: Path) -> Said:
        """Read the run as a checkpoint's folder has left it, after `restart`."""
        return ()

    def begin(self, seen: StepSeen) -> Said:
        """Read the step before its first update, under the weights that it begins with."""
        return ()

    def minibatch(self, seen: StepSeen, minibatch: Batch) -> Said:
        """Read a weighted minibatch before the updates that are made on it, the critic's and the policy's."""
        return ()

    def critic_updated(self, seen: StepSeen, minibatch: Batch, metrics: Mapping[str, Value]) -> Said:
        """Read what an update of the critic did, which comes before the policy's."""
        return ()

    def updated(self, seen: StepSeen, minibatch: Batch, update: UpdateResult) -> Said:
        """Read what an update of the policy did; it is not called while the policy waits for its critic."""
        return ()

    def end(self, seen: StepSeen) -> Said:
        """Read the step after its last update, before the engine has the new weights."""
        return ()

    def evaluated(self, step: int, groups: Sequence[Group]) -> Said:
        """Read the answers of an evaluation after `step`."""
        return ()


def agree() -> Disagreement:
    """Say that two readings are one."""
    return Disagreement("", "", 0.0, 0.0)


def differs(about: str, detail: str) -> Disagreement:
    """Say that two readings of what is no number differ."""
    return Disagreement(about, detail, 1.0, 0.0)


def apart(
    about: Callable[[tuple[int, ...]], str], theirs: Tensor, ours: Tensor, limit: float, look: str
) -> Disagreement:
    """Compare a column with its definition: |theirs - ours| / max(1, |ours|), the worst place.

    about  says what a place (its index) is
    look   where to look, as the end of a sentence
    """
    if theirs.shape != ours.shape:
        shapes = f"shape {tuple(theirs.shape)}, by definition {tuple(ours.shape)}"
        return Disagreement("the column", f"{shapes}; {look}", math.inf, limit)
    if not theirs.numel() or (theirs.dtype == ours.dtype and torch.equal(theirs, ours)):
        return agree()
    there, own = theirs.double(), ours.double()
    distance = (there - own).abs().div_(own.abs().clamp_(min=1))
    value = float(distance.max())
    if value <= limit:
        return Disagreement("", "", value, limit)
    distance = torch.where(there.isnan() & own.isnan(), 0.0, distance.nan_to_num(nan=math.inf))
    worst, place = distance.flatten().max(0)
    at = tuple(int(i) for i in torch.unravel_index(place, distance.shape))
    numbers = f"{float(there[at]):.6g}, by definition {float(own[at]):.6g}"
    return Disagreement(about(at), f"{numbers}; {look}", float(worst), limit)
