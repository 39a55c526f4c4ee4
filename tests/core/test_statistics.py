"""The one interval of a pass rate: sound at 0 and 1, samples of a problem as alike as they are; seeds; pass@k."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from groupwise.core.numbers import statistics
from groupwise.core.numbers.statistics import Interval, pass_rate_interval, rate_difference

#: The 0.975 quantiles of Student's t for 1 to 30 degrees of freedom, as tables print them.
STUDENT = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
    *(2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423),
)


def measured(rate: float, alike: float, problems: int, samples: int, draw: np.random.Generator) -> tuple[float, float]:
    """A pass rate and its standard error; problems' own rates vary so that two samples of one correlate by `alike`."""
    if alike and 0 < rate < 1:
        spread = 1 / alike - 1
        rates = draw.beta(rate * spread, (1 - rate) * spread, size=problems)
    else:
        rates = np.full(problems, rate)
    shares = draw.binomial(samples, rates) / samples
    return float(shares.mean()), float(shares.std(ddof=1)) / math.sqrt(problems)


@pytest.mark.parametrize("rate", [0.0, 0.5, 0.95, 1.0])
@pytest.mark.parametrize(("alike", "problems", "samples"), [(0.0, 100, 4), (0.3, 100, 4), (0.3, 50, 8), (0.8, 100, 8)])
def test_the_interval_of_a_pass_rate_holds_it_in_nineteen_of_twenty_runs(rate, alike, problems, samples):
    draw, runs = np.random.default_rng(0), 1000
    held = 0
    for _ in range(runs):
        mean, error = measured(rate, alike, problems, samples, draw)
        around = pass_rate_interval(mean, problems, samples, error)
        held += around.low - 1e-12 <= rate <= around.high + 1e-12
    chance = 2 * math.sqrt(0.95 * 0.05 / runs)
    assert held / runs >= 0.95 - chance


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.95, 0.999, 1.0])
@pytest.mark.parametrize("error", [math.nan, 0.0, 0.001, 0.03])
def test_the_interval_of_a_pass_rate_lies_within_0_and_1_holds_the_rate_and_has_a_width(rate, error):
    around = pass_rate_interval(rate, 100, 4, error)
    assert 0 <= around.low <= rate + 1e-12
    assert rate - 1e-12 <= around.high <= 1
    assert around.high - around.low > 0.005


def test_the_interval_turned_around_is_that_of_the_wrong_ones():
    right, wrong = pass_rate_interval(0.93, 200, 4, 0.012), pass_rate_interval(1 - 0.93, 200, 4, 0.012)
    assert (right.low, right.high) == (pytest.approx(1 - wrong.high), pytest.approx(1 - wrong.low))


def test_samples_count_as_alike_as_they_are_and_never_as_more_than_independent():
    def width(error: float, samples: int = 4) -> float:
        around = pass_rate_interval(0.5, 100, samples, error)
        return around.high - around.low

    independent, alike = math.sqrt(0.25 / 400), math.sqrt(0.25 / 99)
    assert width(independent) == pytest.approx(width(alike, samples=1) / 2, rel=0.05)
    assert width(independent / 10) == pytest.approx(width(independent), rel=0.03)
    assert width(math.nan) == pytest.approx(width(alike), rel=0.02), "unknown: one vote a problem"


def test_the_interval_by_hand():
    # All right: n* = 101 and t of 99 degrees is 1.98422, so low = 1 / (1 + t^2 / 101).
    around = pass_rate_interval(1.0, 100, 4, 0.0)
    assert (around.low, around.high) == (pytest.approx(1 / (1 + 1.98422**2 / 101), abs=1e-6), 1.0)
    # Unknown error, 20 problems: n* = 20, t of 19 degrees 2.0930.
    square, around = 2.0930**2 / 20, pass_rate_interval(0.5, 20, 8)
    half = math.sqrt(0.25 / 20 * 2.0930**2 + square**2 / 4) / (1 + square)
    assert (around.low, around.high) == (pytest.approx(0.5 - half, abs=1e-5), pytest.approx(0.5 + half, abs=1e-5))
    assert around.name == "Wilson over problems, one vote each"
    assert str(pass_rate_interval(0.5, 1, 4)) == "0.002 to 0.998"


def test_a_difference_of_two_rates_squares_and_adds_their_intervals():
    first, second = Interval(0.86, 0.93, ""), Interval(0.92, 0.97, "")
    apart = rate_difference(0.9, first, 0.95, second)
    assert (apart.low, apart.high) == (
        pytest.approx(0.05 - math.hypot(0.03, 0.03)),
        pytest.approx(0.05 + math.hypot(0.02, 0.04)),
    )
    back = rate_difference(0.95, second, 0.9, first)
    assert (back.low, back.high) == (pytest.approx(-apart.high), pytest.approx(-apart.low))


def test_pass_at_k_and_the_standard_error_at_their_ends():
    assert [statistics.pass_at_k(4, right, 4) for right in (0, 1, 4)] == [0.0, 1.0, 1.0]
    assert statistics.standard_error([0.0, 0.5, 1.0]) == pytest.approx(0.5 / math.sqrt(3))
    assert math.isnan(statistics.standard_error([1.0]))


@pytest.mark.parametrize(("degrees", "known"), list(enumerate(STUDENT, start=1)))
def test_quantiles_of_student_are_those_of_the_tables(degrees, known):
    assert statistics.t_quantile(degrees) == pytest.approx(known, abs=5.1e-5)


def test_quantiles_of_student_have_their_closed_forms_and_end_at_the_normal():
    assert statistics.t_quantile(1) == pytest.approx(math.tan(0.475 * math.pi), rel=1e-9)
    assert statistics.t_quantile(2) == pytest.approx(0.95 * math.sqrt(2 / (1 - 0.95**2)), rel=1e-9)
    assert statistics.t_quantile(1e6) == pytest.approx(1.959964, rel=1e-5)
    assert statistics.t_quantile(2) > statistics.t_quantile(2.5) > statistics.t_quantile(3)


def test_an_interval_over_seeds_by_hand():
    found = statistics.over_seeds([0.90, 0.92, 0.94])
    half = 4.302653 * 0.02 / math.sqrt(3)
    assert (found.low, found.high) == (pytest.approx(0.92 - half), pytest.approx(0.92 + half))
    assert found.name == "Student t over 3 seeds"
    assert statistics.over_seeds([0.9]) is None
    assert statistics.over_seeds([]) is None


def test_an_interval_over_seeds_holds_the_mean_in_nineteen_of_twenty_cases():
    draw = random.Random(0)
    held = [0.7 in statistics.over_seeds([draw.gauss(0.7, 0.1) for _ in range(3)]) for _ in range(2000)]
    assert sum(held) / len(held) == pytest.approx(0.95, abs=0.015)


def test_welch_by_hand():
    # Variances of the means 1 and 5/12, so degrees (17/12)^2 / (1 + (5/12)^2 / 3) = 1.8972; difference 1.5 - 1.
    found = statistics.welch([0, 2], [0, 1, 2, 3])
    half = statistics.t_quantile(1.897155) * math.sqrt(17 / 12)
    assert (found.low, found.high) == (pytest.approx(0.5 - half, rel=1e-6), pytest.approx(0.5 + half, rel=1e-6))
    assert found.name == "Welch t, 1.9 degrees of freedom"
    assert statistics.welch([1], [1, 2]) is None


def test_welch_turned_around_is_the_negative():
    one, other = [0.9, 0.92, 0.97], [0.95, 0.96]
    there, back = statistics.welch(one, other), statistics.welch(other, one)
    assert (there.low, there.high) == (pytest.approx(-back.high), pytest.approx(-back.low))


def test_pairing_takes_out_what_a_seed_brings_by_luck():
    first = {0: 0.80, 1: 0.90, 2: 0.70}
    second = {seed: score + apart for (seed, score), apart in zip(first.items(), (0.01, 0.02, 0.03), strict=True)}
    found = statistics.paired(first, second)
    half = 4.302653 * 0.01 / math.sqrt(3)
    assert (found.low, found.high) == (pytest.approx(0.02 - half), pytest.approx(0.02 + half))
    assert 0 in statistics.welch(list(first.values()), list(second.values()))
    assert statistics.paired(first, {0: 0.8, 1: 0.9}) is None
    assert statistics.paired(first, {**second, 3: 0.9}) is None
    assert statistics.paired({0: 0.8}, {0: 0.9}) is None


@pytest.mark.parametrize("trials", [1.0, 5.0, 80.0, 4000.0])
def test_ends_within_bounds_are_quantiles_of_a_beta_with_a_closed_form(trials):
    # Of Beta(1, b) the point below which it lies with chance x is 1 - (1 - x)^(1/b).
    for level in (0.025, 0.5, 0.975):
        found = statistics._beta_quantile(1 / (1 + trials), 1 + trials, level)
        assert found == pytest.approx(1 - (1 - level) ** (1 / trials), rel=1e-3, abs=1e-7)
    mirrored = 1 - statistics._beta_quantile(trials / (1 + trials), 1 + trials, 0.025)
    assert mirrored == pytest.approx(statistics._beta_quantile(1 / (1 + trials), 1 + trials, 0.975), abs=1e-6)


def test_a_mean_between_bounds_has_a_width_where_all_are_equal_and_stays_between_them():
    for value in (0.0, 0.5, 1.0):
        around = statistics.mean_within([value] * 8, 0.0, 1.0, "")
        assert 0 <= around.low <= value <= around.high <= 1
        assert 0.2 < around.high - around.low < 0.6
    wide = statistics.mean_within([-3.0, 7.0, 7.0], -3.0, 7.0, "")
    unit = statistics.mean_within([0.0, 1.0, 1.0], 0.0, 1.0, "")
    assert (wide.low, wide.high) == (pytest.approx(-3 + 10 * unit.low), pytest.approx(-3 + 10 * unit.high))


def test_a_mean_reward_without_spread_or_of_few_problems_has_no_interval():
    assert statistics.mean_interval(1.0, 8, 0.0) is None
    assert statistics.seen_mean_interval([1.0] * 8) is None
    assert statistics.seen_mean_interval([0.0, 1.0, 0.5, 0.2, 0.9]) is None
    around = statistics.seen_mean_interval([0.9, *[1.0] * 7])
    assert around is not None
    assert 0.9 <= around.low < around.high <= 1.0
