"""Rewards that a recipe can name: those for the form of a completion, whatever it answers, and a user's own."""

import asyncio
import inspect
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from groupwise.core.code.user_code import NO_FILES, Files, Source, load, raised, source
from groupwise.core.errors import UsageError, nearest, one_line
from groupwise.core.samples import Attempt, Reward
from groupwise.core.task import ScoresLate, Starts, Task
from groupwise.rewards.functions.adapters import SINGLE, Bound, bound
from groupwise.rewards.judge.judge import Judge


@dataclass(frozen=True)
class User:
    """Your own reward, a function or a class: `module:name` or `path/to/file.py:name`.

    use       function or class
    settings  arguments of a class, or of each call of a function

    A class is instantiated once in every process that scores. Which forms there are: docs/howto/rewards.md.
    """

    use: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    quick = False

    def bind(self, files: Files = NO_FILES) -> Bound:
        """Load the function. Raises UsageError, with the user's traceback as its note, where that cannot be done."""
        definition = load(self.use, f"reward {self.use}", files)
        if not inspect.isclass(definition):
            function = bound(definition, self.use, self.settings)
            _require_known(self.settings, function.parameters, self.use)
            return function
        try:
            instance = definition(**self.settings)
        except Exception as error:
            constructor = f"{self.use.rpartition(':')[2]}({', '.join(f'{k}={v!r}' for k, v in self.settings.items())})"
            raise raised(f"reward {self.use}", constructor, error) from None
        return bound(instance, self.use, {})

    def __call__(self, attempts: Sequence[Attempt]) -> Sequence[float]:
        """Score in this process, without a deadline; NaN if there is none."""
        return _scores(self.bind(), attempts)


@dataclass(frozen=True, repr=False)
class FromFile:
    """A user's reward with its file as it was when the run began: what the processes that score are sent."""

    reward: User
    source: Source
    quick = False

    @property
    def use(self) -> str:
        """Name of the reward, its file named from the root on."""
        return f"{self.source.path}:{self.reward.use.rpartition(':')[2]}"

    def bind(self) -> Bound:
        return replace(self.reward, use=self.use).bind({self.source.path: self.source})

    def __call__(self, attempts: Sequence[Attempt]) -> Sequence[float]:
        return _scores(self.bind(), attempts)

    def __repr__(self) -> str:
        return repr(self.reward)


def with_file(reward: User, files: Files = NO_FILES) -> User | FromFile:
    """Read the file of a reward; a reward of a module stays as it is. Raises UsageError if there is no such file."""
    file = source(reward.use, f"reward {reward.use}", files)
    return FromFile(reward, file) if file else reward


@dataclass(frozen=True)
class TaskScore:
    """A task's own scorer as a reward."""

    task: Task

    @property
    def late(self) -> float | None:
        """Score of a completion that has none in time; None if that is no score."""
        return self.task.late if isinstance(self.task, ScoresLate) else None

    def bind(self) -> Bound:
        starts = self.task if isinstance(self.task, Starts) else None
        return Bound(self.task.score, SINGLE, type(self.task).__name__, starts=starts)


def _scores(bound: Bound, attempts: Sequence[Attempt]) -> list[float]:
    with asyncio.Runner() as runner:
        calls = bound.score(attempts, finisher(runner))
        return [result.value for results in calls for result in results]


def finisher(runner: asyncio.Runner) -> Callable[[Any], Any]:
    """Make (awaitable) -> its result, on the runner's own loop: a user's sessions stay bound to one."""

    async def finish(awaitable: Any) -> Any:
        return await awaitable

    return lambda awaitable: runner.run(finish(awaitable))


def _require_known(settings: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter], use: str) -> None:
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    for key in settings:
        if key not in parameters:
            raise UsageError(f"reward {use}: the setting {key!r} is no parameter of it; {nearest(key, parameters)}")


#: A longer pattern is refused: some take milliseconds for each of their characters before anything is matched.
LONGEST_PATTERN = 2_000
#: An n-gram of more words says nothing about repetition, and all of them together take the square of the memory.
LARGEST_N = 100


@dataclass(frozen=True)
class Format:
    r"""1.0 if the whole completion matches a regular expression (the dot matches newlines), else 0.0.

    pattern  regular expression, as in Python's `re`
    longest  most characters; a longer completion scores 0.0

    A match can take time that grows without bound, and no pattern says whether it does: it is scored by a worker.

    >>> Format(r"<think>.*</think>\s*\d+").worth("<think>48/2</think> 24")
    1.0
    """

    pattern: str
    longest: int = 100_000
    quick = False

    def __post_init__(self) -> None:
        if self.longest < 1:
            raise UsageError(f"longest must be at least 1 character, not {self.longest}")
        if len(self.pattern) > LONGEST_PATTERN:
            raise UsageError(f"pattern has {len(self.pattern)} characters; it may have {LONGEST_PATTERN}")
        try:
            re.compile(self.pattern, re.DOTALL)
        except (re.error, OverflowError, RecursionError) as error:
            words = one_line(error)
            raise UsageError(f"pattern {self.pattern!r:.80} is not a regular expression: {words:.200}") from None

    def __call__(self, attempts: Sequence[Attempt]) -> list[float]:
        return [self.worth(attempt.completion) for attempt in attempts]

    def worth(self, text: str) -> float:
        """Return the score of one text: 0.0 or 1.0."""
        return float(len(text) <= self.longest and re.fullmatch(self.pattern, text, re.DOTALL) is not None)


@dataclass(frozen=True)
class Tags:
    """1.0 for `<a>text</a> <b>text</b>`, each tag once, in order, no text outside; less for a part of it.

    tags    tag names, in order
    opened  the prompt already opens the first tag, as some chat templates do

    Half is for the tags: every opening and closing that occurs exactly once earns its share. With all of them a quarter
    more is for the order, and with the order the last quarter, where nothing is empty and nothing stands outside.

    >>> tags = Tags()
    >>> tags.worth("<think>48/2</think><answer>24</answer>"), tags.worth("<think>48/2</think> 24"), tags.worth("24")
    (1.0, 0.25, 0.0)
    """

    tags: Sequence[str] = ("think", "answer")
    opened: bool = False
    quick = True

    def __post_init__(self) -> None:
        if isinstance(self.tags, str) or not all(isinstance(tag, str) for tag in self.tags):
            raise UsageError(f"tags must be a list of names, not {self.tags!r}")
        object.__setattr__(self, "tags", tuple(self.tags))  # a recipe writes a list
        names = set(self.tags)
        if not names or len(names) < len(self.tags) or not all(re.fullmatch(r"\w+", name) for name in names):
            raise UsageError(f"tags must be different names without < and >, not {list(self.tags)}")

    def __call__(self, attempts: Sequence[Attempt]) -> list[float]:
        return [self.worth(attempt.completion) for attempt in attempts]

    def worth(self, text: str) -> float:
        """Return the score of one text, from 0 to 1."""
        text = f"<{self.tags[0]}>{text}" if self.opened else text
        marks = [mark for tag in self.tags for mark in (f"<{tag}>", f"</{tag}>")]
        once = [text.count(mark) == 1 for mark in marks]
        if not all(once):
            # an opening that the prompt gave earns the completion nothing
            earned = sum(once) - (self.opened and once[0])
            return 0.5 * earned / (len(marks) - self.opened)
        starts = [text.index(mark) for mark in marks]
        if starts != sorted(starts):
            return 0.5
        ends = [start + len(mark) for start, mark in zip(starts, marks, strict=True)]
        between = [text[end:start].strip() for end, start in zip([0, *ends], [*starts, len(text)], strict=True)]
        return 1.0 if all(between[1::2]) and not any(between[0::2]) else 0.75


@dataclass(frozen=True)
class Repetition:
    """`largest` times the share of repeated n-grams in a completion; 0 if none is repeated.

    n        words (or tokens) in an n-gram; shorter completions score 0
    largest  score of a completion that repeats everything; at most 0
    tokens   use token ids, for text without spaces

    >>> reward = Repetition(n=2)
    >>> reward.worth("a b c".split()), reward.worth("a a a a a".split())
    (0.0, -0.75)
    """

    n: int = 3
    largest: float = -1.0
    tokens: bool = False
    quick = True

    def __post_init__(self) -> None:
        if not 1 <= self.n <= LARGEST_N:
            raise UsageError(f"n must be from 1 to {LARGEST_N}, not {self.n}")
        if not -float("inf") < self.largest <= 0:
            raise UsageError(f"largest must be a number of at most 0 (a penalty), not {self.largest}")

    def __call__(self, attempts: Sequence[Attempt]) -> list[float]:
        return [self.worth(one.tokens if self.tokens else one.completion.lower().split()) for one in attempts]

    def worth(self, units: Sequence[Hashable]) -> float:
        """Return the score of one sequence of words or ids."""
        grams = [tuple(units[start : start + self.n]) for start in range(len(units) - self.n + 1)]
        repeated = len(grams) - len(set(grams))
        return self.largest * repeated / len(grams) if repeated else 0.0


#: The word a recipe uses -> the reward.
FORMS: Mapping[str, type[Reward]] = {"format": Format, "tags": Tags, "repetition": Repetition}
KINDS: Mapping[str, Any] = {"user": User, "judge": Judge, **FORMS}
