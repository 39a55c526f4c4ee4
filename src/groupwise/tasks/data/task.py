"""The task `data`: problems from files, folders or `datasets` ids, with a mapping of columns and a filter."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from groupwise.core.errors import UsageError, nearest
from groupwise.core.samples import Sample
from groupwise.core.task import Demonstration
from groupwise.tasks.data.columns import Columns, template_columns
from groupwise.tasks.data.keep import demand_filter
from groupwise.tasks.data.problems import Problems, read_problems
from groupwise.tasks.data.table import Samples

SPLITS = ("train", "heldout")


@dataclass(frozen=True, repr=False)
class Data:
    """Problems from a file (JSON lines, JSON, CSV, Parquet), a folder of them, or a `datasets` id `name:config`.

    path              where the problems are
    heldout           where the held-out ones are; "": the path's own test split, or a share of its problems
    heldout_share     the share split off where there is no other held-out set, by a hash of each problem's text
    prompt            the column of the problem, or a template such as "{question} Choose from: {choices}"
    answer            the column of the gold answer
    answer_after      the gold answer begins after the last of these in its column, such as "####"
    answer_boxed      the gold answer is what the last \\boxed{} of its column holds
    solution          the column of a worked solution, for demonstrations; "": none
    solution_without  a regular expression: what it finds is taken out of solutions
    messages          the column of a conversation, instead of `prompt`; a last turn of the assistant is left out
    source            the column that says where a problem is from, for scores by source; "": the file's name
    filter            column -> a value, a list of values, or {min = ..., max = ...}: rows that fulfil all of them stay
    limit             at most so many rows of `path`, the first ones that stay; 0: all
    seed              the order of the problems
    instruction       put after each prompt
    check             how a completion is compared with the gold answer: math, numeric, exact, choice; learned: a
                      reward model scores it, and there is no gold answer
    unreadable_limit  the largest share of gold answers that may be missing or that the check cannot read
    """

    path: str = ""
    heldout: str = ""
    heldout_share: float = 0.1
    prompt: str = "prompt"
    answer: str = "answer"
    answer_after: str = ""
    answer_boxed: bool = False
    solution: str = ""
    solution_without: str = ""
    messages: str = ""
    source: str = ""
    filter: Mapping[str, Any] = field(default_factory=dict)
    limit: int = 0
    seed: int = 0
    instruction: str = ""
    check: str = "math"
    unreadable_limit: float = 0.01

    def __post_init__(self) -> None:
        _demand_settings(self)
        demand_filter(self.filter)
        template_columns(self.prompt)

    def __repr__(self) -> str:
        """The keys that differ from their defaults: most recipes set few."""
        told = [
            (f.name, getattr(self, f.name)) for f in dataclasses.fields(self) if getattr(self, f.name) != _default(f)
        ]
        return f"Data({', '.join(f'{name}={value!r}' for name, value in told)})"

    @property
    def alphabet(self) -> str:
        """Texts of people: any character may come."""
        return ""

    @property
    def quick(self) -> bool:
        """Whether scoring takes microseconds and cannot hang."""
        return self._checker.quick

    @property
    def judged(self) -> bool:
        """Whether there are no gold answers, so that a reward model's score is all there is."""
        return self.check == "learned"

    @property
    def contents(self) -> str:
        """A hash of what the files say: another one where a prompt, an answer or a solution changed."""
        return self._problems.contents

    def samples(self, split: str) -> Samples:
        """The problems of "train" or "heldout", in a shuffled order that is the same in every process."""
        if split not in SPLITS:
            raise UsageError(f"a data set has the splits {' and '.join(SPLITS)}, not {split!r}")
        return self._problems.train if split == "train" else self._problems.heldout

    def score(self, sample: Sample, completion: str) -> float:
        """1.0 where the completion's answer is the gold answer, else 0.0."""
        return self._checker(completion, sample.answer)

    def notes(self) -> list[str]:
        """What a person should know about the files: rows read, and rows left out, with the reason."""
        return list(self._problems.notes)

    @property
    def repeated(self) -> Samples:
        """Rows whose problem stands in their own split before; none of them is a sample."""
        return self._problems.repeated

    @property
    def leaked(self) -> Samples:
        """Held-out rows whose problem is trained on; none of them is a sample."""
        return self._problems.leaked

    def gold(self, sample: Sample) -> str:
        """The row's solution, or its answer where there is none: a completion that should score 1.0."""
        return self._solution(sample) or sample.answer

    def demonstrations(self, count: int, seed: int) -> Iterable[Demonstration]:
        """`count` solutions of training problems, drawn with replacement. Raises UsageError where there are none."""
        if not self.solution:
            raise UsageError("task.solution is not set: a warm start needs a column of worked solutions to imitate")
        train, rng = self.samples("train"), random.Random(seed)
        return [self._demonstrate(train[rng.randrange(len(train))]) for _ in range(count)]

    def _demonstrate(self, sample: Sample) -> Demonstration:
        text = self._columns.worked(sample)
        if not text:
            raise UsageError(f"{sample.key}: task.solution = {self.solution!r} holds no text, so nothing to imitate")
        return Demonstration(sample.prompt, self._solution(sample))

    def _solution(self, sample: Sample) -> str:
        text = self._columns.worked(sample)
        return re.sub(self.solution_without, "", text) if self.solution_without else text

    @cached_property
    def _columns(self) -> Columns:
        return Columns(**{f.name: getattr(self, f.name) for f in dataclasses.fields(Columns)})

    @cached_property
    def _checker(self) -> Any:
        return _checkers()[self.check]()

    @cached_property
    def _problems(self) -> Problems:
        return read_problems(self, self._columns, self._checker.readable)

    def __getstate__(self) -> dict[str, Any]:
        """The settings alone: a process that only scores reads no file."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}


def _checkers() -> Mapping[str, Any]:
    from groupwise.rewards.verifiers.answers import CHECKERS

    return CHECKERS


def _default(f: dataclasses.Field[Any]) -> object:
    return f.default if f.default_factory is dataclasses.MISSING else f.default_factory()


def _demand_settings(data: Data) -> None:
    """Raises UsageError for a value that no data set can make good."""
    if not data.path:
        raise UsageError('task.path is missing: a file, a folder, or an id such as "openai/gsm8k:main"')
    for name in ("heldout_share", "unreadable_limit"):
        if not 0 <= getattr(data, name) < 1:
            raise UsageError(f"task.{name} must be at least 0 and below 1, not {getattr(data, name)}")
    if data.limit < 0:
        raise UsageError(f"task.limit must not be negative, not {data.limit}")
    if not (data.answer or data.check == "learned") or not (data.prompt or data.messages):
        raise UsageError("task.prompt and task.answer must name columns")
    if data.check not in _checkers():
        raise UsageError(f"task.check = {data.check!r}: there is no such check; {nearest(data.check, _checkers())}")
    try:
        re.compile(data.solution_without)
    except re.error as error:
        raise UsageError(f"task.solution_without = {data.solution_without!r}: no regular expression: {error}") from None
