"""What an environment is: it answers what the policy says, turn after turn, and rewards it. No torch here."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from groupwise.core.reward import Cause
from groupwise.core.samples import Sample


class Environment(Protocol):
    """One episode. What it answers is a function of the sample and of what was said, so that it can be played again.

    reset(sample)  begins the episode -> text that is added to the prompt, or None
    step(text)     what the policy said -> (observation, reward of this turn in reward units, whether it was the last)

    An environment may also have `state() -> str`: a name of where it stands, for credit by state (GiGPO).
    """

    def reset(self, sample: Sample) -> str | None: ...

    def step(self, text: str) -> tuple[str, float, bool]: ...


@dataclass(frozen=True)
class Says:
    """One message of an environment's: `role` as the chat template has it, such as "user" or "tool"."""

    role: str
    text: str


@dataclass(frozen=True)
class Reply:
    """What an environment answers to a turn; to a reset, what is added to the prompt.

    messages  what it says, in order
    reward    of this turn, reward units
    done      whether the episode is over
    state     where it stands after the turn; "" where it names no states
    cause     why there is no answer; None where there is one
    detail    of a fault, for a person
    """

    messages: Sequence[Says] = ()
    reward: float = 0.0
    done: bool = False
    state: str = ""
    cause: Cause | None = None
    detail: str = ""


class Ended(StrEnum):
    """Why an episode ended."""

    DONE = "done"  # the environment said so
    TURNS = "turns"  # task.max_turns
    TOKENS = "tokens"  # sampling.max_new_tokens, of all turns and observations together
    SECONDS = "seconds"  # task.seconds
    FAULT = "fault"  # the environment gave no answer


@dataclass(frozen=True)
class EpisodeTurn:
    """One turn of the policy's in an episode.

    stop    how many tokens the completion had when the policy's turn ended
    reward  of this turn, reward units
    state   of the environment in which it was spoken; "" where it names no states
    fault   why the environment gave no answer, such as "timeout"; "" where it gave one
    """

    stop: int
    reward: float
    state: str = ""
    fault: str = ""
