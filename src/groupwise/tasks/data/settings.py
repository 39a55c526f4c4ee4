"""The keys of the task `data`, and its filter: which rows stay, by the values of their columns."""

import re
import string
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from string import ascii_uppercase
from typing import Any

from groupwise.core.errors import UsageError, brief, nearest
from groupwise.rewards.verifiers.answers import CHECKERS, WITHOUT_ANSWERS
from groupwise.rewards.verifiers.choice import Choice
from groupwise.tasks.data.formats import value_at
from groupwise.tasks.settings import SentAsSettings, field_defaults

#: The column of gold answers in verl's files, of which those that a model judges have none.
VERL_ANSWER = "reward_model.ground_truth"
#: Keys of a table under a column of the filter.
_RANGE = ("min", "max")


@dataclass(frozen=True, repr=False)
class DataSettings(SentAsSettings):
    """Problems from a file (JSON lines, JSON, CSV, Parquet), a folder of them, or a `datasets` id `name:config`.

    Every key that names a column takes one inside another too, such as "reward_model.ground_truth".

    path              JSONL, JSON, CSV or Parquet file, a folder of them, or a data set id `name:config`
    heldout           held-out problems, as `path`; "": the test split of `path`, or a share
    heldout_sets      name -> held-out set, as `path`; instead of `heldout`, each is evaluated under its name
    heldout_share     share held out if there is no other held-out set, by a hash of each problem's text
    prompt            column of the problem (text or conversation), or a template such as "{question} Choose from:
                      {choices}"
    answer            column of the gold answer; rows may lack it if `check` does not compare
    answer_after      the gold answer follows the last of these texts in its column, such as "####"
    answer_boxed      the gold answer is in the last \\boxed{} of its column
    solution          column of a worked solution, for demonstrations; "": none
    solution_without  regular expression of text to remove from solutions
    messages          column of a conversation, instead of `prompt`; a last assistant turn is dropped
    functions         column of tools (JSON schemas) for the chat template; rows may lack the default column; "": none
    source            column of the problem's source, for scores by source; "": the file's name
    filter            column -> value, list of values or {min = ..., max = ...}; keep rows that match all
    repeats           keep rows that repeat a problem; false: keep the first
    limit             number of first rows of `path` to keep; 0: all
    seed              seed of the problems' order
    instruction       text after each prompt
    check             comparison with the gold answer: math, numeric, exact, choice; none: only rewards score; learned:
                      a reward model scores
    letters           letters of the options for check = "choice", such as "ABCD"
    unreadable_limit  largest share of gold answers that may be missing or unreadable
    """

    path: str = ""
    heldout: str = ""
    heldout_sets: Mapping[str, str] = field(default_factory=dict)
    heldout_share: float = 0.1
    prompt: str = "prompt"
    answer: str = "answer"
    answer_after: str = ""
    answer_boxed: bool = False
    solution: str = ""
    solution_without: str = ""
    messages: str = ""
    functions: str = "tools"
    source: str = ""
    filter: Mapping[str, Any] = field(default_factory=dict)
    repeats: bool = False
    limit: int = 0
    seed: int = 0
    instruction: str = ""
    check: str = "math"
    letters: str = ascii_uppercase
    unreadable_limit: float = 0.01

    def __post_init__(self) -> None:
        if not self.path:
            raise UsageError('task.path is missing: a file, a folder, or an id such as "openai/gsm8k:main"')
        for name in ("heldout_share", "unreadable_limit"):
            if not 0 <= getattr(self, name) < 1:
                raise UsageError(f"task.{name} must be at least 0 and below 1, not {getattr(self, name)}")
        if self.heldout and self.heldout_sets:
            raise UsageError("task.heldout and task.heldout_sets are two ways to say one thing; take one of them out")
        for name, place in self.heldout_sets.items():
            if not name or not isinstance(place, str) or not place:
                raise UsageError(f"task.heldout_sets.{name} = {brief(place)}: must be a file, a folder or an id")
        if self.limit < 0:
            raise UsageError(f"task.limit must not be negative, not {self.limit}")
        if self.check not in CHECKERS:
            near = nearest(self.check, CHECKERS)
            raise UsageError(f"task.check = {brief(self.check)}: there is no such check; {near}")
        if self.check == "choice":
            try:
                Choice(self.letters)
            except UsageError as error:
                raise UsageError(f"task.{error}") from None
        elif self.letters != ascii_uppercase:
            raise UsageError(f'task.letters = {brief(self.letters)}: only task.check = "choice" compares letters')
        if not (self.prompt or self.messages):
            raise UsageError("task.prompt is empty: it must name a column, or task.messages one of conversations")
        if not self.answer and self.check not in WITHOUT_ANSWERS:
            raise UsageError(
                f"task.answer is empty: task.check = {self.check!r} compares completions with gold answers; name their "
                'column, or set task.check = "none", and rewards score'
            )
        try:
            re.compile(self.solution_without)
        except (re.error, RecursionError, OverflowError) as error:
            what = f"task.solution_without = {brief(self.solution_without)}"
            raise UsageError(f"{what}: no regular expression: {error}") from None
        _require_filter(self.filter)
        template_columns(self.prompt)

    @property
    def must_have_answer(self) -> bool:
        """True if every row must have the column of the answer: something compares with it, or a person named it."""
        named = self.answer not in (DataSettings.answer, VERL_ANSWER)
        return bool(self.answer) and (self.check not in WITHOUT_ANSWERS or named)

    @property
    def must_have_functions(self) -> bool:
        """True if every row must have the column of functions: a person named it."""
        return bool(self.functions) and self.functions != DataSettings.functions

    @property
    def heldout_paths(self) -> Mapping[str, str]:
        """Name of a held-out set -> where it is; of the only one the name is ""."""
        return {"": self.heldout} if self.heldout else self.heldout_sets

    def __repr__(self) -> str:
        """Write the keys that differ from their defaults: most recipes set few."""
        defaults = field_defaults(self)
        changed = [f"{k}={v!r}" for k, v in self.__getstate__().items() if v != defaults[k]]
        return f"{type(self).__name__}({', '.join(changed)})"


def template_columns(prompt: str) -> list[str]:
    """List the columns that a template names; none if the prompt is the name of a column.

    >>> template_columns("{question} Choose from: {extra.choices}"), template_columns("question")
    (['question', 'extra.choices'], [])
    """
    try:
        parsed = string.Formatter().parse(prompt)
        fields = [(name, form, conversion) for _, name, form, conversion in parsed if name is not None]
    except ValueError as error:
        what = f"task.prompt = {brief(prompt)}"
        raise UsageError(f"{what}: no template: {error}; a brace itself is written twice") from None
    for name, form, conversion in fields:
        if form or conversion or not name or "[" in name:
            raise UsageError(f"task.prompt = {brief(prompt)}: {{{name}}} must be the name of a column and nothing else")
    return [name for name, _, _ in fields]


def _require_filter(filter: Mapping[str, Any]) -> None:
    """Raise UsageError if a condition is not one of these: a value, a list of values, or a table of min and max."""
    for column, wanted in filter.items():
        if isinstance(wanted, Mapping):
            for key, bound in wanted.items():
                if key not in _RANGE:
                    inside = f'a column inside another is written filter."{column}.{key}"'
                    raise UsageError(f"task.filter.{column}.{key}: no such bound; {nearest(key, _RANGE)}; {inside}")
                if isinstance(bound, bool) or not isinstance(bound, (int, float)):
                    raise UsageError(f"task.filter.{column}.{key} = {bound!r}: must be a number")
        if isinstance(wanted, (Mapping, list, tuple)) and not wanted:
            raise UsageError(f"task.filter.{column} = {wanted!r}: nothing would be left")


def keeps(filter: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Tell if a row fulfils every condition.

    >>> row = {"level": "Level 2", "points": "3"}
    >>> keeps({"level": ["Level 1", "Level 2"], "points": {"max": 3}}, row), keeps({"points": 2}, row)
    (True, False)
    """
    return all(_fits(wanted, value_at(values, column)) for column, wanted in filter.items())


def _fits(wanted: Any, value: Any) -> bool:
    if isinstance(wanted, Mapping):
        number = _number(value)
        return number is not None and wanted.get("min", number) <= number <= wanted.get("max", number)
    if isinstance(wanted, (list, tuple)):
        return any(_fits(one, value) for one in wanted)
    if isinstance(value, str) and not isinstance(wanted, str):  # in a CSV file every value is text
        return _spelled(value) == wanted
    same_text = str(value).lower() == str(wanted).lower() if isinstance(value, bool) else str(value) == str(wanted)
    return value == wanted or same_text


def _spelled(text: str) -> Any:
    """Read the number, or true or false in any case, that a text is; the text itself where it is neither.

    >>> [_spelled(text) for text in ("3.0", "TRUE", "9007199254740993", "1_000", "Level 3")]
    [3.0, True, 9007199254740993, '1_000', 'Level 3']
    """
    if text.strip().lower() in ("true", "false"):
        return text.strip().lower() == "true"
    for kind in (int, float):
        with suppress(ValueError):
            return text if "_" in text else kind(text)
    return text


def _number(value: Any) -> float | None:
    if isinstance(value, int):  # of any size: one of hundreds of digits is no float
        return None if isinstance(value, bool) else value
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
