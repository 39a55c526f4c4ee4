"""The task `chain`: some twenty sums of the last two digits, modulo 10, in answers of about a hundred characters.

    d:4+5=9                     the problem: the digits 4, 5, 9, to be gone on with down to the letter a
    c:5+9=4b:9+4=3a:4+3=7       each step written out
    c4b3a7                      each step by its digit alone
    c:5+9:5+9=4b3a7             some of each, and one sum said twice
    c4?1                        the rest guessed

The last digit of a completion is its answer. A demonstration writes out a share of its steps; a digit that stands alone
is sometimes wrong, and some demonstrations end in a guess. So how long an answer is, is the policy's choice: a step
that is written out is longer and right more often, a sum that is said twice only longer, and wrong answers have any
length. What reinforcement can find: write steps out, or be sure of digits that stand alone, and never guess. All that a
step needs stands in the few tokens before it, for to look things up further back is slow to learn.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from string import ascii_lowercase
from typing import ClassVar

from groupwise.core.errors import UsageError
from groupwise.core.samples import Sample
from groupwise.core.task import Demonstration
from groupwise.tasks.settings import fewest_and_most, require_share, require_shares
from groupwise.tasks.splits import SPLITS, in_hash_order, require_split, split_by_prompt

SIGNS = "+-"
#: Sums are modulo this, so that each is one digit.
MODULUS = 10
#: The letter of a chain's last step.
LAST = "a"
_DIGIT = re.compile(r"[0-9]")


@dataclass(frozen=True)
class Chain:
    """Sums or differences of the last two digits, modulo 10, with train and held-out problems that never meet.

    operations     (fewest, most) steps from a problem to its answer
    written_share  the share of steps that are written out, in the mean; each demonstration has a share of its own
    again_share    the share of written sums that are said once more, and of those again
    slip_share     the share of digits that stand alone that are wrong; what follows goes on from the wrong digit
    guess_share    the share of demonstrations that end in a guess, wherever they have got to
    heldout_share  the share of problems held out for evaluation
    seed           orders the problems
    """

    operations: tuple[int, int] = (16, 25)
    written_share: float = 0.6
    again_share: float = 0.2
    slip_share: float = 0.08
    guess_share: float = 0.15
    heldout_share: float = 0.3
    seed: int = 0
    quick: ClassVar[bool] = True

    def __post_init__(self) -> None:
        pair = fewest_and_most("operations", self.operations, limit=len(ascii_lowercase) - 1)
        object.__setattr__(self, "operations", pair)
        require_shares(self.heldout_share, 0.0, len(_prompts(pair)))
        require_share("written_share", self.written_share)
        require_share("again_share", self.again_share, most=0.9)
        require_share("slip_share", self.slip_share)
        require_share("guess_share", self.guess_share)
        if not all(self.samples(split) for split in SPLITS):
            raise UsageError(f"{self} leaves a split empty; move task.heldout_share")

    @property
    def alphabet(self) -> str:
        """Every character of this task's prompts and completions."""
        return "0123456789:=?" + SIGNS + ascii_lowercase

    def samples(self, split: str) -> Sequence[Sample]:
        """The problems of "train" or "heldout", in a shuffled order that is the same in every process."""
        require_split(split, "chain")
        return _splits(self.operations, self.heldout_share, self.seed)[split]

    def score(self, sample: Sample, completion: str) -> float:
        """1.0 where the last digit of the completion is the answer, else 0.0."""
        return 1.0 if _DIGIT.findall(completion)[-1:] == [sample.answer] else 0.0

    def gold(self, sample: Sample) -> str:
        """Every step written out: a completion that scores 1.0."""
        return "".join(step.written() for step in steps(sample.prompt))

    def demonstrations(self, count: int, seed: int) -> list[Demonstration]:
        """`count` demonstrations on training problems, some of them wrong: `slip_share` and `guess_share` say how."""
        train, rng = self.samples("train"), random.Random(seed)
        return [self._demonstrate(rng.choice(train), rng) for _ in range(count)]

    def _demonstrate(self, sample: Sample, rng: random.Random) -> Demonstration:
        step = problem(sample.prompt)
        share, digit, said = self._share(rng), step.digit, []
        guess = rng.randint(1, step.left) if rng.random() < self.guess_share else 0
        while step.left > guess:
            step = step.next(digit)
            digit, text = self._say(step, share, rng)
            said.append(text)
        if step.left:
            said.append(f"?{rng.randrange(MODULUS)}")
        return Demonstration(sample.prompt, "".join(said))

    def _share(self, rng: random.Random) -> float:
        """What share of one demonstration is written out: evenly around `written_share`, as far as 0 or 1."""
        reach = min(self.written_share, 1 - self.written_share)
        return self.written_share + reach * rng.uniform(-1, 1)

    def _say(self, step: "Step", share: float, rng: random.Random) -> tuple[int, str]:
        """A step's digit as a demonstration has it, and its text."""
        if rng.random() < share:
            times = 1
            while rng.random() < self.again_share:
                times += 1
            return step.digit, step.written(times)
        slip = rng.randrange(1, MODULUS) if rng.random() < self.slip_share else 0
        digit = (step.digit + slip) % MODULUS
        return digit, step.brief(digit)


@dataclass(frozen=True)
class Step:
    """One step of a chain: its letter, and the two digits before it with the sign between them."""

    letter: str
    first: int
    sign: str
    second: int

    @property
    def digit(self) -> int:
        """The sum or difference, modulo 10."""
        return (self.first + self.second if self.sign == "+" else self.first - self.second) % MODULUS

    @property
    def left(self) -> int:
        """How many steps come after it."""
        return ord(self.letter) - ord(LAST)

    def next(self, digit: int) -> "Step":
        """The step after it, where its own digit was said to be `digit`."""
        return Step(chr(ord(self.letter) - 1), self.second, self.sign, digit)

    def written(self, times: int = 1) -> str:
        """The step with its sum, said so many times: `c:5+9=4`, `c:5+9:5+9=4`."""
        return self.letter + f":{self.first}{self.sign}{self.second}" * times + f"={self.digit}"

    def brief(self, digit: int) -> str:
        """The step by a digit alone: `c4`."""
        return f"{self.letter}{digit}"


def problem(prompt: str) -> Step:
    """The step that a problem is: `d:4+5=9`."""
    return Step(letter=prompt[0], first=int(prompt[2]), sign=prompt[3], second=int(prompt[4]))


def steps(prompt: str) -> list[Step]:
    """The steps from a problem to its answer.

    >>> [step.written() for step in steps("d:4+5=9")], [step.brief(step.digit) for step in steps("d:4+5=9")]
    (['c:5+9=4', 'b:9+4=3', 'a:4+3=7'], ['c4', 'b3', 'a7'])
    """
    step, after = problem(prompt), []
    while step.left:
        step = step.next(step.digit)
        after.append(step)
    return after


@lru_cache(maxsize=8)
def _splits(operations: tuple[int, int], heldout_share: float, seed: int) -> dict[str, tuple[Sample, ...]]:
    ordered = in_hash_order(_prompts(operations), seed)
    samples = [Sample(key=prompt, prompt=prompt, answer=str(steps(prompt)[-1].digit)) for prompt in ordered]
    return split_by_prompt(samples, heldout_share)


@lru_cache(maxsize=8)
def _prompts(operations: tuple[int, int]) -> tuple[str, ...]:
    """Every problem of so many steps. Without the digits 0 and 0, after which all are 0."""
    fewest, most = operations
    starts = [
        Step(letter, first, sign, second)
        for letter in ascii_lowercase[fewest : most + 1]
        for sign in SIGNS
        for first in range(MODULUS)
        for second in range(MODULUS)
        if first or second
    ]
    return tuple(step.written() for step in starts)
