"""Protocol of environments: they answer what the policy says, turn after turn, and reward it. No torch here."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Protocol

from groupwise.core.samples import Cause, Sample

#: Where a fault happened that is an environment's, beside the names of rewards.
ENVIRONMENT = "environment"
#: Name of the policy, as a model is called in requests of agents.
MODEL = "policy"


@dataclass(frozen=True)
class Says:
    """One message of an environment's: `role` as the chat template has it, such as "user" or "tool"."""

    role: str
    text: str


@dataclass(frozen=True)
class Spoken:
    """A turn that is over: the ids that the policy sampled, and what the environment said to them."""

    ids: tuple[int, ...]
    messages: tuple[Says, ...]


@dataclass(frozen=True)
class Before:
    """The ids that come before a turn of the policy's.

    anew  whether they are all that it reads, prompt and earlier turns included; else it reads them behind those
    """

    ids: tuple[int, ...]
    anew: bool = False


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool in a turn.

    tool     its name; "" where the call named none that there is
    failure  why it gave no result: "malformed", "unknown tool", "arguments", "exception"; where its turn has no answer
             the fault's cause or, of a call that is not known to be at fault, "unanswered"; "" where it gave one
    seconds  that it took, as far as that is known
    """

    tool: str
    failure: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Reply:
    """Answer of an environment to a turn; to a reset, what is added to the prompt.

    messages  what it says, in order
    reward    of this turn, reward units
    done      whether the episode is over
    state     where it stands after the turn; "" where it names no states
    cause     why there is no answer; None where there is one
    detail    of a fault, for a person
    seconds   that the answer took; of a fault as far as that is known
    calls     of tools that were made for it
    """

    messages: Sequence[Says] = ()
    reward: float = 0.0
    done: bool = False
    state: str = ""
    cause: Cause | None = None
    detail: str = ""
    seconds: float = 0.0
    calls: Sequence[ToolCall] = ()


@dataclass(frozen=True)
class Conversation:
    """An episode as far as it is played: all that an answer depends on, so that any process can give it.

    episode   its number, which no other episode of the run has
    round     of generation: with a later one, all episodes of earlier ones are over
    said      what the policy said, turn by turn; the last is to be answered. None yet: the episode is to be begun
    answered  the fingerprint of each answer so far, the opening first; "" where a fault gave none: what was said then
              is left out when the episode is played again
    last      whether it is over after this answer, whatever that is
    cut_off   everything is answered, and the episode's tokens or seconds are used up: the answer is what the episode
              is worth beside the rewards of its turns, where the environment says that at its end
    """

    sample: Sample
    episode: int
    round: int
    said: tuple[str, ...] = ()
    answered: tuple[str, ...] = ()
    last: bool = False
    cut_off: bool = False


@dataclass(frozen=True)
class Visit:
    """Session that an agent is to play.

    base_url  where it asks the policy
    key       with which it does
    """

    sample: Sample
    base_url: str
    key: str


def fingerprint(reply: Reply) -> str:
    """Return a text that is the same for equal answers, and for no others.

    >>> one = Reply(reward=1.0, seconds=0.1)
    >>> fingerprint(one) == fingerprint(Reply(reward=1)), fingerprint(one) == fingerprint(Reply())
    (True, False)
    """
    content = [[[m.role, m.text] for m in reply.messages], float(reply.reward), reply.done, reply.state]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


class Environments(Protocol):
    """Plays episodes, wherever they live: here, or in processes with a deadline.

    begin(conversation)  hands over what is to be answered, and returns at once -> its ticket
    wait(tickets)        the answers, once all are there
    with_special         whether they read what the policy said with its special tokens written out
    tools                the names of the tools that the policy may call
    """

    @property
    def with_special(self) -> bool: ...

    @property
    def tools(self) -> Sequence[str]: ...

    def begin(self, conversation: Conversation) -> int: ...

    def wait(self, tickets: Sequence[int]) -> list[Reply]: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class EpisodeLimits:
    """Limits at which episodes end, and what becomes of a fault.

    turns        of the policy's at most
    turn_tokens  that it may say in one turn; 0: as many as the episode has left
    seconds      that the environment may take for its answers, all turns together; 0: any number
    on_fault     "mask": an episode whose environment gives no answer ends, and neither trains nor votes; "answer": the
                 fault is what the policy is answered
    """

    turns: int = 8
    turn_tokens: int = 0
    seconds: float = 0.0
    on_fault: Literal["mask", "answer"] = "mask"


class Ended(StrEnum):
    """Reason for which an episode ended."""

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
    detail  of a fault, for a person
    calls   of tools, in their order
    """

    stop: int
    reward: float
    state: str = ""
    fault: str = ""
    detail: str = ""
    calls: tuple[ToolCall, ...] = ()
