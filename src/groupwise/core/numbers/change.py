"""Change of what is measured on held-out problems: it rose, fell, or cannot be told.

Before and after are the same problems, so the change is the mean over problems of each problem's own difference, and
its interval is over problems: samples of one problem are one value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from groupwise.core.numbers.statistics import Interval, mean_within

ROSE, FELL, UNTOLD = "rose", "fell", "cannot be told"
#: The bounds of a pass rate.
SHARE = (0.0, 1.0)
#: An interval that is narrower by this excludes 0 in four of five runs, where the change is what was seen:
#: (z(0.975) + z(0.8)) / z(0.975).
NARROWER = 1.4294
#: Where nothing changed, the share of the values' range that one would want to tell.
WANTED = 0.05
#: Differences below this share of the values' range are rounding.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Change:
    """Difference of what is measured on held-out problems, after less before.

    problems  those that both have; none where the values of single problems are not known
    unpaired  those that only one of the two has, which are left out
    value     the mean over problems of after - before, in the unit of what is measured
    interval  95 %, around `value`; None where there is nothing to make it from
    span      the range of what is measured
    """

    problems: int
    unpaired: int
    value: float
    interval: Interval | None
    span: float

    @property
    def verdict(self) -> str:
        """ROSE or FELL where the interval lies on one side of 0, else UNTOLD.

        >>> change({"a": 0.0}, {"a": 1.0}, SHARE).verdict
        'cannot be told'
        """
        if self.interval is None or self.interval.low <= 0 <= self.interval.high:
            return UNTOLD
        return ROSE if self.interval.low > 0 else FELL

    @property
    def looked_for(self) -> float:
        """The size of the change that was seen; of none, WANTED of the range."""
        return abs(self.value) if abs(self.value) > ROUNDING * self.span else WANTED * self.span

    @property
    def enough(self) -> int | None:
        """Problems, to two digits, of which four in five runs would tell a change of that size; None if it is told.

        The interval's half on the side of 0 shrinks with the root of the problems.
        """
        if self.interval is None or self.verdict != UNTOLD:
            return None
        half = self.value - self.interval.low if self.value > 0 else self.interval.high - self.value
        needed = self.problems * (NARROWER * half / self.looked_for) ** 2
        unit = 10.0 ** max(0, math.floor(math.log10(needed)) - 1)
        return int(math.ceil(needed / unit) * unit)

    @property
    def row(self) -> dict[str, object]:
        """Row for files: value, low and high (None without an interval), verdict, words, problems, unpaired_problems,
        and problems_enough where the change cannot be told.
        """
        around = self.interval
        return {
            "value": self.value,
            "low": around and around.low,
            "high": around and around.high,
            "verdict": self.verdict,
            "words": str(self),
            "problems": self.problems,
            "unpaired_problems": self.unpaired,
            "problems_enough": self.enough,
        }

    def __str__(self) -> str:
        """Say the change, for a sentence whose subject is what was measured.

        >>> print(change({i: 0.0 for i in "abcd"}, {i: float(i == "a") for i in "abcd"}, SHARE))
        cannot be told at 4 problems (+0.250, 95 % -0.368 to 0.692); about 51 problems would tell a change of 0.25
        >>> print(change({i: 0.0 for i in "abcdefghijkl"}, {i: float(i < "j") for i in "abcdefghijkl"}, SHARE))
        rose by 0.750 (95 % 0.341 to 0.936, paired over 12 problems)
        """
        return f"{self.verdict} {self.grounds}"

    @property
    def grounds(self) -> str:
        """Grounds of the verdict, in a sentence."""
        if not self.problems:
            why = "no problem is in both" if self.unpaired else "the evaluations do not say enough"
            return f"for {why}{self.remarks}"
        if self.interval is None:
            return f"at {_many(self.problems)}, whose values are all equal{self.remarks}"
        around = f"95 % {self.interval}"
        if self.verdict != UNTOLD:
            return f"by {abs(self.value):.3f} ({around}, {self.interval.name} {_many(self.problems)}){self.remarks}"
        return f"at {_many(self.problems)} ({self.value:+.3f}, {around}){self.remarks}"

    @property
    def remarks(self) -> str:
        """Number of problems that would do, if it cannot be told; and of those left out."""
        told = self.enough is None
        enough = "" if told else f"; about {self.enough:,} problems would tell a change of {self.looked_for:.2g}"
        left = f"; {_many(self.unpaired)} that only one of the two has left out" if self.unpaired else ""
        return enough + left


def _many(problems: int) -> str:
    return f"{problems:,} problem{'s' * (problems != 1)}"


def change(
    before: Mapping[str, float],
    after: Mapping[str, float],
    bounds: tuple[float, float] | None = None,
) -> Change:
    """Return the paired change over the problems that both have, each problem's mean over its samples under its key.

    bounds  of what is measured, SHARE for pass rates; None takes the range of all the values, before and after

    The differences d lie within +- span, and the interval is `mean_within` of them: half a problem is added that fell
    by the span for the lower end, and one that rose by it for the upper, so it has a width where all problems are alike
    and no end outside what can be. docs/findings/evidence.md has how often it is wrong,
    and what it can tell, by simulation.
    """
    both = [key for key in before if key in after]
    unpaired = len(before) + len(after) - 2 * len(both)
    if not both:
        return Change(0, unpaired, math.nan, None, math.nan)
    old, new = ([values[key] for key in both] for values in (before, after))
    least, most = bounds or (min(*old, *new), max(*old, *new))
    span = most - least
    apart = [b - a for a, b in zip(old, new, strict=True)]
    value = math.fsum(apart) / len(apart)
    interval = mean_within(apart, -span, span, "paired over") if span > 0 else None
    return Change(len(both), unpaired, value, interval, span)
