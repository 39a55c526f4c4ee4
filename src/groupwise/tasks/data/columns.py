"""From the columns of a row to a sample. Pure; every message names the key of the recipe and the line of the file."""

from __future__ import annotations

import json
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from groupwise.core.errors import UsageError
from groupwise.core.samples import Sample
from groupwise.tasks.data.files import kind_of

_LETTERS = string.ascii_uppercase


@dataclass(frozen=True)
class Columns:
    """Which column is what; the fields are those of the task `data`."""

    prompt: str
    answer: str
    answer_after: str
    answer_boxed: bool
    solution: str
    messages: str
    source: str
    instruction: str

    @cached_property
    def _named(self) -> list[str]:
        return template_columns(self.prompt)

    def needed(self) -> dict[str, str]:
        """The columns that every row must have, each with the key that names it."""
        asked = {} if self.messages else dict.fromkeys(self._named or [self.prompt], "prompt")
        told = {"answer": self.answer, "solution": self.solution, "messages": self.messages, "source": self.source}
        return {**asked, **{column: key for key, column in told.items() if column and column not in asked}}

    def problem(self, values: Mapping[str, Any], where: str) -> str:
        """What makes a problem this one and no other: its text without the instruction."""
        if self.messages:
            return json.dumps(conversation(values[self.messages], where, self.messages), ensure_ascii=False)
        if self._named:
            return self.prompt.format_map({column: _inserted(values[column]) for column in self._named})
        return _demand_prompt(values[self.prompt], where, self.prompt)

    def gold(self, values: Mapping[str, Any]) -> str | None:
        """The answer; None where the row has none (no text, no mark, no box), "" where no column is asked for one."""
        if not self.answer:
            return ""
        value = values[self.answer]
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            return None
        text = str(value)
        if self.answer_after:
            text = text.rpartition(self.answer_after)[2] if self.answer_after in text else ""
        if self.answer_boxed:
            text = last_boxed(text)
        return text.strip() or None

    def sample(self, values: Mapping[str, Any], key: str, where: str, origin: str) -> Sample:
        """The sample; `origin` is its source where no column says another. Columns it does not hold go to `extra`."""
        turns = conversation(values[self.messages], where, self.messages) if self.messages else ()
        if turns:
            turns = (*turns[:-1], {**turns[-1], "content": turns[-1]["content"] + self.instruction})
        plain = not self.answer_after and not self.answer_boxed
        held = {self.prompt, self.messages, self.answer if plain else ""}
        return Sample(
            key=key,
            prompt=turns[-1]["content"] if turns else self.problem(values, where) + self.instruction,
            answer=self.gold(values) or "",
            extra={column: value for column, value in values.items() if column not in held},
            source=str(values[self.source]) if self.source else origin,
            messages=turns,
        )

    def worked(self, sample: Sample) -> str:
        """The solution that the sample's row holds, "" where it holds none."""
        text = sample.extra.get(self.solution, sample.answer if self.solution == self.answer else "")
        return text if isinstance(text, str) else ""


def template_columns(prompt: str) -> list[str]:
    """The columns that a template names; none where the prompt is the name of a column.

    >>> template_columns("{question} Choose from: {choices}"), template_columns("question")
    (['question', 'choices'], [])
    """
    try:
        parts = list(string.Formatter().parse(prompt))
    except ValueError as error:
        raise UsageError(f"task.prompt = {prompt!r}: no template: {error}; a brace itself is written twice") from None
    found = [name for _, name, _, _ in parts if name is not None]
    for _, name, form, conversion in parts:
        if name is not None and (form or conversion or not name or any(mark in name for mark in ".[")):
            raise UsageError(f"task.prompt = {prompt!r}: {{{name}}} must be the name of a column and nothing else")
    return found


def conversation(value: object, where: str, column: str) -> Sequence[dict[str, str]]:
    """The turns up to the last one that asks: a last turn of the assistant is what the policy is to write."""
    turns = value if isinstance(value, list) else []
    good = all(isinstance(t, dict) and {type(t.get("role")), type(t.get("content"))} == {str} for t in turns)
    if turns and good and turns[-1]["role"] == "assistant":
        turns = turns[:-1]
    if not turns or not good:
        raise UsageError(
            f'{where}: task.messages = {column!r}: must hold a list of {{"role": ..., "content": ...}}, both text, '
            f"with a turn before the assistant's; this is {kind_of(value)}"
        )
    return tuple({"role": turn["role"], "content": turn["content"]} for turn in turns)


def last_boxed(text: str) -> str:
    r"""What the last \boxed{...} of a text holds, "" where there is none or its braces do not close.

    >>> last_boxed(r"so \boxed{1}, no: $\boxed{\frac{1}{2}}$.")
    '\\frac{1}{2}'
    """
    start = text.rfind("\\boxed{") + len("\\boxed{")
    depth = 1
    for end in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0) if text[end - 1] != "\\" else 0
        if depth == 0:
            return text[start:end] if "\\boxed{" in text else ""
    return ""


def _demand_prompt(value: object, where: str, column: str) -> str:
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, str):
        raise UsageError(f"{where}: task.prompt = {column!r}: empty; fill it or take the row out")
    hint = f"; a conversation is read with task.messages = {column!r}" if isinstance(value, list) else ""
    raise UsageError(f"{where}: task.prompt = {column!r}: {kind_of(value)}, not text{hint}")


def _inserted(value: Any) -> str:
    """A value as a template shows it: a list becomes lettered lines, as the choices of a question."""
    if isinstance(value, list) and len(value) <= len(_LETTERS):
        return "\n".join(f"{letter}. {entry}" for letter, entry in zip(_LETTERS, value, strict=False))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
