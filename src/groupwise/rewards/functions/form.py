"""Rewards that a recipe can name: those for the form of a completion, whatever it answers, and a user's own."""

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from groupwise.core.errors import UsageError, one_line
from groupwise.core.reward import Reward
from groupwise.core.samples import Attempt
from groupwise.rewards.functions.user import User

#: A longer pattern is refused: some take milliseconds for each of their characters before anything is matched.
LONGEST_PATTERN = 2_000
#: An n-gram of more words says nothing about repetition, and all of them together take the square of the memory.
LARGEST_N = 100


@dataclass(frozen=True)
class Format:
    r"""1.0 where the whole completion matches a regular expression (its dot matches newlines), else 0.0.

    pattern  in the language of Python's `re`
    longest  a longer completion scores 0.0: characters

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
    """1.0 where the completion is `<a>text</a> <b>text</b>`: each tag once, in order, text inside only; else less.

    tags    their names, in order
    opened  whether the prompt's last words already open the first tag, as some chat templates do

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
    """`largest` times the share of n-grams that occurred before in the same completion: 0 where none is repeated.

    n        words (or tokens) in an n-gram; a completion of fewer scores 0
    largest  the score of a completion that repeats everything: at most 0
    tokens   n-grams of sampled ids instead of words, for text without spaces

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
KINDS: Mapping[str, Any] = {"user": User, **FORMS}
