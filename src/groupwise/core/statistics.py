"""Statistics of pass rates and scores: the one standard error, the one interval of a pass rate, pass@k, differences.

Every interval is a 95 % interval. A score is a pass rate (a share, 0 to 1) or a reward model's mean score (reward
units); an interval has the unit of what it is about.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import correlation, fmean, pstdev, stdev, variance

import numpy as np

#: An interval holds the true value in this share of all cases.
LEVEL = 0.95
#: Name of the interval of a pass rate, and what is added where its standard error was not logged.
OVER_PROBLEMS, ONE_VOTE = "Wilson over problems", ", one vote each"
#: Points at which Student's density is summed, up to t = LARGEST where that comes before pi/2: quantiles of 1 and more
#: degrees are right to 1e-9 with them.
GRID, LARGEST = 100_001, 40.0


@dataclass(frozen=True)
class Interval:
    """From low to high, and in `name` the method and what it is about."""

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


def standard_error(values: Sequence[float]) -> float:
    """Of the mean of independent values: sample deviation / sqrt(count); NaN of fewer than two.

    >>> standard_error([0.0, 1.0])
    0.5
    """
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def pass_at_k(samples: int, right: int, k: int) -> float:
    """1 - C(n - c, k) / C(n, k): the chance that k of n samples, c of them right, hold a right one (2107.03374).

    >>> pass_at_k(4, 1, 2)
    0.5
    """
    return 1.0 - math.comb(samples - right, k) / math.comb(samples, k)


def pass_rate_interval(rate: float, problems: int, samples: int, error: float = math.nan) -> Interval:
    """The pass rate of one run: what other problems of the same kind would give.

    rate     mean over `problems` (1 or more) of the share of right ones among `samples` of each
    error    standard error of `rate` over problems, which counts samples of one problem as alike as they were; NaN
             where it is unknown

    Wilson's interval of n* independent trials, with Student's t at problems - 1 degrees for the normal quantile, since
    the error is itself an estimate: (p + t^2/2n* +- t sqrt(p(1-p)/n* + t^2/4n*^2)) / (1 + t^2/n*). The normal interval
    p +- 1.96 error has no width at 0 and 1 and holds the truth far too rarely near them. n* = p(1-p) / error^2 is how
    many independent trials have that error (Korn and Graubard, 1998; compared by Franco et al., 2019): `problems`
    where all samples of a problem agree, problems * samples where they are independent, and never taken as more. It
    is estimated with one right and one wrong problem added to the measured ones, which keeps it near `problems` where
    hardly any problem tells how alike samples are (p near 0 or 1), as Agresti and Coull (1998) add trials. With an
    unknown error n* is `problems`: one vote each, which is never too narrow.

    Of 100 problems with 4 samples each, all right: n* = 101, t = 1.984, low = 1 / (1 + t^2/101). Half right:

    >>> str(pass_rate_interval(1.0, 100, 4, 0.0)), str(pass_rate_interval(0.5, 100, 4, 0.025))
    ('0.962 to 1.000', '0.450 to 0.550')
    """
    trials, name = float(problems), OVER_PROBLEMS + ONE_VOTE
    if not math.isnan(error):
        trials, name = min(_trials(rate, problems, error), problems * samples), OVER_PROBLEMS
    t = t_quantile(max(1, problems - 1))
    square = t * t / trials
    half = t * math.sqrt(rate * (1 - rate) / trials + square / (4 * trials))
    low, high = ((rate + square / 2 + side) / (1 + square) for side in (-half, half))
    return Interval(low, high, name).clipped()


def _trials(rate: float, problems: int, error: float) -> float:
    """Independent trials with this error, one right and one wrong problem added to the measured ones."""
    count = problems + 2
    mean = (problems * rate + 1) / count
    squares = error * error * problems * (problems - 1) + problems * (rate - mean) ** 2 + (1 - mean) ** 2 + mean**2
    return mean * (1 - mean) * count * (count - 1) / squares


def mean_interval(mean: float, problems: int, error: float) -> Interval:
    """The mean reward of one run over `problems` (2 or more), from its standard error over them: mean +- t error.

    >>> str(mean_interval(2.0, 5, 0.5))
    '0.612 to 3.388'
    """
    return _around(mean, error, problems - 1, "Student t over problems")


def rate_difference(before: float, around_before: Interval, after: float, around_after: Interval) -> Interval:
    """after - before of two pass rates, or two mean rewards, over unrelated problems, from the interval of each
    (Newcombe, 1998, method 10).

    From d - sqrt((after - its low)^2 + (before's high - before)^2), upwards likewise. It covers which problems were
    asked, never what another seed would give.

    >>> str(rate_difference(0.9, Interval(0.86, 0.93, ""), 1.0, Interval(0.96, 1.0, "")))
    '0.050 to 0.140'
    """
    apart = after - before
    low = apart - math.hypot(after - around_after.low, around_before.high - before)
    high = apart + math.hypot(around_after.high - after, before - around_before.low)
    return Interval(low, high, "Newcombe over problems, one run each")


def paired_rate_difference(first: Sequence[float], second: Sequence[float], samples: int) -> Interval:
    """mean(second) - mean(first) of pass rates on the same problems (Newcombe, 1998, paired, method 10).

    first, second  of each problem, in one order, the share of its `samples` that are right; 1 problem or more

    From d - sqrt(a^2 - 2 r a b + b^2) with a = second - its low and b = first's high - first, upwards likewise; r is
    the correlation over problems. Problems that are hard for both count once: the interval is narrower than that of
    unrelated problems (`rate_difference`). It has a width at 0 and 1 too, and where both were equal on each problem.

    >>> str(paired_rate_difference([1, 0, 1, 0] * 25, [1, 0, 1, 1] * 25, 1))
    '0.160 to 0.334'
    """
    p, around_p = _rate(first, samples)
    q, around_q = _rate(second, samples)
    alike = _correlation(first, second)

    def apart(a: float, b: float) -> float:
        return math.sqrt(max(0.0, a * a - 2 * alike * a * b + b * b))

    low = q - p - apart(q - around_q.low, around_p.high - p)
    high = q - p + apart(around_q.high - q, p - around_p.low)
    return Interval(low, high, "Newcombe paired over problems")


def _rate(rates: Sequence[float], samples: int) -> tuple[float, Interval]:
    return fmean(rates), pass_rate_interval(fmean(rates), len(rates), samples, standard_error(rates))


def _correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Over problems, with Newcombe's continuity correction of a positive one; 0 where one of the two does not vary."""
    spread = pstdev(first) * pstdev(second) if len(first) > 1 else 0.0
    if not spread:
        return 0.0
    alike = correlation(first, second)
    return max(0.0, alike - 1 / (2 * len(first) * spread)) if alike > 0 else alike


def over_seeds(scores: Sequence[float]) -> Interval | None:
    """The mean score of a recipe: mean +- t s / sqrt(n), s the sample deviation over n seeds, t Student's with n - 1.

    It covers what differs from seed to seed. None for fewer than two seeds.

    >>> str(over_seeds([0.96, 0.97, 0.98]))
    '0.945 to 0.995'
    """
    if len(scores) < 2:
        return None
    return _around(fmean(scores), standard_error(scores), len(scores) - 1, f"Student t over {len(scores)} seeds")


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


def paired(first: Mapping[object, float], second: Mapping[object, float], over: str = "seeds") -> Interval | None:
    """mean(second - first) over seeds: Student's t on the differences. None unless both have the same seeds, 2 or more.

    A seed draws the same problems and starts from the same policy in both, so what it brings by luck cancels. `over`
    names what else the keys are, such as the problems of one evaluation.

    >>> str(paired({0: 0.90, 1: 0.94}, {0: 0.91, 1: 0.95}))
    '0.010 to 0.010'
    """
    if set(first) != set(second) or len(first) < 2:
        return None
    apart = [second[seed] - first[seed] for seed in first]
    return _around(fmean(apart), standard_error(apart), len(apart) - 1, f"paired t over {len(apart)} {over}")


@cache
def t_quantile(degrees: float) -> float:
    """The point that Student's t stays below with chance 0.975; `degrees` of freedom, 1 or more, any real number.

    With t = sqrt(v) tan(a) the density of a is proportional to cos(a)^(v-1) from 0 to pi/2; |t| stays below the point
    where 0.95 of it is reached. Neither numpy nor the standard library has this quantile.

    >>> round(t_quantile(2), 4)
    4.3027
    """
    angle = np.linspace(0, min(math.pi / 2, LARGEST / math.sqrt(degrees)), GRID)
    density = np.cos(angle) ** (degrees - 1)
    below = np.cumsum(density[1:] + density[:-1])
    return math.sqrt(degrees) * math.tan(np.interp(LEVEL * below[-1], below, angle[1:]))


def _around(centre: float, error: float, degrees: float, name: str) -> Interval:
    half = t_quantile(degrees) * error
    return Interval(centre - half, centre + half, name)
