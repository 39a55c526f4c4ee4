"""Samples that tasks give, attempts that rewards see, and the protocol and results of rewards. No torch here: processes
that score start in a moment.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from groupwise.core.files.json_text import writable

#: A prompt that ends in thinking which was begun: `<think>`, or `Assistant: <think> Let me see.`
_OPENS = re.compile(r"<think>\s*\Z|(?:^|\n|: ?)<think>\s*[^\n<]*\Z")


@dataclass(frozen=True)
class Sample:
    """One problem of a task: the prompt, and what the task needs to score an answer.

    key       unique within the task, the same in every process and run
    prompt    the text the policy sees; of a conversation, what the last message says that is not a prefill
    answer    the gold answer, as text: a list or a table as JSON; "" where there is none
    extra     whatever else a scorer reads: JSON values only
    source    which generator or file it comes from, where a task mixes several; "" otherwise
    messages  the conversation so far, {"role": ..., "content": ..., and what else a chat template reads} each, where
              the data has one; empty otherwise
    tools     JSON schemas of functions that the policy may call, which the chat template is given with the messages
    heldout_set  the held-out set that it is in, where a task has several by name; "" otherwise
    seed      what an environment's random numbers are drawn from; 0 where the task has no environment
    held_answer  (the gold answer as the data holds it,) where that is no text: a number, a list, None; () where
              `answer` is all there is
    """

    key: str
    prompt: str
    answer: str
    extra: Mapping[str, object] = field(default_factory=dict)
    source: str = ""
    messages: Sequence[Mapping[str, Any]] = ()
    tools: Sequence[Mapping[str, Any]] = ()
    heldout_set: str = ""
    seed: int = 0
    held_answer: tuple[Any, ...] = field(default=(), repr=False)

    @property
    def ground_truth(self) -> Any:
        """The gold answer as the data holds it, "" if there is none.

        >>> Sample("k", "2 * 3?", "6").ground_truth, Sample("k", "2 * 3?", "[6]", held_answer=([6],)).ground_truth
        ('6', [6])
        """
        return self.held_answer[0] if self.held_answer else self.answer

    @property
    def prefill(self) -> str:
        """The beginning of the answer that the policy continues: what a last message of the assistant's says.

        >>> asked, begun = {"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "It is"}
        >>> Sample("k", "1 + 1?", "2", messages=(asked, begun)).prefill, Sample("k", "1 + 1?", "2").prefill
        ('It is', '')
        """
        last = self.messages[-1] if self.messages else {}
        return last.get("content") or "" if last.get("role") == "assistant" else ""

    @property
    def begun(self) -> str:
        """Text in front of a completion for a scorer: the prefill, or thinking that a plain prompt ends by opening.

        >>> Sample("k", "1 + 1? <think>", "2").begun, Sample("k", "Think in <think>, then answer.", "2").begun
        ('<think>', '')
        """
        return self.prefill or ("<think>" if not self.messages and _OPENS.search(self.prompt) else "")


@dataclass(frozen=True)
class Attempt:
    """One completion of a sample, as a reward sees it.

    completion  the decoded text, without special tokens
    finish      "stop" (it ended by itself) or "length" (it was cut off at the limit)
    tokens      the sampled ids
    """

    sample: Sample
    completion: str
    finish: str = "stop"
    tokens: Sequence[int] = ()


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
    # Of a judge: its address, its reply, its answer by the schema.
    UNREACHABLE = "unreachable"
    REFUSED = "refused request"
    NO_CHAT = "no chat completion"
    REFUSAL = "refusal"
    CUT_OFF = "cut off"
    EMPTY = "empty answer"
    NO_JSON = "no JSON"
    SEVERAL = "several answers"
    MISSING = "missing criterion"
    UNKNOWN = "unknown criterion"
    NOT_NUMBER = "not a number"
    OUT_OF_RANGE = "out of range"


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
