"""Chain: some twenty sums of the last two digits, modulo 10; a task whose answers are as long as the policy likes.

    groupwise train chain

    d:4+5=9                     the problem: the digits 4, 5, 9, to be gone on with down to the letter a
    c:5+9=4b:9+4=3a:4+3=7       each step written out
    c4b3a7                      each step by its digit alone
    c:5+9:5+9=4b3a7             some of each, and one sum said twice
    c4?1                        the rest guessed

What this example shows beside products.py: `alphabet` for a tiny policy, whose tokens are characters; `gold`, which
`groupwise check` scores; `demonstrations`, which a warm start imitates.
The last digit of a completion is its answer. A demonstration writes out a share of its steps; a digit that stands alone
is sometimes wrong, and some demonstrations end in a guess. So how long an answer is, is the policy's choice: a step
that is written out is longer and right more often, a sum that is said twice only longer, and wrong answers have any
length. What reinforcement can find: write steps out, or be sure of digits that stand alone, and never guess. All that a
step needs stands in the few tokens before it, for to look things up further back is slow to learn.
"""

import hashlib
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from string import ascii_lowercase
from typing import ClassVar

from groupwise import Demonstration, Sample, Task, UsageError

SIGNS = "+-"
#: Sums are modulo this, so that each is one digit.
MODULUS = 10
#: The letter of a chain's last step.
LAST = "a"
_DIGIT = re.compile(r"[0-9]")


@dataclass(frozen=True)
class Chain(Task):
    """Sums or differences of the last two digits, modulo 10; train and held-out problems are disjoint.

    operations     (fewest, most) steps from a problem to its answer
    written_share  mean share of written steps in a demonstration
    again_share    share of written sums that are repeated; the same share of those is repeated again
    slip_share     share of digits without a written sum that are wrong; later steps use the wrong digit
    guess_share    share of demonstrations that end in a guess
    heldout_share  share of problems held out
    seed           seed of the problems' order
    """

    operations: Sequence[int] = (16, 25)
    written_share: float = 0.6
    again_share: float = 0.2
    slip_share: float = 0.08
    guess_share: float = 0.15
    heldout_share: float = 0.3
    seed: int = 0
    quick: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "operations", tuple(self.operations))  # a recipe has a list, which cannot be hashed
        most = len(ascii_lowercase) - 1
        if len(self.operations) != 2 or not 2 <= self.operations[0] <= self.operations[1] <= most:
            wanted = f"[fewest, most] with 2 <= fewest <= most <= {most}"
            raise UsageError(f"task.operations must be {wanted}, not {self.operations}")
        if not 0 < self.heldout_share < 1:
            raise UsageError(f"task.heldout_share must lie between 0 and 1, not {self.heldout_share}")
        for key, most in (("written_share", 1), ("again_share", 0.9), ("slip_share", 1), ("guess_share", 1)):
            if not 0 <= getattr(self, key) <= most:
                raise UsageError(f"task.{key} must be from 0 to {most}, not {getattr(self, key)}")
        if not self.samples("train") or not self.samples("heldout"):
            raise UsageError(f"{self} leaves a split empty; move task.heldout_share")

    @property
    def alphabet(self) -> str:
        """The characters of this task's prompts and completions."""
        return "0123456789:=?" + SIGNS + ascii_lowercase

    def samples(self, split: str) -> Sequence[Sample]:
        """List the problems of "train" or "heldout", in a shuffled order that is the same in every process."""
        if split not in ("train", "heldout"):
            raise UsageError(f"chain has the splits train and heldout, not {split!r}")
        return _splits(self.operations, self.heldout_share, self.seed)[split]

    def score(self, sample: Sample, completion: str) -> float:
        """Score a completion: 1.0 if its last digit is the answer, else 0.0."""
        return 1.0 if _DIGIT.findall(completion)[-1:] == [sample.answer] else 0.0

    def gold(self, sample: Sample) -> str:
        """Write every step out: a completion that scores 1.0."""
        return "".join(step.written() for step in steps(sample.prompt))

    def demonstrations(self, count: int, seed: int) -> list[Demonstration]:
        """Draw demonstrations on training problems, some of them wrong: `slip_share` and `guess_share` say how."""
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
        """Draw the share of one demonstration that is written out: evenly around `written_share`, as far as 0 or 1."""
        reach = min(self.written_share, 1 - self.written_share)
        return self.written_share + reach * rng.uniform(-1, 1)

    def _say(self, step: "Step", share: float, rng: random.Random) -> tuple[int, str]:
        """Draw a step's digit as a demonstration has it, and its text."""
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
        """The number of steps that come after it."""
        return ord(self.letter) - ord(LAST)

    def next(self, digit: int) -> "Step":
        """Make the step after it, if its own digit was said to be `digit`."""
        return Step(chr(ord(self.letter) - 1), self.second, self.sign, digit)

    def written(self, times: int = 1) -> str:
        """Write the step with its sum, said so many times: `c:5+9=4`, `c:5+9:5+9=4`."""
        return self.letter + f":{self.first}{self.sign}{self.second}" * times + f"={self.digit}"

    def brief(self, digit: int) -> str:
        """Write the step by a digit alone: `c4`."""
        return f"{self.letter}{digit}"


def problem(prompt: str) -> Step:
    """Read the step that a problem is: `d:4+5=9`."""
    return Step(letter=prompt[0], first=int(prompt[2]), sign=prompt[3], second=int(prompt[4]))


def steps(prompt: str) -> list[Step]:
    """List the steps from a problem to its answer.

    >>> [step.written() for step in steps("d:4+5=9")], [step.brief(step.digit) for step in steps("d:4+5=9")]
    (['c:5+9=4', 'b:9+4=3', 'a:4+3=7'], ['c4', 'b3', 'a7'])
    """
    step, after = problem(prompt), []
    while step.left:
        step = step.next(step.digit)
        after.append(step)
    return after


@lru_cache(maxsize=8)
def _splits(operations: Sequence[int], heldout_share: float, seed: int) -> dict[str, tuple[Sample, ...]]:
    """Split the problems by a hash of their text, which no seed moves, and order each split by another."""
    splits: dict[str, list[Sample]] = {"train": [], "heldout": []}
    for prompt in sorted(_prompts(operations), key=lambda prompt: _fraction(f"order {seed} {prompt}")):
        sample = Sample(key=prompt, prompt=prompt, answer=str(steps(prompt)[-1].digit))
        splits["heldout" if _fraction(f"split {prompt}") < heldout_share else "train"].append(sample)
    return {split: tuple(samples) for split, samples in splits.items()}


def _fraction(text: str) -> float:
    """Make a number in [0, 1) of a text: the same in every process and version of Python."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48


@lru_cache(maxsize=8)
def _prompts(operations: Sequence[int]) -> tuple[str, ...]:
    """List every problem of so many steps, but those of the digits 0 and 0, after which all are 0."""
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
