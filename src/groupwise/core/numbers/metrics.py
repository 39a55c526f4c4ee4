"""Values that know how to reduce: add the parts of a step, then read one number."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from torch import Tensor


class Value(Protocol):
    """A partial result of a step."""

    def merge(self, other: Any) -> Value: ...

    def read(self) -> float: ...


@dataclass(frozen=True)
class Mean:
    """sum / weight; NaN when nothing was counted."""

    sum: float
    weight: float

    def merge(self, other: Mean) -> Mean:
        return Mean(self.sum + other.sum, self.weight + other.weight)

    def read(self) -> float:
        return self.sum / self.weight if self.weight else math.nan


@dataclass(frozen=True)
class Last:
    """The newest."""

    value: float

    def merge(self, other: Self) -> Self:
        return other

    def read(self) -> float:
        return self.value


class Sum(Last):
    """A count, or an amount that adds up."""

    def merge(self, other: Self) -> Self:
        return type(self)(self.value + other.value)


class Max(Last):
    """The largest."""

    def merge(self, other: Self) -> Self:
        return max(self, other, key=type(self).read)


Metrics = Mapping[str, Value]


def merge(parts: Iterable[Metrics]) -> dict[str, Value]:
    """Merge the metrics of several parts."""
    whole: dict[str, Value] = {}
    for part in parts:
        for name, value in part.items():
            whole[name] = whole[name].merge(value) if name in whole else value
    return whole


def read(metrics: Metrics) -> dict[str, float]:
    """Return the numbers, by name."""
    return {name: value.read() for name, value in metrics.items()}


def mean_over(x: Tensor, mask: Tensor) -> Mean:
    """[N,T], [N,T] bool -> the mean over what the mask holds, each counting the same."""
    return Mean(float(x[mask].double().sum()), float(mask.sum()))


def mean_of(values: Sequence[float]) -> Mean:
    """Return the mean of numbers, each counting the same."""
    return Mean(math.fsum(values), len(values))
