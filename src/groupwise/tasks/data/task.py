"""The task `data`: problems from files, folders or `datasets` ids, with a mapping of columns and a filter."""

import dataclasses
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from groupwise.core.errors import UsageError, brief
from groupwise.core.numbers.seeds import derive
from groupwise.core.samples import Sample
from groupwise.core.task import Demonstration, Starting
from groupwise.rewards.verifiers.answers import CHECKERS, WITHOUT_ANSWERS, Numeric
from groupwise.rewards.verifiers.choice import Choice
from groupwise.tasks.data.columns import Columns
from groupwise.tasks.data.index import IndexedSamples
from groupwise.tasks.data.problems import Problems, read_problems
from groupwise.tasks.data.settings import DataSettings
from groupwise.tasks.settings import SPLITS, field_defaults, require_split


@dataclass(frozen=True, repr=False)
class Data(DataSettings):
    """Problems from files or data sets, each with a gold answer that a completion is compared with.

    A process that only scores reads no file: problems are read when they are used first.
    """

    late: ClassVar[float] = 0.0  # what mathematics cannot verify in time is wrong

    @property
    def alphabet(self) -> str:
        """Empty: the texts may hold any character."""
        return ""

    @property
    def quick(self) -> bool:
        """True if scoring takes microseconds and cannot hang."""
        return self._checker.quick

    def start_inside(self, starting: Starting) -> None:
        """Let what the checker asks start inside of `starting()`, from now on."""
        if not self.quick:
            self._checker.start_inside(starting)

    @property
    def has_answers(self) -> bool:
        """True if there are gold answers that completions are compared with."""
        return self.check not in WITHOUT_ANSWERS

    @property
    def contents(self) -> str:
        """A hash of what the files say: another one where a prompt, an answer or a solution changed."""
        return self._problems.contents

    def samples(self, split: str) -> IndexedSamples:
        """Return the problems of "train" or "heldout", in a shuffled order that is the same in every process."""
        require_split(split, "a data set")
        return self._problems.train if split == "train" else self._problems.heldout

    def score(self, sample: Sample, completion: str) -> float:
        """Return 1.0 if the assistant's turn, what is begun of it included, has the gold answer, else 0.0."""
        return self._checker(sample.begun + completion, sample.answer)

    def notes(self) -> Sequence[str]:
        """Say what a person should know about the files: rows read, and rows left out, with the reason."""
        return self._problems.notes

    @property
    def sets(self) -> Mapping[str, IndexedSamples]:
        """The held-out problems by the name of their set; empty if it has none."""
        return self._problems.sets

    @property
    def repeated(self) -> IndexedSamples:
        """Rows whose problem stands in their own split before; none of them is a sample."""
        return self._problems.repeated

    @property
    def leaked(self) -> IndexedSamples:
        """Held-out rows whose problem is trained on; none of them is a sample."""
        return self._problems.leaked

    @property
    def disputed(self) -> Sequence[str]:
        """The problems that come again with another gold answer: where each stands, with which."""
        return self._problems.disputed

    def gold(self, sample: Sample) -> str:
        """Return the row's solution, or its answer where there is none, behind the prefill: a completion that should
        score 1.0; "" if the answer is a list or a table.
        """
        of_parts = isinstance(sample.ground_truth, (list, dict))
        text = _behind(sample.prefill, self._solution(sample) or ("" if of_parts else sample.answer))
        unfinished = text and _CLOSE not in text and "<think>" in sample.begun.rpartition(_CLOSE)[2]
        return f"{_CLOSE}\n{text}" if unfinished else text

    def demonstrations(self, count: int, seed: int) -> list[Demonstration]:
        """Draw `count` solutions of training problems, with replacement. Raises UsageError if there are none."""
        if not self.solution:
            raise UsageError("task.solution is not set: a warm start needs a column of worked solutions to imitate")
        train, rng, shown = self.samples("train"), random.Random(seed), list[Demonstration]()
        for _ in range(count):
            sample = train[rng.randrange(len(train))]
            if not self._columns.solution(sample):
                what = f"{sample.key}: task.solution = {self.solution!r} holds no text"
                raise UsageError(f"{what}, so nothing to imitate")
            completion = _behind(sample.prefill, self._solution(sample))
            shown.append(Demonstration(sample.prompt, completion, sample.messages, sample.tools))
        return shown

    def _solution(self, sample: Sample) -> str:
        text = self._columns.solution(sample)
        return re.sub(self.solution_without, "", text) if self.solution_without else text

    @cached_property
    def _columns(self) -> Columns:
        return Columns(self)

    @cached_property
    def _checker(self) -> Any:
        checker = CHECKERS[self.check]
        return Choice(self.letters) if checker is Choice else checker()

    @cached_property
    def _problems(self) -> Problems:
        return read_problems(self._columns, self._checker.readable, self._same)

    def _same(self, answer: str, other: str) -> bool:
        """Tell if two gold answers are one, as far as that is known without mathematics."""
        compare = self._checker if self.has_answers and self.quick else Numeric()
        return answer == other or compare(answer, other) == 1.0


_CLOSE = "</think>"


def _behind(prefill: str, text: str) -> str:
    """Return what of a text comes behind the beginning of an answer: a word behind a word is a word of its own.

    >>> _behind("It is", "It is 4."), _behind("It is", "4"), _behind("It is ", "4"), _behind("", "4")
    (' 4.', ' 4', '4', '4')
    """
    if prefill and text.startswith(prefill):
        return text.removeprefix(prefill)
    return f" {text}" if text and prefill[-1:].isalnum() else text


#: Keys that say where problems come from.
DATA_KEYS = frozenset(field.name for field in dataclasses.fields(DataSettings))


class PlayedProblems(DataSettings, ABC):
    """Problems that an environment or an agent plays: from `path`, or from `samples(split)` in the code that `use`
    names. Their random numbers are a function of their keys.
    """

    use: str
    kind: ClassVar[str]

    @abstractmethod
    def own_samples(self, split: str) -> Sequence[Sample]:
        """Return the problems of the user's code."""

    def require_playable(self, sample: Sample) -> None:
        """Raise UsageError for a problem that cannot be played."""

    def require_problems(self, missing: str) -> None:
        """Raise UsageError for keys of `path` that nothing reads; `missing` says why there are no problems without."""
        defaults = field_defaults(self)
        if self.path:
            DataSettings.__post_init__(self)
        elif unread := [key for key in DATA_KEYS - {"seed"} if getattr(self, key) != defaults[key]]:
            raise UsageError(f"task.{min(unread)}: set, but without task.path nothing reads it; take it out")
        elif missing:
            raise UsageError(f"task.path is missing: {missing}")

    def samples(self, split: str) -> Sequence[Sample]:
        """Return the problems of "train" or "heldout"."""
        require_split(split, self.kind)
        return self._problems[split]

    def notes(self) -> Sequence[str]:
        """Write lines for the user, of the file of problems."""
        return self._data.notes() if self.path else []

    @cached_property
    def _data(self) -> Data:
        return Data(**{key: getattr(self, key) for key in DATA_KEYS})

    @cached_property
    def _problems(self) -> dict[str, list[Sample]]:
        return {split: [self._seeded(sample) for sample in self._listed(split)] for split in SPLITS}

    def _listed(self, split: str) -> Sequence[Sample]:
        if self.path:
            return self._data.samples(split)
        own = self.own_samples(split)
        if not own or not all(isinstance(sample, Sample) for sample in own):
            what = f"task.use = {brief(self.use)}: samples({split!r})"
            raise UsageError(f"{what} must be a list of groupwise.Sample, one at least")
        return own

    def _seeded(self, sample: Sample) -> Sample:
        self.require_playable(sample)
        return dataclasses.replace(sample, seed=sample.seed or derive(self.seed, "environment", sample.key))
