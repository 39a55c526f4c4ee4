"""The task `chats`: rows to imitate in the forms that TRL takes, `messages`, `prompt` and `completion`, or `text`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from groupwise.core.errors import UsageError, listed
from groupwise.core.samples import Sample
from groupwise.tasks.data.conversations import Turn, functions, has_turns, turns_of
from groupwise.tasks.data.formats import Row, Source
from groupwise.tasks.data.sources import sources_at
from groupwise.tasks.settings import SentAsSettings, require_split

#: Prompts of the task, the shortest, and the characters of each that are kept: they are tried, and not trained on.
TRIED, TRIED_LENGTH = 8, 200


@dataclass(frozen=True)
class Imitated:
    """One row to imitate.

    where     its file and line, for messages
    messages  the conversation; empty for a text alone
    first     the first message whose turns of the assistant's train
    text      a text that trains whole
    plain     prompt and completion were texts: without a chat template they are put together as they are
    """

    where: str
    messages: Sequence[Turn] = ()
    first: int = 0
    text: str = ""
    plain: bool = False
    tools: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        turns = [number for number, turn in enumerate(self.messages) if turn["role"] == "assistant"]
        if self.messages and (not turns or turns[-1] < self.first):
            raise UsageError(f"{self.where}: no turn of the assistant's to train on; add one, or take the row out")
        if turns[:1] == [0]:
            raise UsageError(f"{self.where}: the assistant speaks first; put a turn before that, or take the row out")
        if not self.messages and not self.text:
            raise UsageError(f"{self.where}: an empty text; fill it, or take the row out")

    @property
    def begun(self) -> int:
        """Number of the first turn that trains."""
        return next(n for n, turn in enumerate(self.messages) if n >= self.first and turn["role"] == "assistant")


@dataclass(frozen=True)
class Chats(SentAsSettings):
    """Chats, prompts with completions, or texts to imitate, which nothing scores: supervised rows alone train.

    path  file or folder of rows, as supervised.path
    """

    path: str = ""
    quick: ClassVar[bool] = True
    has_answers: ClassVar[bool] = False

    @cached_property
    def rows(self) -> Sequence[Imitated]:
        """Every row of the files."""
        return [row for source in sources_at("supervised.path", self.path).train for row in imitated(source)]

    @property
    def alphabet(self) -> str:
        """Every character of the rows; "" if there are chats, which need a template and so a tokenizer of any text."""
        if not all(row.plain or row.text for row in self.rows):
            return ""
        said = (text for row in self.rows for text in (row.text, *(turn["content"] for turn in row.messages)))
        return "".join(sorted(set().union(*said)))

    def samples(self, split: str) -> Sequence[Sample]:
        """Return the shortest prompts, which engine and template are tried on; none is held out."""
        require_split(split, "chats")
        prompts = {row.where: row.messages[0]["content"] if row.messages else row.text for row in self.rows}
        short = sorted(prompts, key=lambda where: len(prompts[where]))[:TRIED] if split == "train" else ()
        return [Sample(where, prompts[where][:TRIED_LENGTH], "") for where in short]

    def score(self, sample: Sample, completion: str) -> float:
        """Raise UsageError: nothing scores chats."""
        raise UsageError("task.name = 'chats': nothing scores chats")


def imitated(source: Source) -> list[Imitated]:
    """Read the rows of a source. Raises UsageError, with file and line, for one of no known form."""
    rows = [_imitated(row, source.where(row.number)) for row in source.rows()]
    if not rows:
        raise UsageError(f"{source.name}: empty: there is no row in it")
    return rows


def _imitated(row: Row, where: str) -> Imitated:
    held = {name: value for name, value in row.values.items() if value is not None}
    tools, _ = functions(held.get("tools"), f"{where}: tools")
    if "messages" in held:
        return Imitated(where, _turns(held["messages"], "user", f"{where}: messages"), tools=tools)
    if {"prompt", "completion"} <= held.keys():
        sides = ("prompt", "user"), ("completion", "assistant")
        prompt, completion = (_turns(held[name], role, f"{where}: {name}") for name, role in sides)
        plain = isinstance(held["prompt"], str) and not has_turns(held["prompt"])
        return Imitated(where, [*prompt, *completion], len(prompt), plain=plain, tools=tools)
    if isinstance(held.get("text"), str):
        return Imitated(where, text=held["text"])
    forms = "`messages`, `prompt` and `completion`, or `text`"
    raise UsageError(f"{where}: must have {forms}; it has {listed(held) or 'nothing'}: rename its columns")


def _turns(value: object, role: str, place: str) -> list[Turn]:
    """Read one side of a row: turns, or what one role says as text."""
    if isinstance(value, str) and role and not has_turns(value):
        return [{"role": role, "content": value}]
    return turns_of(value, place)[0]
