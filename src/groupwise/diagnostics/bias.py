"""The systematic part of the gap between learner and engine: numerical noise has none, faults do.

Noise falls to either side. A limit on the mean |gap| must let all of it pass, and is blind to a fault that is
smaller. Under samples of the engine's distribution q the learner's p gives two numbers that noise leaves near 0:

    the mean of p/q - 1      0 for any two distributions over the same ids: sum_v q_v p_v / q_v = 1
    the slope of log p/q     over log q: a temperature T against T' has T'/T - 1 within a context

Shapes: M tokens. All in float64.
"""

import math
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Estimate:
    """A number measured on a batch.

    error   its standard error
    points  tokens that it rests on; where few weigh most, about those few
    """

    value: float
    error: float
    points: float


def ratio_excess(gap: Tensor) -> Estimate:
    """gap = log p - log q [M] of tokens drawn from q -> the mean of p/q - 1; one token or more.

    Given what came before, each term has mean 0: terms are uncorrelated within a completion too.
    """
    excess = gap.double().expm1()
    count = len(excess)
    return Estimate(float(excess.mean()), float(excess.std(correction=0)) / count**0.5, float(count))


def tilt(gap: Tensor, logp_engine: Tensor) -> Estimate:
    """gap = log p - log q [M] -> its least-squares slope over log q [M]; NaN, on 0 points, where all log q are equal.

    The error is the jackknife's (HC3), r / (1 - h) for a residual r of leverage h: a lone rare token that the line
    follows does not pass for certainty.
    """
    d, u = gap.double() - gap.double().mean(), logp_engine.double() - logp_engine.double().mean()
    weight = u**2
    total = float(weight.sum())
    if total == 0:
        return Estimate(math.nan, math.nan, points=0.0)
    slope = float((u * d).sum()) / total
    left_out = (d - slope * u) / (1 - 1 / len(u) - weight / total)
    error = float((weight * left_out**2).sum()) ** 0.5 / total
    return Estimate(slope, error, points=total**2 / float((weight**2).sum()))
