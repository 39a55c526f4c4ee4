"""Times tables in words, for a chat model: the shortest task of one's own.

    groupwise model smollm2 models/smollm2
    groupwise train times-tables

    What is 7 times 8? Answer with the number only.      the prompt
    7 * 8 = 56                                           a completion, which scores 1.0

A task is a frozen dataclass whose fields are keys of [task], with two methods: `samples` gives the problems of a split,
`score` says what a completion is worth.
"""

import hashlib
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations_with_replacement, product
from typing import ClassVar

from groupwise import Demonstration, Numeric, Sample, Task, UsageError

#: Larger factors are not drawn.
LARGEST = 99


@dataclass(frozen=True)
class Products(Task):
    """Products of two factors; 7 times 8 and 8 times 7 are always in one split.

    factors        (smallest, largest) factor
    heldout_share  share of problems held out, rounded to whole problems
    seed           seed of the split and of the order
    """

    factors: Sequence[int] = (2, 12)
    heldout_share: float = 0.3
    seed: int = 0
    quick: ClassVar[bool] = True  # a score takes microseconds and cannot hang: no process is needed

    def __post_init__(self) -> None:
        object.__setattr__(self, "factors", tuple(self.factors))  # a recipe has a list
        if len(self.factors) != 2 or not 2 <= self.factors[0] <= self.factors[1] <= LARGEST:
            wanted = f"[fewest, most] with 2 <= fewest <= most <= {LARGEST}"
            raise UsageError(f"task.factors must be {wanted}, not {self.factors}")
        if self.factors[0] == self.factors[1]:
            raise UsageError("task.problems must be at least 2, not 1")
        if not 0 < self.heldout_share < 1:
            raise UsageError(f"task.heldout_share must lie between 0 and 1, not {self.heldout_share}")
        if not self.samples("train") or not self.samples("heldout"):
            raise UsageError(f"{self} leaves a split empty; change task.heldout_share or task.factors")

    def samples(self, split: str) -> Sequence[Sample]:
        """List the problems of "train" or "heldout", in a shuffled order that is the same in every process."""
        if split not in ("train", "heldout"):
            raise UsageError(f"products has the splits train and heldout, not {split!r}")
        smallest, largest = self.factors
        return _splits(smallest, largest, self.heldout_share, self.seed)[split]

    def score(self, sample: Sample, completion: str) -> float:
        """Score a completion: 1.0 if the number that it states as its answer is the product, else 0.0."""
        return Numeric()(completion, sample.answer)

    def demonstrations(self, count: int, seed: int) -> list[Demonstration]:
        """Draw `count` training problems with a completion to imitate: `7 * 8 = 56`."""
        drawn = random.Random(seed).choices(self.samples("train"), k=count)
        return [Demonstration(one.prompt, f"{one.key.replace('x', ' * ')} = {one.answer}") for one in drawn]


def question(a: int, b: int) -> str:
    """Write the prompt.

    >>> question(7, 8)
    'What is 7 times 8? Answer with the number only.'
    """
    return f"What is {a} times {b}? Answer with the number only."


@lru_cache(maxsize=8)
def _splits(smallest: int, largest: int, heldout_share: float, seed: int) -> dict[str, tuple[Sample, ...]]:
    factors = range(smallest, largest + 1)
    pairs = {question(a, b): (a, b) for a, b in product(factors, factors)}
    heldout = _heldout(factors, round(heldout_share * len(pairs)), seed)
    splits: dict[str, list[Sample]] = {"train": [], "heldout": []}
    for prompt in _shuffled(pairs, seed):
        a, b = pairs[prompt]
        sample = Sample(key=f"{a}x{b}", prompt=prompt, answer=str(a * b))
        splits["heldout" if (a, b) in heldout else "train"].append(sample)
    return {split: tuple(samples) for split, samples in splits.items()}


def _heldout(factors: range, count: int, seed: int) -> set[tuple[int, int]]:
    """Choose `count` ordered pairs, each with its mirror image: in the seed's order, whichever still fits."""
    pairs = {question(a, b): {(a, b), (b, a)} for a, b in combinations_with_replacement(factors, 2)}
    chosen: set[tuple[int, int]] = set()
    for prompt in _shuffled(pairs, seed):
        if len(chosen) + len(pairs[prompt]) <= count:
            chosen |= pairs[prompt]
    return chosen


def _shuffled(prompts: Iterable[str], seed: int) -> list[str]:
    """Order prompts by a hash of seed and text, which is the same in every process and version of Python."""
    return sorted(prompts, key=lambda prompt: hashlib.sha256(f"order {seed} {prompt}".encode()).digest())
