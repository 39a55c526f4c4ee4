"""Statistics of pass rates and scores: the one standard error, the one interval of a pass rate, pass@k, differences.

Every interval is a 95 % interval. A score is a pass rate (a share, 0 to 1) or a reward model's mean score (reward
units); an interval has the unit of what it is about.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, stdev, variance

import numpy as np

#: An interval holds the true value in this share of all cases.
LEVEL = 0.95
#: What lies beyond each end of an interval.
TAIL = (1 - LEVEL) / 2
#: Values of which the range stands for the bounds of a reward, at least.
FEWEST_SEEN = 6
#: Deviations to each side, and points, with which a Beta density is summed: quantiles are right to 1e-5 with them.
WIDTHS, BETA_GRID = 12.0, 4001
#: Name of the interval of a pass rate, and what is added where its standard error was not logged.
OVER_PROBLEMS, ONE_VOTE = "Wilson over problems", ", one vote each"
#: Points at which Student's density is summed, up to t = LARGEST where that comes before pi/2: quantiles of 1 and more
#: degrees are right to 1e-9 with them.
GRID, LARGEST = 100_001, 40.0


@dataclass(frozen=True)
class Interval:
    """Interval from low to high; `name` is the method and what it is about."""

    low: float
    high: float
    name: str

    def __str__(self) -> str:
        return f"{self.low:.3f} to {self.high:.3f}"

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def clipped(self) -> Interval:
        """Return what of it a share can be.

        >>> str(Interval(0.9, 1.1, "").clipped())
        '0.900 to 1.000'
        """
        return Interval(max(0.0, self.low), min(1.0, self.high), self.name)


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean of values: sample deviation / sqrt(count); NaN of fewer than two.

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
    """Return the pass rate of one run: what other problems of the same kind would give.

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


def mean_interval(mean: float, problems: int, error: float) -> Interval | None:
    """Return the mean reward of one run over `problems`, from its standard error over them: mean +- t error.

    For rows that have no values of the problems; with them `mean_within` is right at the ends of a range too. None
    where the problems have no spread, which few problems cannot vouch for.

    >>> str(mean_interval(2.0, 5, 0.5))
    '0.612 to 3.388'
    """
    if problems < 2 or not error > 0:
        return None
    return _around(mean, error, problems - 1, "Student t over problems")


def seen_mean_interval(values: Sequence[float]) -> Interval | None:
    """Return the mean reward of one run, from each problem's own mean, where the bounds of the reward are not known.

    The range of the values stands for the bounds. None for fewer than FEWEST_SEEN problems: the mean over all problems
    of the kind lies outside the range of n of them with chance 2^(1 - n) where it is their median. None without spread.

    >>> str(seen_mean_interval([0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5, 1.0]))
    '0.479 to 0.977'
    """
    if len(values) < FEWEST_SEEN or min(values) == max(values):
        return None
    return mean_within(values, min(values), max(values), "Beta over problems")


def mean_within(values: Sequence[float], least: float, most: float, name: str) -> Interval:
    """Return the mean of independent values, one or more, between two bounds; it has a width also where all are equal.

    The lower end is the 0.025 quantile of a Beta distribution over [least, most] after half a value at `least` was
    added to the values, the upper end the 0.975 quantile after half a value at `most`. The Beta has the mean and the
    variance that a Dirichlet distribution over the values, a unit weight each, gives their mean: its trials are
    (mean - least)(most - mean) / variance - 1, as Korn and Graubard (1998) count trials. Where values are at the bounds
    alone the ends are Jeffreys' for a share of right ones, but for the half right or wrong that it takes on both sides.

    >>> str(mean_within([1.0] * 8, 0.0, 1.0, ""))
    '0.723 to 1.000'
    """
    low, high = (_end(np.asarray(values, float), end, least, most) for end in (least, most))
    return Interval(low, high, name)


def _end(values: np.ndarray, end: float, least: float, most: float) -> float:
    """Return the end of an interval on the side of the bound `end`."""
    weights = np.append(np.ones(len(values)), 0.5)
    values = np.append(values, end)
    total = weights.sum()
    mean = float(weights @ values / total)
    variance = float(weights @ (values - mean) ** 2 / total) / (total + 1)
    if not variance:
        return end
    trials = (mean - least) * (most - mean) / variance - 1
    share = _beta_quantile((mean - least) / (most - least), trials, TAIL if end == least else 1 - TAIL)
    return least + (most - least) * share


def _beta_quantile(mean: float, trials: float, level: float) -> float:
    """Return the point below which Beta(mean trials, (1 - mean) trials) lies with chance `level`.

    With x = sin(a)^2 the density of a is proportional to sin(a)^(2 mean trials - 1) cos(a)^(2 (1 - mean) trials - 1),
    which is nearly normal with deviation 1 / (2 sqrt(trials)); it is summed over WIDTHS of them to each side.
    """
    around, reach = math.asin(math.sqrt(mean)), WIDTHS / (2 * math.sqrt(trials))
    edges = np.linspace(max(0.0, around - reach), min(math.pi / 2, around + reach), BETA_GRID)
    middle = (edges[1:] + edges[:-1]) / 2
    logs = (2 * mean * trials - 1) * np.log(np.sin(middle)) + (2 * (1 - mean) * trials - 1) * np.log(np.cos(middle))
    below = np.append(0.0, np.cumsum(np.exp(logs - logs.max())))
    return math.sin(float(np.interp(level * below[-1], below, edges))) ** 2


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


def over_seeds(scores: Sequence[float]) -> Interval | None:
    """Return the mean score of a recipe: mean +- t s / sqrt(n), s the sample deviation over n seeds, t Student's with n
    - 1.

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


def paired(first: Mapping[object, float], second: Mapping[object, float]) -> Interval | None:
    """mean(second - first) over seeds: Student's t on the differences. None unless both have the same seeds, 2 or more.

    A seed draws the same problems and starts from the same policy in both, so what it brings by luck cancels.

    >>> str(paired({0: 0.90, 1: 0.94}, {0: 0.91, 1: 0.95}))
    '0.010 to 0.010'
    """
    if set(first) != set(second) or len(first) < 2:
        return None
    apart = [second[seed] - first[seed] for seed in first]
    return _around(fmean(apart), standard_error(apart), len(apart) - 1, f"paired t over {len(apart)} seeds")


@cache
def t_quantile(degrees: float) -> float:
    """Return the point that Student's t stays below with chance 0.975; `degrees` of freedom, 1 or more, any real
    number.

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
