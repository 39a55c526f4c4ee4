"""A law: what holds, in words, the function that looks for a batch on which it does not, and what to do then."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from groupwise.algorithms.laws.draws import Draw, draw
from groupwise.core.code.trace import place
from groupwise.core.errors import one_line

#: Batches that a law is tried on: seed and spread of the log-ratios.
BATCHES = ((0, 0.05), *((seed, 0.5) for seed in range(5)), (2, 2.0))
#: Rounding of float64 in sums over a batch, which another order of rows or another width may change.
ROUNDING = 1e-14


@dataclass(frozen=True)
class Law:
    """What every part of a slot does.

    words   what holds
    seen    (part, random batch) -> what was seen that breaks it; "" where it holds
    remedy  what the author of a part that breaks it can do
    """

    words: str
    seen: Callable[[Any, Draw], str]
    remedy: str

    def broken(self, part: Any) -> str:
        """What breaks the law, on the first batch where it does not hold, and the remedy; "" where it holds on all."""
        return next(filter(None, (self._tried(part, draw(seed, spread)) for seed, spread in BATCHES)), "")

    def _tried(self, part: Any, batch: Draw) -> str:
        try:
            seen = self.seen(part, batch)
            return f"{seen}. {self.remedy}" if seen else ""
        except Exception as error:
            return f"{raised(error)}. {self.remedy}"


def raised(error: Exception) -> str:
    """What a part raised, in words, with the line of its author's file."""
    at = f" ({place(error)})" if place(error) else ""
    return f"it raised {type(error).__name__}: {one_line(error).rstrip('.')}{at}"


def differs(name: str, column: Tensor, expected: Tensor, rounding: float = ROUNDING) -> str:
    """How two columns differ; "" where they are equal up to rounding."""
    if column.shape != expected.shape:
        return f"{name} has the shape {list(column.shape)} instead of {list(expected.shape)}"
    column, expected = column.detach(), expected.detach()
    gap = (column - expected).abs() - rounding * (1 + expected.abs())
    same = (column == expected) | (column.isnan() & expected.isnan())  # NaN in both is what another law speaks of
    wrong = ~(gap <= 0) & ~same
    if not wrong.any():
        return ""
    first = tuple(wrong.nonzero()[0].tolist())
    here, due = float(column[first]), float(expected[first])
    if f"{here:g}" != f"{due:g}":
        return f"{name}{list(first) or ''} is {here:g} instead of {due:g}"
    return f"{name}{list(first) or ''} is {here!r} instead of {due!r}, as float32 would be: compute in the type given"


def first_of(*seen: str) -> str:
    """The first thing that was seen."""
    return next(filter(None, seen), "")


def not_finite(name: str, column: Tensor) -> str:
    """Whether a column holds something else than numbers."""
    wrong = ~column.isfinite()
    words = f"{int(wrong.sum())} of {column.numel()} places"
    return f"{name} is {float(column[wrong][0])} at {words}" if wrong.any() else ""


def gradient(total: Tensor, *inputs: Tensor) -> Tensor:
    """d total / d inputs, added up: inputs that move together. 0 where nothing passes."""
    if not total.requires_grad:
        return torch.zeros_like(inputs[0])
    moved = torch.autograd.grad(total, inputs, allow_unused=True)
    return sum((one for one in moved if one is not None), torch.zeros_like(inputs[0]))
