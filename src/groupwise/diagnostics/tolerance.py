"""Limits of how far two sound passes over the same tokens may lie apart: `Tolerance`, the limits of the checks.

In float32 the limits are constants: 1e-4 nats for 99 of 100 tokens and 1e-3 for each, as a smaller one (1e-5), or one
on the worst token, stops sound runs. In bfloat16 numerical noise exceeds any constant that would find faults, so it is
measured on the run's own model.

Noise falls to either side. A limit on the mean |gap| must let all of it pass, and is blind to a fault that is
smaller. Under samples of the engine's distribution q the learner's p gives two numbers that noise leaves near 0:

    the mean of p/q - 1      0 for any two distributions over the same ids: sum_v q_v p_v / q_v = 1
    the slope of log p/q     over log q: a temperature T against T' has T'/T - 1 within a context

Shapes of these: M tokens, in float64.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from groupwise.core.records import Group

#: A limit is this many times the rounding measured at the start: another batch, and a policy that has learned, round
#: up to half as much again (docs/concepts/checks.md).
FACTOR = 2.0
#: And this many standard errors of the batch at hand: of 200 steps not one in a million goes so far by chance.
SIGMAS = 7.0
#: A tilt that is let go: a temperature that is off by 1 % has about this one.
LEAST_TILT = 0.01


class NumericalNoise(BaseModel):
    """Mean and standard deviation, nats, of |difference| of two passes that differ in their arithmetic alone."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)
    mean: float = Field(ge=0, lt=10)
    spread: float = Field(ge=0, lt=10)

    def limit(self, tokens: int) -> float:
        """Return the limit of the mean |difference| of tokens: FACTOR mean + SIGMAS spread / sqrt(tokens), nats."""
        return FACTOR * self.mean + SIGMAS * self.spread / math.sqrt(tokens)

    def widened(self, other: "NumericalNoise | None") -> "NumericalNoise":
        """Return the noise of differences of either kind: no limit is below either's."""
        if other is None:
            return self
        return NumericalNoise(mean=max(self.mean, other.mean), spread=max(self.spread, other.spread))

    def scaled(self, factor: float) -> "NumericalNoise":
        """Return the noise of differences that are `factor` times as large."""
        return NumericalNoise(mean=factor * self.mean, spread=factor * self.spread)

    @property
    def divergence(self) -> float:
        """KL of one pass from the other, nats a token, as small differences d have it: mean d^2 / 2."""
        return (self.mean**2 + self.spread**2) / 2


class Tolerance(BaseModel):
    """Limits of what rounding alone may do to each comparison of a run.

    None: both sides are float32, and the limit is on every token.

    passes     two passes of the learner over the same weights
    engine     learner against engine
    probe      learner against engine on the probe's question
    reference  learner against the frozen reference, before the first update
    tilt       the slope of learner - engine over the engine's log-probability, of either sign
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)
    passes: NumericalNoise | None = None
    engine: NumericalNoise | None = None
    probe: NumericalNoise | None = None
    reference: NumericalNoise | None = None
    tilt: float = Field(default=0.0, ge=0, lt=10)

    def widened(self, other: "Tolerance") -> "Tolerance":
        """Return what either allows; both are of one run's precisions."""
        names = ("passes", "engine", "probe", "reference")
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in names}
        wider = {name: mine and mine.widened(theirs) for name, (mine, theirs) in pairs.items()}
        return Tolerance(**wider, tilt=max(self.tilt, other.tilt))

    def lines(self) -> list[str]:
        """Write a line for each comparison whose limit was measured."""
        names = {"live = old": self.passes, "learner = engine": self.engine, "probe": self.probe}
        return [
            f"{name}: rounding {rounding.mean:.2g} nats in the mean, limit {rounding.limit(1000):.2g} on 1,000 tokens"
            for name, rounding in {**names, "reference": self.reference}.items()
            if rounding is not None
        ]


#: Both sides in float32, or better: nothing is measured.
FLOAT32 = Tolerance()


@dataclass
class Limits:
    """A run's tolerance, which is measured again before a failed check is believed: rounding grows as a policy learns.

    tolerance  the widest so far
    measure    what rounding does on completions of groups under the weights as they are
    keep       takes a new tolerance to where a resumed run finds it
    """

    tolerance: Tolerance
    measure: Callable[[Sequence[Group]], Tolerance]
    keep: Callable[[Tolerance], None]

    def measure_again(self, groups: Sequence[Group], probe_alone: bool = False) -> bool:
        """Measure it again -> whether it is wider now. One of float32 never is: it has nothing that could be measured.

        probe_alone  only the probe's is widened: the first words of answers are less certain than those of a batch,
                     and round more
        """
        if self.tolerance == FLOAT32:
            return False
        measured = self.measure(groups)
        if probe_alone:
            measured = Tolerance(probe=measured.probe)
        before, self.tolerance = self.tolerance, self.tolerance.widened(measured)
        if self.tolerance != before:
            self.keep(self.tolerance)
        return self.tolerance != before


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
    """Estimate the mean of p/q - 1 from gap = log p - log q [M] of tokens drawn from q; one token or more.

    Given what came before, each term has mean 0: terms are uncorrelated within a completion too.
    """
    excess = gap.double().expm1()
    count = len(excess)
    return Estimate(float(excess.mean()), float(excess.std(correction=0)) / count**0.5, float(count))


def tilt(gap: Tensor, logp_engine: Tensor) -> Estimate:
    """Fit gap = log p - log q [M] -> its slope over log q [M]; NaN, on 0 points, if all log q are equal.

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
