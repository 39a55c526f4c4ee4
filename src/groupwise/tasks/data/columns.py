"""The reader of rows, which makes samples of columns. Pure; each message names the key of the recipe and the line."""

import json
import math
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from groupwise.core.errors import UsageError
from groupwise.core.samples import Sample
from groupwise.rewards.verifiers.marks import balanced
from groupwise.tasks.data import conversations
from groupwise.tasks.data.conversations import Turn, conversation, frame, has_turns, inside, question, without_prefill
from groupwise.tasks.data.formats import MissingColumn, kind_of, value_at
from groupwise.tasks.data.settings import DataSettings, template_columns

_LETTERS = string.ascii_uppercase
#: The note on a last turn of the assistant's that stays.
CONTINUED = "the prompt ends with the assistant's turn: the policy continues it"
#: A column of TRL's that chat templates are given row by row, and what becomes of it, as a note says it.
KEYWORDS = "chat_template_kwargs"
UNREAD = f"{KEYWORDS!r} is not given to the chat template, which reads chat.thinking of the recipe for every row"
#: Mark of a prompt for what is in a column beside it, as verl's files have it.
_MARK = re.compile("<(image|video|audio)>")
LEFT_OUT = "the conversation ends with the assistant's turn: left out, for the policy is to answer"


@dataclass(frozen=True)
class Reading:
    """A row, read.

    problem  what makes it this problem and no other: what it asks, without instruction and system prompt
    frame    system prompt, prefill and functions, which tell rows of one problem apart; "" where it has none of them
    changes  what the sample does not say as the row does, each kind in words; and what is missing
    """

    problem: str
    frame: str
    sample: Sample
    changes: Sequence[str]


@dataclass(frozen=True)
class Columns:
    """Reads rows as the settings say. Of each method, `values` are a row's columns and `where` its place, for messages.

    >>> columns = Columns(DataSettings(path="a.jsonl", prompt="{a} + {b}", answer="sum"))
    >>> columns.read({"a": 1, "b": 2, "sum": "3"}, key="a:1", where="a.jsonl, line 1", origin="a").sample.prompt
    '1 + 2'
    """

    settings: DataSettings

    @cached_property
    def required(self) -> dict[str, str]:
        """Column that every row must have -> the recipe's key that names it, as a message says it."""
        s = self.settings
        keys = {} if s.messages else dict.fromkeys(self._template or [s.prompt], "prompt")
        named_in = (
            *(["answer"] if s.must_have_answer else []),
            *(["functions"] if s.must_have_functions else []),
            *("solution", "messages", "source"),
        )
        others = [(key, getattr(s, key)) for key in named_in]
        keys |= {column: key for key, column in others if column and column not in keys}
        named = {column: f"task.{key} = {getattr(s, key)!r}" for column, key in keys.items()}
        return named | {column: f"task.filter.{column}" for column in s.filter if column not in named}

    def gold(self, values: Mapping[str, Any]) -> str | None:
        """Return the answer; None if the row has none (no text, no mark, no box), "" if it need not have one."""
        s = self.settings
        if self._lacks_answer(values):
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

    def read(self, values: Mapping[str, Any], key: str, where: str, origin: str) -> Reading:
        """Read what the row says; `origin` is its source if no column says another. Columns that the sample does not
        hold go to `extra`.
        """
        s, changes = self.settings, list[str]()
        turns = self._conversation(values, where, changes)
        if turns:
            problem, asked = question(turns), len(without_prefill(turns))
            users = [place for place in range(asked) if turns[place]["role"] == "user"]
            last = users[-1] if users else asked - 1  # what a tool said last stays as it is
            turns[last] = {**turns[last], "content": turns[last]["content"] + s.instruction}
            text = turns[asked - 1]["content"]
        else:
            problem = self._text(values, where, changes)
            text = problem + s.instruction
        _require_text(problem, values, where)
        answer, held_answer = self._answer(values, changes)
        tools = self._functions(values, where, changes)
        if values.get(KEYWORDS) and KEYWORDS not in self._template:
            changes.append(UNREAD)
        shown = (s.prompt, s.messages, "" if s.answer_after or s.answer_boxed else s.answer)
        sample = Sample(
            key=key,
            prompt=text,
            answer=answer,
            extra={name: value for name, value in values.items() if name not in shown},
            source=self._source(values, origin, changes),
            messages=tuple(turns),
            tools=tools,
            held_answer=held_answer,
        )
        return Reading(problem, frame(turns, tools), sample, changes)

    def solution(self, sample: Sample) -> str:
        """Return the worked solution that the sample's row holds, "" if it holds none."""
        s = self.settings
        try:
            text = value_at(sample.extra, s.solution)
        except MissingColumn:
            text = sample.answer if s.solution == s.answer else ""
        return text if isinstance(text, str) else ""

    @cached_property
    def _template(self) -> list[str]:
        return template_columns(self.settings.prompt)

    def _conversation(self, values: Mapping[str, Any], where: str, changes: list[str]) -> list[Turn]:
        """Return the turns of the row, none if its prompt is a text.

        What `messages` holds is a whole conversation, whose last answer the policy is to write itself; a prompt that
        ends with the assistant's turn is a prompt, which the policy continues.
        """
        s = self.settings
        key, column = ("messages", s.messages) if s.messages else ("prompt", s.prompt)
        if not s.messages and (self._template or not has_turns(value_at(values, column))):
            return []
        turns, own = conversation(value_at(values, column), where, f"task.{key} = {column!r}")
        changes += own
        asked = without_prefill(turns)
        begun = len(asked) < len(turns) and bool(turns[-1]["content"])
        if s.messages:
            changes += [LEFT_OUT] * begun
            return asked
        if unread := ", ".join(sorted({key for turn in turns[len(asked) :] for key in turn} - {"role", "content"})):
            changes.append(f"the assistant's turn that ends the prompt holds {unread} beside its content: not read")
        changes += [CONTINUED] * begun
        return turns if begun else asked

    def _text(self, values: Mapping[str, Any], where: str, changes: list[str]) -> str:
        column = self.settings.prompt
        text = _filled(column, values, changes) if self._template else value_at(values, column)
        if isinstance(text, str) and text.strip():
            return text
        what = f"{where}: task.prompt = {column!r}: "
        if isinstance(text, str):
            raise UsageError(f"{what}empty; fill it or take the row out")
        raise UsageError(f"{what}{kind_of(text)}, neither text nor a conversation{inside(text)}")

    def _answer(self, values: Mapping[str, Any], changes: list[str]) -> tuple[str, tuple[Any, ...]]:
        """Return the gold answer as text, and (as the row holds it,), or () where the text is all there is."""
        s = self.settings
        if self._lacks_answer(values):
            return "", ()
        text, cut, value = self.gold(values), s.answer_after or s.answer_boxed, value_at(values, s.answer)
        if text:
            return text, () if cut or value == text else (value,)  # white space around a text is part of it
        if not cut and isinstance(value, (dict, list, bool)):
            return json.dumps(value, ensure_ascii=False), (value,)
        changes.append(f"no gold answer in the column {s.answer!r}: rewards get {None if cut else value!r}")
        return "", (None if cut else value,)

    def _functions(self, values: Mapping[str, Any], where: str, changes: list[str]) -> tuple[dict[str, Any], ...]:
        """Read the schemas of the functions that the policy may call; none if the prompt itself shows their column."""
        name = self.settings.functions
        named = self.settings.must_have_functions
        if not name or name in self._template or not (named or name in values):
            return ()
        value = value_at(values, name)
        if _is_nothing(value):
            return ()
        try:
            schemas, own = conversations.functions(value, f"{where}: task.functions = {name!r}")
        except UsageError:
            if named:
                raise
            changes.append(f"no list of functions in the column {name!r}: not in the prompt, rewards get it as it is")
            return ()
        changes += own
        return tuple(schemas)

    def _lacks_answer(self, values: Mapping[str, Any]) -> bool:
        """Tell if the row has no column of a gold answer, and need not have one."""
        if self.settings.must_have_answer or not self.settings.answer:
            return not self.settings.must_have_answer
        try:
            value_at(values, self.settings.answer)
        except MissingColumn:
            return True
        return False

    def _source(self, values: Mapping[str, Any], origin: str, changes: list[str]) -> str:
        value = value_at(values, self.settings.source) if self.settings.source else origin
        if _is_nothing(value):
            changes.append(f"nothing (null) in the column {self.settings.source!r}: {origin!r} is their source")
            return origin
        return _written(value)


def last_boxed(text: str) -> str:
    r"""Return what the last \boxed{...} of a text holds, "" if there is none or its braces do not close.

    >>> last_boxed(r"so \boxed{1}, no: $\boxed{\frac{1}{2}}$.")
    '\\frac{1}{2}'
    """
    before, opening, after = text.rpartition("\\boxed{")
    return balanced(text, len(before + opening), len(after)) or "" if opening else ""


def _require_text(problem: str, values: Mapping[str, Any], where: str) -> None:
    """Raise UsageError, `where` first, for a prompt that shows what a column beside it holds, such as an image."""
    for kind in _MARK.findall(problem):
        for column in (kind, f"{kind}s"):
            if values.get(column):
                words = f"the prompt shows <{kind}>, and the column {column!r} holds it"
                raise UsageError(f"{where}: {words}; text alone is read: take the row out")


def _filled(template: str, values: Mapping[str, Any], changes: list[str]) -> str:
    """Return a template with the values of its columns; one that holds nothing, or a list of it, is told of."""
    pieces = list[str]()
    for text, column, _, _ in string.Formatter().parse(template):
        pieces.append(text)
        if column is None:
            continue
        value = value_at(values, column)
        if any(map(_is_nothing, value if isinstance(value, list) else [value])):
            changes.append(f"nothing (null) in the column {column!r} of task.prompt: left empty there")
        pieces.append(_inserted(value))
    return "".join(pieces)


def _is_nothing(value: object) -> bool:
    """Tell if the value is null, or NaN, which is how pandas writes it."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def _inserted(value: Any) -> str:
    """Return a value as a template shows it: a list becomes lettered lines, as the choices of a question.

    >>> _inserted(["1", None, {"a": True}]), _inserted(2.5), _inserted(None)
    ('A. 1\\nB. \\nC. {"a": true}', '2.5', '')
    """
    if isinstance(value, list) and len(value) <= len(_LETTERS):
        return "\n".join(f"{letter}. {_written(entry)}" for letter, entry in zip(_LETTERS, value, strict=False))
    return _written(value)


def _written(value: Any) -> str:
    if _is_nothing(value):
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
