"""The task `chain`: a number and a list of lettered operations, worked one after the other in answers of hundreds of
characters; scored by the last integer of the completion.

    47 a+5 b-8 c*2 =        modulo 100
    a47+5=52b52-8=44c44*2=88        each step written out
    a52b44c88                       each step by its result alone

Each step of a demonstration is written out or not, and sometimes done again, so that how long an answer is, is the
policy's choice: a step that is written out is longer and goes wrong less often.
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
from groupwise.tasks.settings import fewest_and_most, require_shares
from groupwise.tasks.splits import in_hash_order, require_split, split_by_prompt

#: Values are remainders of a division by this.
MODULUS = 100
OPERATIONS = "+-*"
#: The largest operand of each operation; operands are 1 and above, of a product 2 and above.
LARGEST = {"+": 9, "-": 9, "*": 3}
_OPERATION = re.compile(r"([a-z])([+*-])([0-9])")
_INTEGER = re.compile(r"[0-9]+")


@dataclass(frozen=True)
class Chain:
    """Chains of operations on a number of two digits, with train and held-out problems that never meet.

    operations     (fewest, most) operations in a problem
    written_share  the share of a demonstration's steps that are written out
    again_share    the share of them that are done again
    heldout_share  the share of problems held out for evaluation
    problems       how many problems there are, both splits together
    seed           draws the problems and their order
    """

    operations: tuple[int, int] = (12, 16)
    written_share: float = 0.5
    again_share: float = 0.1
    heldout_share: float = 0.05
    problems: int = 20_000
    seed: int = 0
    quick: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "operations", fewest_and_most("operations", self.operations, limit=len(ascii_lowercase))
        )
        require_shares(self.heldout_share, self.written_share, self.problems)
        if not 0 <= self.again_share < 1:
            raise UsageError(f"task.again_share must be from 0 to below 1, not {self.again_share}")

    @property
    def alphabet(self) -> str:
        """Every character of this task's prompts and completions."""
        return "0123456789+-*=" + ascii_lowercase

    def samples(self, split: str) -> Sequence[Sample]:
        """The problems of "train" or "heldout", in a shuffled order that is the same in every process."""
        require_split(split, "chain")
        return _splits(self.operations, self.heldout_share, self.problems, self.seed)[split]

    def score(self, sample: Sample, completion: str) -> float:
        """1.0 where the last integer of the completion is the answer, else 0.0."""
        last = _INTEGER.findall(completion)[-1:]
        return 1.0 if last == [sample.answer] else 0.0

    def gold(self, sample: Sample) -> str:
        """The problem with every step written out: a completion that scores 1.0."""
        return "".join(step.written for step in steps(sample.prompt))

    def demonstrations(self, count: int, seed: int) -> list[Demonstration]:
        """`count` demonstrations on training problems, all of them right."""
        train, rng = self.samples("train"), random.Random(seed)
        return [self._demonstrate(rng.choice(train), rng) for _ in range(count)]

    def _demonstrate(self, sample: Sample, rng: random.Random) -> Demonstration:
        text = ""
        for step in steps(sample.prompt):
            times = 1
            while rng.random() < self.again_share:
                times += 1
            for _ in range(times):
                text += step.written if rng.random() < self.written_share else step.result
        return Demonstration(sample.prompt, text)


@dataclass(frozen=True)
class Step:
    """One operation of a chain: `a47+5=52` written out, `a52` its result alone."""

    written: str
    result: str
    value: int


def steps(prompt: str) -> list[Step]:
    """The operations of a problem, done one after the other.

    >>> [step.written for step in steps("47a+5b-8c*2=")]
    ['a47+5=52', 'b52-8=44', 'c44*2=88']
    """
    value = int(_INTEGER.match(prompt)[0])  # type: ignore[index]
    done = []
    for letter, sign, operand in _OPERATION.findall(prompt):
        after = _applied(value, sign, int(operand))
        done.append(Step(f"{letter}{value}{sign}{operand}={after}", f"{letter}{after}", after))
        value = after
    return done


def _applied(value: int, sign: str, operand: int) -> int:
    return {"+": value + operand, "-": value - operand, "*": value * operand}[sign] % MODULUS


@lru_cache(maxsize=8)
def _splits(
    operations: tuple[int, int], heldout_share: float, problems: int, seed: int
) -> dict[str, tuple[Sample, ...]]:
    rng = random.Random(seed)
    drawn = {_problem(rng, rng.randint(*operations)) for _ in range(problems)}
    samples = [Sample(key=p, prompt=p, answer=str(steps(p)[-1].value)) for p in in_hash_order(sorted(drawn), seed)]
    return split_by_prompt(samples, heldout_share)


def _problem(rng: random.Random, count: int) -> str:
    text = str(rng.randrange(MODULUS))
    for letter in ascii_lowercase[:count]:
        sign = rng.choice(OPERATIONS)
        text += f"{letter}{sign}{rng.randint(1 + (sign == '*'), LARGEST[sign])}"
    return text + "="
