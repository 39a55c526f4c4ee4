"""Watchers of the reward that trains: a reward of weight 0, and the task's own score where only other rewards train.

Both are of the same completions. A policy that has found a hole in what trains it earns more there and no more, or
less, with a watcher.
"""

import math
from collections.abc import Iterator
from statistics import fmean
from typing import NamedTuple

from groupwise.health.symptoms.base import BAD, WARN, History, Row, Seen, numbers, short, symptom
from groupwise.health.symptoms.progress import error_of

#: Steps of a third of the rows, at least.
THIRD = 10
#: Standard errors beyond which a change between thirds is none of chance, and a watcher has surely not followed.
SURE, NOT_FOLLOWED = 5.0, 3.0
#: Deviations within a group by which the reward that trains rises, and by which a watcher would at least have followed.
RISE, FOLLOWS = 0.5, 0.2


class Trend(NamedTuple):
    """A change from the first third of the steps to the last.

    before, after  means, reward units
    error          standard error of their difference
    spread         mean deviation within a group in the first third
    """

    before: float
    after: float
    error: float
    spread: float

    @property
    def rise(self) -> float:
        return self.after - self.before


@symptom(
    limit=f"from the first third of the steps to the last, over {3 * THIRD} steps or more: the training reward rises "
    f"by {SURE:g} standard errors while a watcher (a reward of weight 0, or a task score that does not train) falls by "
    f"as many; or the reward rises by {RISE:g} deviations within a group while the watcher, plus {NOT_FOLLOWED:g} "
    f"standard errors, rises by less than {FOLLOWS:g} of its own",
)
def reward_hacking(h: History) -> Seen | None:
    trained = _trend(h, [_named(name, weight) for name, weight in h.rewards.items()])
    if trained is None or trained.rise <= SURE * trained.error or h.moving:
        return None
    apart = [(name, trend) for name, trend in _watched(h) if _falls(trend) or (not h.solved and _stays(trained, trend))]
    if not apart:
        return None
    name, watched = min(apart, key=lambda each: not _falls(each[1]))
    falls = _falls(watched)
    change = f"fell from {short(watched.before)} to {short(watched.after)}" if falls else "did not follow"
    at = "" if falls else f" ({short(watched.before)}, then {short(watched.after)})"
    rose = f"rose from {short(trained.before)} to {short(trained.after)}"
    return Seen(
        f"Over {len(h.rows)} steps the reward that trains {rose}, while {name}, which only watches the same "
        f"completions, {change}{at}: the policy has learned to please the reward in a way that is no better to the "
        "watcher.",
        f"Read completions that earn much and have a low {name}; close the hole in the reward, let the watcher train "
        "beside it, or take a checkpoint from before",
        tone=BAD if falls else WARN,
    )


class _Column(NamedTuple):
    """A reward in the rows: the columns of its mean and of its spread within groups, and its weight."""

    mean: str
    spread: str
    weight: float


def _named(name: str, weight: float) -> _Column:
    return _Column(f"rewards.{name}.mean", f"rewards.{name}.spread_within_groups", weight)


def _watched(h: History) -> Iterator[tuple[str, Trend]]:
    """Give each watcher that has numbers, with its trend."""
    columns = {name: _named(name, 1.0) for name in h.watchers}
    if h.rewards and "task" not in {*h.rewards, *h.watchers}:
        columns["the task's score"] = _Column("score_mean", "score_spread_within_groups", 1.0)
    trends = ((name, _trend(h, [column])) for name, column in columns.items())
    yield from ((name, trend) for name, trend in trends if trend is not None)


def _trend(h: History, columns: list[_Column]) -> Trend | None:
    """Compare the weighted sum of columns in the first and the last third; None without them, or with too few steps."""
    sums = [total for row in h.rows if (total := _sum(row, columns)) is not None]
    third = len(sums) // 3
    if third < THIRD:
        return None
    first, last = sums[:third], sums[-third:]
    error = math.hypot(error_of(first), error_of(last))
    spreads = [h.mean(column.spread, h.rows[: len(h.rows) // 3]) or 0.0 for column in columns]
    spread = sum(abs(column.weight) * x for column, x in zip(columns, spreads, strict=True))
    return Trend(fmean(first), fmean(last), error, spread)


def _sum(row: Row, columns: list[_Column]) -> float | None:
    values = [(column.weight, x) for column in columns for x in numbers(column.mean, [row])]
    return sum(weight * x for weight, x in values) if columns and len(values) == len(columns) else None


def _falls(watched: Trend) -> bool:
    return watched.rise < -SURE * watched.error


def _stays(trained: Trend, watched: Trend) -> bool:
    """Tell if a watcher surely did not follow a rise that was large; one that tells nothing apart cannot."""
    large = trained.rise > RISE * trained.spread > 0
    return large and watched.spread > 0 and watched.rise + NOT_FOLLOWED * watched.error < FOLLOWS * watched.spread
