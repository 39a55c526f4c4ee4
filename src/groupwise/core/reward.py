"""Protocol of rewards: attempts in, one number each out."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from groupwise.core.files.json_text import writable
from groupwise.core.samples import Attempt

#: Names of the two rewards that are not functions of a recipe: the task's own score, and the reward model's.
TASK, LEARNED = "task", "learned"
#: What a function may log of a completion.
LoggedValue = float | str | None


class Reward(Protocol):
    """(attempts) -> one score each, reward units, higher is better. Attempts of several samples may come together.

    quick   whether it is a pure function of microseconds that cannot hang: such a one is called where the run is,
            every other one in a worker process with a deadline
    """

    @property
    def quick(self) -> bool: ...

    def __call__(self, attempts: Sequence[Attempt]) -> Sequence[float]: ...


class Cause(StrEnum):
    """Reason for which a completion has no score."""

    EXCEPTION = "exception"
    TIMEOUT = "timeout"
    CRASH = "crash"
    MEMORY = "memory"
    NAN = "nan"
    TOO_LARGE = "too large"
    WRONG_LENGTH = "wrong length"
    WRONG_TYPE = "wrong type"


@dataclass(frozen=True)
class ScoreResult:
    """A score, or why there is none.

    value    reward units; NaN where `cause` says why, and without a cause where the reward does not vote
    detail   for a person: the user's own traceback, the signal, the deadline; of a score, how the call for many failed
             that this completion was in before it was scored alone
    columns  what the function logs of this completion, by name
    metrics  numbers that it logs of the whole call which this completion was in, by name
    of_call  completions of that call
    """

    value: float = math.nan
    cause: Cause | None = None
    detail: str = ""
    columns: Mapping[str, LoggedValue] = field(default_factory=dict)
    metrics: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    of_call: int = 1

    @property
    def votes(self) -> bool:
        """True if there is a score."""
        return not math.isnan(self.value)

    def __post_init__(self) -> None:
        object.__setattr__(self, "detail", writable(self.detail))  # a user's text, on its way to files and terminals
