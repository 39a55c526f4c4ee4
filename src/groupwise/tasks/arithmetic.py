"""The task `arithmetic`: chains such as `3+1-4+2=`, scored by the last integer of the completion.

Its demonstrations are a mixture. Some work the problem step by step and are right (`3+1-4+2=` -> `4-4+2=0+2=2`), the
others answer at once with the answer of some other problem, which is mostly wrong and cannot be learned. A policy that
imitates them can do both; what reinforcement learning has to find is that working pays.
"""

import random
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from groupwise.core.errors import UsageError
from groupwise.core.samples import Sample
from groupwise.core.task import Demonstration
from groupwise.tasks.settings import (
    SPLITS,
    fewest_and_most,
    in_hash_order,
    require_shares,
    require_split,
    split_by_prompt,
)

#: A term of a chain with its sign.
TERM = re.compile(r"[+-]?[0-9]+")
# A minus directly after a digit is an operator: `4-4` ends in 4, `=-4` in -4.
_INTEGER = re.compile(r"(?<![0-9])-?[0-9]+")
_EXPRESSION = re.compile(r"[+-]?[0-9]+(?:[+-][0-9]+)*")
# Python refuses to read integers of thousands of digits; no number of this task is longer than this.
_LONGEST_ANSWER = 20


@dataclass(frozen=True)
class Arithmetic:
    """Sums and differences of a few small integers; train and held-out problems are disjoint.

    operands       (fewest, most) integers in a problem
    largest        largest operand; the smallest is 0
    worked_share   share of demonstrations with worked steps
    heldout_share  share of problems held out
    problems       most problems, both splits together
    seed           seed of the problems and their order
    """

    operands: tuple[int, int] = (3, 4)
    largest: int = 4
    worked_share: float = 0.45
    heldout_share: float = 0.12
    problems: int = 20_000
    seed: int = 0
    quick: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "operands", fewest_and_most("operands", self.operands, limit=12))
        if not 1 <= self.largest <= 999:
            raise UsageError(f"task.largest must be from 1 to 999, not {self.largest}")
        require_shares(self.heldout_share, self.worked_share, self.problems)
        if _space(self.operands[1], self.largest) > sys.maxsize:
            raise UsageError(f"task.operands and task.largest give more than {sys.maxsize} problems; lower one of them")
        if not all(self.samples(split) for split in SPLITS):
            raise UsageError(f"{self} leaves a split empty; raise task.largest, task.operands or task.problems")

    @property
    def alphabet(self) -> str:
        """Every character of this task's prompts and completions."""
        return "0123456789+-="

    def samples(self, split: str) -> Sequence[Sample]:
        """Return the problems of "train" or "heldout", in a shuffled order that is the same in every process."""
        require_split(split, "arithmetic")
        return _splits(self.operands, self.largest, self.heldout_share, self.problems, self.seed)[split]

    def score(self, sample: Sample, completion: str) -> float:
        """Return 1.0 if the last integer of the completion is the answer, else 0.0."""
        last = _INTEGER.findall(completion)[-1:]
        return 1.0 if last and _has_value(last, int(sample.answer)) else 0.0

    def steps(self, sample: Sample, completion: str) -> list[tuple[int, float]]:
        """Find where each part between "=" ends, and 1.0 if it brings the problem closer to its answer, else 0.0.

        It does where it has the problem's value in fewer terms than the problem and every step that earned before it,
        so that repeating and padding earn nothing, and nothing is left to earn once a single term stands.

        >>> Arithmetic().steps(Sample(key="k", prompt="3+1-4+2=", answer="2"), "4-4+2=4-4+2=2")
        [(5, 1.0), (11, 0.0), (13, 1.0)]
        """
        scores, end, fewest = [], -1, len(TERM.findall(sample.prompt))
        for part in completion.split("="):
            end += 1 + len(part)
            terms = TERM.findall(part) if _EXPRESSION.fullmatch(part) else []
            right = 0 < len(terms) < fewest and _has_value(terms, int(sample.answer))
            fewest = len(terms) if right else fewest
            scores.append((end, 1.0 if right else 0.0))
        return scores

    def gold(self, sample: Sample) -> str:
        """Return the problem worked step by step: a completion that scores 1.0."""
        return worked(sample.prompt)

    def demonstrations(self, count: int, seed: int) -> list[Demonstration]:
        """Draw `count` demonstrations on training problems: a `worked_share` of them worked and right, the rest
        guesses.
        """
        train, rng, shown = self.samples("train"), random.Random(seed), list[Demonstration]()
        for _ in range(count):
            prompt = rng.choice(train).prompt
            works = rng.random() < self.worked_share
            shown.append(Demonstration(prompt, worked(prompt) if works else rng.choice(train).answer))
        return shown


def worked(expression: str) -> str:
    """Return the step-by-step answer: `3+1-4+2=` -> `4-4+2=0+2=2`, the first two terms summed in each step."""
    terms = TERM.findall(expression)
    steps = []
    while len(terms) > 1:
        terms[:2] = [str(int(terms[0]) + int(terms[1]))]
        steps.append("".join(terms))
    return "=".join(steps)


def _has_value(terms: Sequence[str], value: int) -> bool:
    """Tell if the terms add up to the value; a term longer than any number of this task never does."""
    return all(len(term) <= _LONGEST_ANSWER for term in terms) and sum(map(int, terms)) == value


def _expression(index: int, count: int, largest: int) -> str:
    """Write problem number `index` of those with `count` operands, in mixed radix: `3+1-4+2=`."""
    index, first = divmod(index, largest + 1)
    text = str(first)
    for _ in range(count - 1):
        index, operand = divmod(index, largest + 1)
        index, sign = divmod(index, 2)
        text += "+-"[sign] + str(operand)
    return text + "="


def _space(count: int, largest: int) -> int:
    return (largest + 1) ** count * 2 ** (count - 1)


@lru_cache(maxsize=8)
def _splits(
    operands: tuple[int, int], largest: int, heldout_share: float, problems: int, seed: int
) -> dict[str, tuple[Sample, ...]]:
    counts = range(operands[0], operands[1] + 1)
    rng = random.Random(seed)
    drawn: list[str] = []
    for count in counts:
        space = _space(count, largest)
        indices = rng.sample(range(space), min(space, problems // len(counts)))
        drawn += [_expression(index, count, largest) for index in indices]
    samples = [Sample(key=e, prompt=e, answer=worked(e).rsplit("=", 1)[-1]) for e in in_hash_order(drawn, seed)]
    return split_by_prompt(samples, heldout_share)
