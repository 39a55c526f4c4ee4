"""What tasks give and rewards see. No torch here: worker processes that score must start in a moment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Sample:
    """One problem of a task: the prompt, and what the task needs to score an answer.

    key       unique within the task, the same in every process and run
    prompt    the text the policy sees; of a conversation, what its last message says
    answer    the gold answer, as text
    extra     whatever else a scorer reads: JSON values only
    source    which generator or file it comes from, where a task mixes several; "" otherwise
    messages  the conversation so far, {"role": ..., "content": ...} each, where the data has one; empty otherwise
    heldout_set  the held-out set that it is in, where a task has several by name; "" otherwise
    seed      what an environment's random numbers are drawn from; 0 where the task has no environment
    """

    key: str
    prompt: str
    answer: str
    extra: Mapping[str, object] = field(default_factory=dict)
    source: str = ""
    messages: Sequence[Mapping[str, str]] = ()
    heldout_set: str = ""
    seed: int = 0


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
