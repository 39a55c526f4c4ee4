"""The task `products`: times tables in words, for a chat model, scored by the number that the answer states."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations_with_replacement, product
from typing import ClassVar

from groupwise.core.errors import UsageError
from groupwise.core.samples import Sample
from groupwise.rewards.verifiers.answers import Numeric
from groupwise.tasks.settings import fewest_and_most, require_shares
from groupwise.tasks.splits import SPLITS, in_hash_order, require_split

#: Larger factors are not drawn.
LARGEST = 99


@dataclass(frozen=True)
class Products:
    """Every product of two factors. 7 times 8 and 8 times 7 are always in one split, for one tells the other's answer.

    factors        (smallest, largest)
    heldout_share  the share of problems held out for evaluation, rounded to whole problems
    seed           draws which are held out, and the order of both splits
    """

    factors: tuple[int, int] = (2, 12)
    heldout_share: float = 0.3
    seed: int = 0
    quick: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "factors", fewest_and_most("factors", self.factors, limit=LARGEST))
        require_shares(self.heldout_share, worked=0, problems=(self.factors[1] - self.factors[0] + 1) ** 2)
        if not all(self.samples(split) for split in SPLITS):
            raise UsageError(f"{self} leaves a split empty; change task.heldout_share or task.factors")

    @property
    def alphabet(self) -> str:
        """Empty: a chat model may answer in any words."""
        return ""

    def samples(self, split: str) -> Sequence[Sample]:
        """The problems of "train" or "heldout", in a shuffled order that is the same in every process."""
        require_split(split, "products")
        return _splits(*self.factors, self.heldout_share, self.seed)[split]

    def score(self, sample: Sample, completion: str) -> float:
        """1.0 where the number that the completion states as its answer is the product, else 0.0."""
        return Numeric()(completion, sample.answer)


def question(a: int, b: int) -> str:
    """The prompt.

    >>> question(7, 8)
    'What is 7 times 8? Answer with the number only.'
    """
    return f"What is {a} times {b}? Answer with the number only."


@lru_cache(maxsize=8)
def _splits(smallest: int, largest: int, heldout_share: float, seed: int) -> dict[str, tuple[Sample, ...]]:
    factors = range(smallest, largest + 1)
    pairs = {question(a, b): (a, b) for a, b in product(factors, factors)}
    heldout = _heldout(factors, round(heldout_share * len(pairs)), seed)
    splits: dict[str, list[Sample]] = {split: [] for split in SPLITS}
    for prompt in in_hash_order(pairs, seed):
        a, b = pairs[prompt]
        sample = Sample(key=f"{a}x{b}", prompt=prompt, answer=str(a * b))
        splits["heldout" if (a, b) in heldout else "train"].append(sample)
    return {split: tuple(samples) for split, samples in splits.items()}


def _heldout(factors: range, count: int, seed: int) -> set[tuple[int, int]]:
    """`count` ordered pairs, each with its mirror image: in the seed's order, whichever still fits."""
    pairs = {question(a, b): {(a, b), (b, a)} for a, b in combinations_with_replacement(factors, 2)}
    chosen: set[tuple[int, int]] = set()
    for prompt in in_hash_order(pairs, seed):
        if len(chosen) + len(pairs[prompt]) <= count:
            chosen |= pairs[prompt]
    return chosen
