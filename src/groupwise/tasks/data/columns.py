"""From the columns of a row to a sample. Pure; every message names the key of the recipe and the line of the file."""

import json
import math
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from groupwise.core.errors import UsageError
from groupwise.core.samples import Sample
from groupwise.rewards.verifiers.extract import balanced
from groupwise.tasks.data.formats import kind_of
from groupwise.tasks.data.nested import MissingColumn, value_at
from groupwise.tasks.data.settings import DataSettings, template_columns

_LETTERS = string.ascii_uppercase


@dataclass(frozen=True)
class Columns:
    """Reads rows as the settings say. Of each method, `values` are a row's columns and `where` its place, for messages.

    >>> columns = Columns(DataSettings(path="a.jsonl", prompt="{a} + {b}", answer="sum"))
    >>> columns.sample({"a": 1, "b": 2, "sum": "3"}, key="a:1", where="a.jsonl, line 1", origin="a").prompt
    '1 + 2'
    """

    settings: DataSettings

    @cached_property
    def required(self) -> dict[str, str]:
        """Column that every row must have -> the recipe's key that names it, as a message says it."""
        s = self.settings
        keys = {} if s.messages else dict.fromkeys(self._template or [s.prompt], "prompt")
        named_in = (*(["answer"] if s.must_have_answer else []), "solution", "messages", "source")
        others = [(key, getattr(s, key)) for key in named_in]
        keys |= {column: key for key, column in others if column and column not in keys}
        named = {column: f"task.{key} = {getattr(s, key)!r}" for column, key in keys.items()}
        return named | {column: f"task.filter.{column}" for column in s.filter if column not in named}

    def problem(self, values: Mapping[str, Any], where: str) -> str:
        """What makes a problem this one and no other: its text without the instruction."""
        if turns := self._conversation(values, where):
            return json.dumps(turns, ensure_ascii=False)
        if self._template:
            return _filled(self.settings.prompt, values)
        return _prompt_text(value_at(values, self.settings.prompt), where, self.settings.prompt)

    def gold(self, values: Mapping[str, Any]) -> str | None:
        """The answer; None where the row has none (no text, no mark, no box), "" where it need not have one."""
        s = self.settings
        if not s.answer or (s.answer not in values and not s.must_have_answer):
            return ""
        value = value_at(values, s.answer)
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            return None
        if isinstance(value, float) and not math.isfinite(value):  # JSON can spell NaN, and no completion can equal it
            return None
        text = str(value)
        if s.answer_after:
            text = text.rpartition(s.answer_after)[2] if s.answer_after in text else ""
        if s.answer_boxed:
            text = last_boxed(text)
        return text.strip() or None

    def sample(self, values: Mapping[str, Any], key: str, where: str, origin: str) -> Sample:
        """The sample; `origin` is its source where no column says another. Columns it does not hold go to `extra`."""
        s = self.settings
        turns = self._conversation(values, where)
        if turns:
            turns = (*turns[:-1], {**turns[-1], "content": turns[-1]["content"] + s.instruction})
        answer_column = "" if s.answer_after or s.answer_boxed else s.answer
        return Sample(
            key=key,
            prompt=turns[-1]["content"] if turns else self.problem(values, where) + s.instruction,
            answer=self.gold(values) or "",
            extra={name: value for name, value in values.items() if name not in (s.prompt, s.messages, answer_column)},
            source=str(value_at(values, s.source)) if s.source else origin,
            messages=turns,
        )

    def solution(self, sample: Sample) -> str:
        """The worked solution that the sample's row holds, "" where it holds none."""
        s = self.settings
        try:
            text = value_at(sample.extra, s.solution)
        except MissingColumn:
            text = sample.answer if s.solution == s.answer else ""
        return text if isinstance(text, str) else ""

    @cached_property
    def _template(self) -> list[str]:
        return template_columns(self.settings.prompt)

    def _conversation(self, values: Mapping[str, Any], where: str) -> Sequence[dict[str, str]]:
        """The turns of the row; none where its prompt is a text."""
        s = self.settings
        if s.messages:
            return conversation(value_at(values, s.messages), where, f"task.messages = {s.messages!r}")
        prompt = None if self._template else value_at(values, s.prompt)
        return conversation(prompt, where, f"task.prompt = {s.prompt!r}") if _has_turns(prompt) else ()


def conversation(value: object, where: str, key: str) -> Sequence[dict[str, str]]:
    """The turns before a last turn of the assistant, which the policy is to write; `key` names the column."""
    turns = value if isinstance(value, list) else []
    good = all(isinstance(t, dict) and {type(t.get("role")), type(t.get("content"))} == {str} for t in turns)
    if turns and good and turns[-1]["role"] == "assistant":
        turns = turns[:-1]
    if not turns or not good:
        raise UsageError(
            f'{where}: {key}: must hold a list of {{"role": ..., "content": ...}}, both text, '
            f"with a turn before the assistant's; this is {kind_of(value)}"
        )
    return tuple({"role": turn["role"], "content": turn["content"]} for turn in turns)


def last_boxed(text: str) -> str:
    r"""What the last \boxed{...} of a text holds, "" where there is none or its braces do not close.

    >>> last_boxed(r"so \boxed{1}, no: $\boxed{\frac{1}{2}}$.")
    '\\frac{1}{2}'
    """
    before, opening, after = text.rpartition("\\boxed{")
    return balanced(text, len(before + opening), len(after)) or "" if opening else ""


def _has_turns(value: object) -> bool:
    """Whether a prompt is a conversation: a list of objects, one at least."""
    return isinstance(value, list) and bool(value) and all(isinstance(turn, dict) for turn in value)


def _prompt_text(value: object, where: str, column: str) -> str:
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, str):
        raise UsageError(f"{where}: task.prompt = {column!r}: empty; fill it or take the row out")
    raise UsageError(f"{where}: task.prompt = {column!r}: {kind_of(value)}, neither text nor a conversation")


def _filled(template: str, values: Mapping[str, Any]) -> str:
    """A template with the values of its columns."""
    pieces = [(text, column) for text, column, _, _ in string.Formatter().parse(template)]
    return "".join(text + ("" if column is None else _inserted(value_at(values, column))) for text, column in pieces)


def _inserted(value: Any) -> str:
    """A value as a template shows it: a list becomes lettered lines, as the choices of a question."""
    if isinstance(value, list) and len(value) <= len(_LETTERS):
        return "\n".join(f"{letter}. {entry}" for letter, entry in zip(_LETTERS, value, strict=False))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
