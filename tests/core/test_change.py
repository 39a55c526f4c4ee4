"""Rose, fell, or cannot be told: by hand, its invariances, its ends, and how often the words are wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest

from groupwise.core.numbers.change import FELL, ROSE, SHARE, UNTOLD, Change, change


def of(differences: list[float], start: float = 0.5, bounds: tuple[float, float] | None = SHARE) -> Change:
    before = {str(i): start for i in range(len(differences))}
    return change(before, {str(i): start + apart for i, apart in enumerate(differences)}, bounds)


@pytest.mark.parametrize("start", [0.0, 1.0])
@pytest.mark.parametrize("problems", [1, 3, 8, 50])
def test_problems_that_all_stay_where_they_are_tell_nothing(problems: int, start: float) -> None:
    same = of([0.0] * problems, start)
    assert same.verdict == UNTOLD
    assert same.interval is not None
    assert same.interval.low == pytest.approx(-same.interval.high)
    assert same.interval.high > 0.8 / problems
    assert same.enough is not None
    assert same.enough > problems


def test_ends_lie_within_what_a_rate_can_change_by() -> None:
    for every in ([1.0] * 3, [1.0] * 100, [-1.0] * 8, [1.0, -1.0]):
        around = of(every, start=0.0).interval
        assert around is not None
        assert -1 <= around.low < around.high <= 1


def test_a_few_problems_that_all_rose_are_told_and_fewer_are_not() -> None:
    assert [of([1.0] * problems, start=0.0).verdict for problems in (1, 2, 8)] == [UNTOLD, UNTOLD, ROSE]
    rose, fell = of([0.5] * 8, start=0.25), of([-0.5] * 8, start=0.75)
    assert (rose.verdict, fell.verdict) == (ROSE, FELL)
    assert rose.interval is not None
    assert rose.interval.high > rose.interval.low + 0.05, "eight equal differences are no certainty"


def test_turned_around_it_is_the_negative() -> None:
    draw = np.random.default_rng(0)
    before, after = ({str(i): float(x) for i, x in enumerate(draw.integers(0, 5, 30) / 4)} for _ in range(2))
    there, back = change(before, after, SHARE), change(after, before, SHARE)
    assert there.interval is not None
    assert back.interval is not None
    assert (there.value, there.interval.low) == (-back.value, pytest.approx(-back.interval.high))
    shuffled = {key: after[key] for key in sorted(after, reverse=True)}
    assert change(before, shuffled, SHARE).interval == there.interval


def test_a_reward_without_bounds_gives_the_same_words_in_any_unit() -> None:
    draw = np.random.default_rng(1)
    before = {str(i): float(x) for i, x in enumerate(draw.normal(0, 1, 40))}
    after = {key: value + 0.6 for key, value in before.items()}
    one = change(before, after)
    other = change(*({k: 1000 * v - 7 for k, v in each.items()} for each in (before, after)))
    assert one.verdict == other.verdict == ROSE
    assert one.interval is not None
    assert other.interval is not None
    assert other.interval.low == pytest.approx(1000 * one.interval.low)
    flat = change({"a": 3.0, "b": 3.0}, {"a": 3.0, "b": 3.0})
    assert (flat.verdict, flat.interval, flat.enough) == (UNTOLD, None, None)
    assert str(flat) == "cannot be told at 2 problems, whose values are all equal"


def test_problems_that_only_one_has_are_left_out_and_said() -> None:
    before, after = {"a": 0.0, "b": 0.5, "c": 1.0}, {"b": 1.0, "c": 1.0, "d": 0.0, "e": 0.0}
    seen = change(before, after, SHARE)
    assert (seen.problems, seen.unpaired, seen.value) == (2, 3, 0.25)
    assert str(seen).endswith("; 3 problems that only one of the two has left out")
    apart = change({"a": 0.0}, {"b": 1.0}, SHARE)
    assert (apart.verdict, apart.interval) == (UNTOLD, None)
    assert math.isnan(apart.value)
    assert str(apart).startswith("cannot be told for no problem is in both")


def test_problems_that_are_hard_both_times_do_not_count_twice() -> None:
    """Two in ten of problems that chance moved alone: the pairs tell it, where the rates by themselves do not."""
    hard = [0.0, 1.0] * 40
    rose = {str(i): 1.0 if i % 10 == 0 else x for i, x in enumerate(hard)}
    assert change({str(i): x for i, x in enumerate(hard)}, rose, SHARE).verdict == ROSE
    other = {str(i): x for i, x in enumerate(reversed(list(rose.values())))}
    assert change({str(i): x for i, x in enumerate(hard)}, other, SHARE).verdict == UNTOLD


def test_as_many_problems_as_it_says_would_do() -> None:
    """At that many, four in five runs or more tell a change of that size, the ups and downs being what was seen."""
    small = of([0.25, 0.0, 0.25, -0.25, 0.5, 0.0, 0.0, 0.25, -0.25, 0.25], start=0.5)
    assert small.verdict == UNTOLD
    assert small.enough is not None
    draw = np.random.default_rng(0)
    seen = [0.25, 0.0, 0.25, -0.25, 0.5, 0.0, 0.0, 0.25, -0.25, 0.25]
    told = [of(draw.choice(seen, small.enough).tolist()).verdict == ROSE for _ in range(100)]
    assert np.mean(told) >= 0.75
    assert small.enough < 40 * len(seen)
