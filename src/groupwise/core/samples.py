"""Samples that tasks give, and attempts that rewards see. No torch here: processes that score start in a moment."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
