"""The task `chain`: a digit and some twenty lettered operations on it, worked one after the other modulo 10 in answers
of about a hundred characters, and scored by the last digit of the completion.

    4a+9b*3c-7=                 the problem
    a+9=3b*3=9c-7=2             each step written out
    a3b9c2                      each step by its result alone
    a+9=3b9b9c-7=2              some of each, and one step said twice

How much of a demonstration is written out, and what is said more than once, varies. So how long an answer is, is the
policy's choice: a step that is written out is longer and goes wrong less often, one that is said again is only longer.
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

#: What each operation may have as its operand. 3 and 7 are those whose product, modulo 10, tells the factor: after no
#: operation does a wrong digit become a right one again.
OPERANDS = {"+": range(1, 10), "-": range(1, 10), "*": (3, 7)}
#: A step of a prompt or, where it is written out, of a completion: its letter, its sign and its operand.
_OPERATION = re.compile(r"([a-z])([+*-])([0-9])")
_DIGIT = re.compile(r"[0-9]")


@dataclass(frozen=True)
class Chain:
    """Chains of operations on a digit, modulo 10, with train and held-out problems that never meet.

    operations     (fewest, most) operations in a problem
    written_share  the share of steps that are written out, in the mean; each demonstration has a share of its own
    again_share    the share of steps that are said once more, and of those again
    opening_share  the share of demonstrations that stop early: of the first operations of a problem alone
    heldout_share  the share of problems held out for evaluation
    problems       how many problems are drawn, both splits together
    seed           draws the problems and their order
    """

    operations: tuple[int, int] = (22, 26)
    written_share: float = 0.5
    again_share: float = 0.15
    opening_share: float = 0.5
    heldout_share: float = 0.05
    problems: int = 20_000
    seed: int = 0
    quick: ClassVar[bool] = True

    def __post_init__(self) -> None:
        letters = len(ascii_lowercase)
        object.__setattr__(self, "operations", fewest_and_most("operations", self.operations, limit=letters))
        require_shares(self.heldout_share, 0.0, self.problems)
        require_share("written_share", self.written_share)
        require_share("again_share", self.again_share, most=0.9)
        require_share("opening_share", self.opening_share)
        if not all(self.samples(split) for split in SPLITS):
            raise UsageError(f"{self} leaves a split empty; raise task.problems or move task.heldout_share")

    @property
    def alphabet(self) -> str:
        """Every character of this task's prompts and completions."""
        return "0123456789+-*=" + ascii_lowercase

    def samples(self, split: str) -> Sequence[Sample]:
        """The problems of "train" or "heldout", in a shuffled order that is the same in every process."""
        require_split(split, "chain")
        return _splits(self.operations, self.heldout_share, self.problems, self.seed)[split]

    def score(self, sample: Sample, completion: str) -> float:
        """1.0 where the last digit of the completion is the answer, else 0.0."""
        return 1.0 if _DIGIT.findall(completion)[-1:] == [sample.answer] else 0.0

    def gold(self, sample: Sample) -> str:
        """The problem with every step written out: a completion that scores 1.0."""
        return "".join(step.written for step in steps(sample.prompt))

    def demonstrations(self, count: int, seed: int) -> list[Demonstration]:
        """`count` demonstrations on training problems, all of them right."""
        train, rng = self.samples("train"), random.Random(seed)
        return [self._demonstrate(rng.choice(train), rng) for _ in range(count)]

    def _demonstrate(self, sample: Sample, rng: random.Random) -> Demonstration:
        prompt = opening(sample.prompt, rng) if rng.random() < self.opening_share else sample.prompt
        share, said = self._share(rng), []
        for step in steps(prompt):
            said.append(step.written if rng.random() < share else step.brief)
            while rng.random() < self.again_share:
                said.append(said[-1])
        return Demonstration(prompt, "".join(said))

    def _share(self, rng: random.Random) -> float:
        """What share of one demonstration is written out: evenly around `written_share`, as far as 0 or 1."""
        reach = min(self.written_share, 1 - self.written_share)
        return self.written_share + reach * rng.uniform(-1, 1)


def opening(prompt: str, rng: random.Random) -> str:
    """The problem of the first operations alone, one at least."""
    count = len(_OPERATION.findall(prompt))
    return prompt[: 1 + 3 * rng.randint(1, count)] + "="


@dataclass(frozen=True)
class Step:
    """One operation of a chain: `b*3=9` written out, `b9` its result alone."""

    written: str
    brief: str
    value: int


def steps(prompt: str) -> list[Step]:
    """The operations of a problem, done one after the other.

    >>> [step.written for step in steps("4a+9b*3c-7=")], [step.brief for step in steps("4a+9b*3c-7=")]
    (['a+9=3', 'b*3=9', 'c-7=2'], ['a3', 'b9', 'c2'])
    """
    value, done = int(prompt[0]), []
    for letter, sign, operand in _OPERATION.findall(prompt):
        value = applied(value, sign, int(operand))
        done.append(Step(f"{letter}{sign}{operand}={value}", f"{letter}{value}", value))
    return done


def applied(value: int, sign: str, operand: int) -> int:
    """The digit after one operation, modulo 10."""
    if sign == "*":
        return value * operand % 10
    return (value + operand if sign == "+" else value - operand) % 10


@lru_cache(maxsize=8)
def _splits(
    operations: tuple[int, int], heldout_share: float, problems: int, seed: int
) -> dict[str, tuple[Sample, ...]]:
    rng = random.Random(seed)
    drawn = {_problem(rng, rng.randint(*operations)) for _ in range(problems)}
    samples = [Sample(key=p, prompt=p, answer=str(steps(p)[-1].value)) for p in in_hash_order(drawn, seed)]
    return split_by_prompt(samples, heldout_share)


def _problem(rng: random.Random, count: int) -> str:
    """A digit and `count` operations: `4a+9b*3c-7=`."""
    text = str(rng.randrange(10))
    for letter in ascii_lowercase[:count]:
        sign = rng.choice("+-*")
        text += f"{letter}{sign}{rng.choice(OPERANDS[sign])}"
    return text + "="
