"""The gap between engine and learner by place: by position in the completion, and by turn, in ranges that double.

A fault of long contexts (positions, a cache, a window) grows with the place, and a mean over all tokens hides it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from groupwise.core.numbers.metrics import Last, Mean, Value
from groupwise.diagnostics.checks import FEWEST_POINTS, FLOAT32_LIMIT
from groupwise.diagnostics.tolerance import NumericalNoise
from groupwise.health.checks import of_limit

#: Tokens of the first range of positions.
FIRST_POSITIONS = 64


@dataclass(frozen=True)
class PlacedGap:
    """Gaps of the tokens that are compared, and each token's place.

    size      [M] |learner - engine|, nats
    position  [M] tokens since the first sampled one of its row, those of an environment included
    turn      [M] from 1
    """

    size: Tensor
    position: Tensor
    turn: Tensor

    @classmethod
    def of(cls, logp: Tensor, logp_engine: Tensor, mask: Tensor, compared: Tensor) -> "PlacedGap":
        """Place the gap of log-probabilities [N,T].

        mask      where the policy sampled, row by row: a turn is a run of such tokens
        compared  the tokens that count
        """
        begins = mask & ~torch.nn.functional.pad(mask, (1, 0))[:, :-1]
        first = mask.int().argmax(-1, keepdim=True)
        position = torch.arange(mask.shape[1], device=mask.device) - first
        size = (logp.double() - logp_engine.double()).abs()
        return cls(size[compared], position[compared], begins.cumsum(-1)[compared])

    def metrics(self, rounding: NumericalNoise | None) -> dict[str, Value]:
        """Measure each range that has tokens, if there are several: the mean gap, and how much of its limit that is.

        rounding  the noise that a mean may have; None in float32, whose limit on single tokens then holds for means
        """
        metrics: dict[str, Value] = {}
        for name, place, of in (("token", self.position, _positions), ("turn", self.turn, _turns)):
            begins = of(place)
            ranges = begins.unique().tolist()
            for begin in ranges if len(ranges) > 1 else ():
                own = self.size[begins == begin]
                mean = Mean(float(own.sum()), len(own))
                metrics[f"engine_gap_from_{name}.{begin}"] = mean
                if len(own) >= FEWEST_POINTS:
                    limit = FLOAT32_LIMIT if rounding is None else rounding.limit(len(own))
                    metrics[f"engine_gap_of_limit_from_{name}.{begin}"] = Last(of_limit(mean.read(), limit))
        return metrics


def _positions(position: Tensor) -> Tensor:
    """Find where the range of each position begins: 0, 64, 128, 256, ..."""
    return torch.where(position < FIRST_POSITIONS, 0, FIRST_POSITIONS * _power_below(position // FIRST_POSITIONS))


def _turns(turn: Tensor) -> Tensor:
    """Find where the range of each turn begins: 1, 2, 4, 8, ..."""
    return _power_below(turn)


def _power_below(x: Tensor) -> Tensor:
    """Find the largest power of 2 that is not above each whole number; 1 below 1.

    >>> _power_below(torch.tensor([0, 1, 3, 4, 1023])).tolist()
    [1, 1, 2, 4, 512]
    """
    return 2 ** (torch.frexp(x.clamp(min=1).double()).exponent - 1).long()
