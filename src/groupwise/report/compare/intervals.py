"""Confidence intervals at 95 %, each with its name, for a score of one run, of several seeds, and for a difference.

A score is a pass rate (a share, 0 to 1) or a reward model's mean score (reward units); an interval has its unit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev, variance

#: An interval made this way holds the true value in this share of all cases.
LEVEL = 0.95
#: The point that a normal variable stays below with chance 0.975: 1.95996.
Z = NormalDist().inv_cdf((1 + LEVEL) / 2)
#: The name of an interval that takes samples of one problem for independent, which they are not.
TOO_NARROW = "Wilson over samples, too narrow"
#: Panels of Simpson's rule; the quantiles of 1 to 30 degrees are right to 1e-9 with it.
PANELS = 400


@dataclass(frozen=True)
class Interval:
    """From low to high, and in `name` how it was made and what it is about."""

    low: float
    high: float
    name: str

    def __str__(self) -> str:
        return f"{self.low:.3f} to {self.high:.3f}"

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def clipped(self) -> Interval:
        """What of it a share can be.

        >>> str(Interval(0.9, 1.1, "").clipped())
        '0.900 to 1.000'
        """
        return Interval(max(0.0, self.low), min(1.0, self.high), self.name)


def of_run(rate: float, standard_error: float | None, problems: int, samples: int) -> Interval | None:
    """The pass rate of one run, over its held-out problems: what other problems of the same kind would give.

    rate +- 1.96 standard_error, standard_error being that of the mean over problems (deviation of the problems' shares
    / sqrt(problems)). Where it is unknown, Wilson's interval over all samples: samples of one problem are alike, so
    that one is too narrow, and its name says so. Where every sample of every problem is right (or wrong) the standard
    error is 0 and says nothing: Wilson's interval over problems then.

    >>> str(of_run(0.9, 0.01, 512, 4))
    '0.880 to 0.920'
    """
    if problems * samples < 1:
        return None
    if standard_error is None or math.isnan(standard_error):
        return wilson(rate, problems * samples, TOO_NARROW if samples > 1 else "Wilson over samples")
    if rate in (0.0, 1.0):
        return wilson(rate, problems, "Wilson over problems")
    return Interval(rate - Z * standard_error, rate + Z * standard_error, "normal over problems").clipped()


def wilson(rate: float, trials: int, name: str = "Wilson") -> Interval:
    """(p + z^2/2n +- z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n), n independent trials of which the share p is right.

    >>> str(wilson(0.5, 10))
    '0.237 to 0.763'
    """
    square = Z * Z / trials
    half = Z * math.sqrt(rate * (1 - rate) / trials + square / (4 * trials))
    return Interval(
        (rate + square / 2 - half) / (1 + square), (rate + square / 2 + half) / (1 + square), name
    ).clipped()


def over_seeds(scores: Sequence[float]) -> Interval | None:
    """The mean score of a recipe: mean +- t s / sqrt(n), s the sample deviation over n seeds, t Student's with n - 1.

    It covers what differs from seed to seed. None for fewer than two seeds.

    >>> str(over_seeds([0.96, 0.97, 0.98]))
    '0.945 to 0.995'
    """
    if len(scores) < 2:
        return None
    error = stdev(scores) / math.sqrt(len(scores))
    return _around(fmean(scores), error, len(scores) - 1, f"Student t over {len(scores)} seeds")


def welch(first: Sequence[float], second: Sequence[float]) -> Interval | None:
    """mean(second) - mean(first), the seeds of the two being independent and their spreads unlike.

    e^2 = s1^2/n1 + s2^2/n2; degrees of freedom e^4 / (s1^4/(n1^2 (n1-1)) + s2^4/(n2^2 (n2-1))) (Welch, 1947). None
    where either has fewer than two seeds. Without any spread the interval has no width.

    >>> str(welch([1, 2, 3], [3, 4, 5]))
    '-0.267 to 4.267'
    """
    if min(len(first), len(second)) < 2:
        return None
    parts = [variance(scores) / len(scores) for scores in (first, second)]
    weighted = sum(p * p / (len(scores) - 1) for p, scores in zip(parts, (first, second), strict=True))
    degrees = sum(parts) ** 2 / weighted if weighted else len(first) + len(second) - 2.0
    name = f"Welch t, {degrees:.1f} degrees of freedom"
    return _around(fmean(second) - fmean(first), math.sqrt(sum(parts)), degrees, name)


def paired(first: Mapping[object, float], second: Mapping[object, float]) -> Interval | None:
    """mean(second - first) over seeds: Student's t on the differences. None unless both have the same seeds, 2 or more.

    A seed draws the same problems and starts from the same policy in both, so what it brings by luck cancels.

    >>> str(paired({0: 0.90, 1: 0.94}, {0: 0.91, 1: 0.95}))
    '0.010 to 0.010'
    """
    if set(first) != set(second) or len(first) < 2:
        return None
    apart = [second[seed] - first[seed] for seed in first]
    error = stdev(apart) / math.sqrt(len(apart))
    return _around(fmean(apart), error, len(apart) - 1, f"paired t over {len(apart)} seeds")


def of_two_runs(first: tuple[float, float | None], second: tuple[float, float | None]) -> Interval | None:
    """Difference of two single runs, each (rate, standard error over problems): d +- 1.96 sqrt(e1^2 + e2^2).

    It covers which problems were asked, never what another seed would give. None where a standard error is unknown.

    >>> str(of_two_runs((0.90, 0.01), (0.95, 0.01)))
    '0.022 to 0.078'
    """
    (before, one), (after, other) = first, second
    if one is None or other is None or math.isnan(one + other):
        return None
    half = Z * math.hypot(one, other)
    return Interval(after - before - half, after - before + half, "normal over problems, one run each")


def t_quantile(degrees: float) -> float:
    """The point that Student's t stays below with chance 0.975; `degrees` of freedom, 1 or more, any real number.

    Newton's method from the normal's point: right of 0 the distribution is concave, so its steps never overshoot.

    >>> round(t_quantile(2), 4)
    4.3027
    """
    t = Z
    for _ in range(100):
        below, density = _student(t, degrees)
        step = ((1 + LEVEL) / 2 - below) / density
        t += step
        if abs(step) < 1e-12 * t:
            break
    return t


def _student(t: float, degrees: float) -> tuple[float, float]:
    """Chance to stay below t > 0, and the density there.

    With t = sqrt(v) tan(a) the density is c cos(a)^(v-1), c = Gamma((v+1)/2) / (sqrt(pi) Gamma(v/2)), from 0 to a.
    """
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(math.pi)
    panel = math.atan(t / math.sqrt(degrees)) / PANELS
    heights = [math.cos(i * panel) ** (degrees - 1) for i in range(PANELS + 1)]
    area = panel / 3 * (heights[0] + heights[-1] + 4 * math.fsum(heights[1::2]) + 2 * math.fsum(heights[2:-1:2]))
    density = scale / math.sqrt(degrees) * (1 + t * t / degrees) ** (-(degrees + 1) / 2)
    return 0.5 + scale * area, density


def _around(centre: float, error: float, degrees: float, name: str) -> Interval:
    half = t_quantile(degrees) * error
    return Interval(centre - half, centre + half, name)
