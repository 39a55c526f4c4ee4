"""Mask to one weight per token, for a whole optimizer batch, so that microbatches and ranks simply add."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from groupwise.algorithms.parts import Part


class Totals(NamedTuple):
    """Counts over the whole optimizer batch, all ranks: completions with a trained token, and trained tokens."""

    completions: int
    tokens: int


class Aggregate(Part, Protocol):
    """(mask [N,T], totals) -> weight [N,T], 0 where masked."""

    def __call__(self, mask: Tensor, totals: Totals) -> Tensor: ...

    def declared(self, totals: Totals) -> float:
        """Return the sum of the whole optimizer batch's weights: 1 for a mean, 0 if no token is trained."""
        return 1.0 if totals.tokens else 0.0


@dataclass(frozen=True)
class SequenceMean(Aggregate):
    """w_it = 1 / (N |o_i|): a mean over tokens in each completion, then a flat mean over completions.

    Source: DeepSeekMath (2402.03300) eq 3.
    """

    equation = "w = 1 / (N |o_i|)"

    def __call__(self, mask: Tensor, totals: Totals) -> Tensor:
        lengths = mask.sum(-1, keepdim=True).clamp(min=1)
        return mask.double() / (lengths * max(totals.completions, 1))


@dataclass(frozen=True)
class TokenMean(Aggregate):
    """w_it = 1 / (trained tokens of the optimizer batch): every token counts the same.

    Source: DAPO (2503.14476) eq 8.
    """

    equation = "w = 1 / sum_i |o_i|"

    def __call__(self, mask: Tensor, totals: Totals) -> Tensor:
        return mask.double() / max(totals.tokens, 1)


@dataclass(frozen=True)
class Constant(Aggregate):
    """w_it = 1 / (N limit): no length in the normaliser; limit is the generation budget.

    limit  tokens, at least 1; sampling.max_new_tokens unless it is set
    Source: Dr. GRPO (2503.20783).
    """

    equation = "w = 1 / (N limit)"

    limit: int

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise ValueError(f"limit = {self.limit}: must be at least 1 token")

    def __call__(self, mask: Tensor, totals: Totals) -> Tensor:
        return mask.double() / (max(totals.completions, 1) * self.limit)

    def declared(self, totals: Totals) -> float:
        return totals.tokens / (max(totals.completions, 1) * self.limit)


@dataclass(frozen=True)
class TokenSum(Aggregate):
    """w_it = 1: the plain sum over trained tokens."""

    equation = "w = 1"

    def __call__(self, mask: Tensor, totals: Totals) -> Tensor:
        return mask.double()

    def declared(self, totals: Totals) -> float:
        return float(totals.tokens)


def count(mask: Tensor) -> Totals:
    """[N,T] -> the totals of a batch that is the whole optimizer batch."""
    return Totals(int(mask.any(-1).sum()), int(mask.sum()))


def over_tokens(right: Tensor, mask: Tensor) -> Tensor:
    """Weigh the tokens of right completions [N] alike -> [N,T], with sum 1; 0 everywhere if none is right."""
    inside = mask & right[:, None]
    return inside.double() / inside.sum().clamp(min=1)
