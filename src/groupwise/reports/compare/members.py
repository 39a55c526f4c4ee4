"""Runs put side by side: those of one recipe that differ in their seed only become one group, a mean and a band."""

import json
import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean

from groupwise.core.errors import UsageError
from groupwise.core.files.jsonl import flat
from groupwise.core.numbers.statistics import Interval, over_seeds
from groupwise.health.symptoms.base import is_number
from groupwise.reports.folder.columns import short
from groupwise.reports.folder.lines import tables
from groupwise.reports.folder.read import RunFolder
from groupwise.reports.page.plots import limits
from groupwise.reports.records import Curves, Number

#: Runs of one group may differ in these keys, and in what the section [journal] says is written beside the training.
APART = ("seed", "name", "runs", "threads")
JOURNAL = "journal."
#: Keys whose value names a group by itself, the first of them before any other key.
SPEAKING = ("algorithm.name", "task.name", "start", "model")
#: Keys that name what a section is, in whose place a user's own has `use`.
NAMED_BY = ("kind", "level", "name")
#: The value of a key that a recipe does not have.
UNSET = "not set"
#: So many keys at most make a label; beyond that the runs' own names tell more.
MOST_KEYS = 3
#: Characters of a value in a label; of a longer one the end, which tells most of a path.
LONGEST = 40
#: From so many seeds on there is an interval, and the band is a standard deviation; of fewer it is their range.
ENOUGH = 3
#: Columns of what an evaluation measures, and those that bound one run's own interval of it.
HELD_OUT, OF_ONE_RUN = ("avg_at_k", "measured_mean"), ("low", "high")

Recipe = Mapping[str, object]


@dataclass(frozen=True)
class Member:
    """One run, and its curves as a page of several draws them."""

    run: RunFolder
    steps: Curves
    evaluations: Curves

    @property
    def label(self) -> str:
        return self.run.name

    @property
    def seed(self) -> object:
        return self.run.recipe.get("seed")

    @property
    def key(self) -> object:
        """The mark among runs of the same recipe: the seed, or the folder."""
        return self.seed if isinstance(self.seed, (int, str)) else str(self.run.folder)

    @property
    def last(self) -> int:
        """The last step that it has trained."""
        return max(self.steps.step, default=0)


@dataclass(frozen=True)
class Group:
    """Runs of one recipe.

    members  all of them, by seed
    counted  one of each seed, that which came farthest: the same seed gives the same run, so a second one adds nothing
    recipe   dotted key -> value, without what the members may differ in
    """

    label: str
    members: tuple[Member, ...]
    counted: tuple[Member, ...]
    recipe: Recipe


def grouped(members: Sequence[Member]) -> tuple[Group, ...]:
    """Group runs, each group with a label that no other has; the order in which the runs are given does not matter.

    Groups stand in the order of the values that tell them apart, those without a recipe last. Raises UsageError if one
    run is given twice.
    """
    _require_distinct(members)
    by_kind: dict[str, list[Member]] = {}
    for member in sorted(members, key=lambda m: (_value_order(m.seed), m.label, str(m.run.folder))):
        kind = _trained(member.run) if member.run.recipe else str(member.run.folder)
        by_kind.setdefault(json.dumps(kind, sort_keys=True, default=str), []).append(member)
    groups = [(own, _trained(own[0].run)) for own in by_kind.values()]
    known = [recipe for _, recipe in groups if recipe]
    keys = telling(known)
    groups.sort(key=lambda g: (not g[1], [_value_order(g[1].get(key)) for key in keys], g[0][0].label))
    names = _unique([_label(own, recipe, keys, known) for own, recipe in groups])
    return tuple(
        Group(name, tuple(own), counted(own), recipe) for name, (own, recipe) in zip(names, groups, strict=True)
    )


def differing(recipes: Sequence[Recipe]) -> list[str]:
    """Find the keys that not all of the flat recipes have with one value: speaking ones, the algorithm's, the rest."""
    keys = {key for recipe in recipes for key in recipe}
    return sorted((key for key in keys if len({shown(recipe, key) for recipe in recipes}) > 1), key=_rank)


def telling(recipes: Sequence[Recipe]) -> tuple[str, ...]:
    """Find the fewest keys whose values tell all of the recipes apart; none if more than MOST_KEYS would be needed. Of
    keys that tell the same, one that all of the recipes have.

    >>> telling([{"model": "a", "steps": 1}, {"model": "a", "steps": 2}])
    ('steps',)
    """
    ways: dict[tuple[int, ...], str] = {}
    keys = differing(recipes)
    for key in sorted(keys, key=lambda key: any(shown(recipe, key) == UNSET for recipe in recipes)):
        values = [shown(recipe, key) for recipe in recipes]
        ways.setdefault(tuple(values.index(value) for value in values), key)
    for size in range(1, MOST_KEYS + 1):
        for chosen in combinations(ways.items(), size):
            if len(set(zip(*(way for way, _ in chosen), strict=True))) == len(recipes):
                return tuple(key for _, key in chosen)
    return ()


def shown(recipe: Recipe, key: str) -> str:
    """Write a key's value as it is shown. A user's own part, task or reward, which has no kind, level or name, is shown
    as its class or function.

    >>> shown({"algorithm.advantage.use": "my.py:Mine"}, "algorithm.advantage.kind"), shown({}, "task.name")
    ('Mine', 'not set')
    """
    section, _, last = key.rpartition(".")
    own = recipe.get(f"{section}.use") if last in NAMED_BY else None
    if recipe.get(key) is None:
        return own.rpartition(":")[2] if isinstance(own, str) and own else UNSET
    value = recipe[key]
    return value if isinstance(value, str) and value else json.dumps(value, default=str)


def counted(members: Sequence[Member]) -> tuple[Member, ...]:
    """Choose one member of each seed, in their order: the one that came farthest. Without a seed each run counts."""
    by_seed: dict[object, list[Member]] = {}
    for member in members:
        by_seed.setdefault(member.key, []).append(member)

    def reached(member: Member) -> tuple[bool, int, int]:
        return member.run.status.state == "finished", len(member.run.evaluation_rows), member.last

    return tuple(max(same, key=reached) for same in by_seed.values())


def mean(seeds: Sequence[Curves], held_out: Collection[str] = HELD_OUT[:1]) -> Curves:
    """Take the mean over seeds of every column at every step that any has; NAME.low and NAME.high bound the band.

    The band is the mean +- one sample standard deviation over seeds, of fewer than three seeds their range. Of what is
    held out it is Student's 95 % interval over seeds, from three on. A band ends where the column's picture does: a
    share at 0 and 1. A gap of one seed leaves the others; where only one has a number there is no band. The curves of
    one seed are as they are.

    >>> mean([Curves([1], {"loss": [1.0]}), Curves([1, 2], {"loss": [2.0, 5.0]})]).columns
    {'loss': [1.5, 5.0], 'loss.low': [1.0, None], 'loss.high': [2.0, None]}
    """
    if len(seeds) == 1:
        return seeds[0]
    steps = sorted({step for each in seeds for step in each.step})
    columns: dict[str, list[Number]] = {}
    for name in dict.fromkeys(name for each in seeds for name in each.columns if name not in OF_ONE_RUN):
        by_step = [dict(zip(each.step, each.columns.get(name, ()), strict=False)) for each in seeds]
        across = [[value for each in by_step if is_number(value := each.get(step))] for step in steps]
        bands = [_band(values, len(seeds), name, held_out) for values in across]
        columns[name] = [short(fmean(values)) if values else None for values in across]
        columns[f"{name}.low"], columns[f"{name}.high"] = ([short(band[end]) for band in bands] for end in (0, 1))
    return Curves(steps, columns)


def band_words(seeds: int) -> str:
    """Tell what the band of so many seeds is; empty for one."""
    if seeds < 2:
        return ""
    around = "their range" if seeds < ENOUGH else "one sample standard deviation over them to each side"
    return f"Lines are the mean of {seeds} seeds, bands {around}."


def measured(curves: Curves) -> dict[str, list[Number]]:
    """Choose the columns with at least one number."""
    return {name: values for name, values in curves.columns.items() if any(map(is_number, values))}


def seeds_interval(values: Sequence[float]) -> Interval | None:
    """Compute Student's interval over seeds; None for fewer than ENOUGH, or without a spread."""
    return with_spread(over_seeds(values)) if len(values) >= ENOUGH else None


def with_spread(interval: Interval | None) -> Interval | None:
    """Take an interval if it has a width; None if not."""
    return interval if interval and interval.low < interval.high else None


def _band(values: Sequence[float], seeds: int, name: str, held_out: Collection[str]) -> tuple[Number, Number]:
    """Compute the band of a column at a step, cut at the ends of its axis if these are known."""
    if name in held_out and seeds >= ENOUGH:
        interval = seeds_interval(values)
        if interval is None:
            return None, None
        low, high = interval.low, interval.high
    elif len(values) < 2:
        return None, None
    elif seeds < ENOUGH:
        low, high = min(values), max(values)
    else:
        middle = fmean(values)
        squares = math.fsum((value - middle) ** 2 for value in values)
        apart = math.sqrt(squares / (len(values) - 1))  # stdev is far slower
        low, high = middle - apart, middle + apart
    least, most = limits(name)
    return low if least is None else max(least, low), high if most is None else min(most, high)


def _require_distinct(members: Sequence[Member]) -> None:
    seen: set[str] = set()
    for folder in (member.run.folder for member in members):
        place = os.path.realpath(folder)
        if place in seen:
            raise UsageError(f"{folder}: this run is given twice; a comparison takes each run once")
        seen.add(place)


def _trained(run: RunFolder) -> dict[str, object]:
    """Flatten the recipe without what a group's members may differ in.

    A user's own file goes by its content, `my_parts.py@1a2b3c4d` as about.json has it: a file may change between two
    runs, and that of a notebook's function lies in each run's own folder.
    """
    rows = [row for row in tables(run.about.get("code")) if "path" in row]
    contents = {str(row["path"]): f"{Path(str(row['path'])).name}@{str(row.get('sha256'))[:8]}" for row in rows}
    kept = {k: v for k, v in flat(run.recipe).items() if k not in APART and not k.startswith(JOURNAL)}
    return {key: _by_content(value, contents) for key, value in kept.items()}


def _by_content(value: object, contents: Mapping[str, str]) -> object:
    """Write a recipe's value with `path.py:Name` as `name.py@hash:Name`, in lists too."""
    if isinstance(value, list):
        return [_by_content(one, contents) for one in value]
    path, colon, name = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    return f"{contents[path]}{colon}{name}" if path in contents else value


def _value_order(value: object) -> tuple[int, float, str]:
    """Sort numbers by size, before everything else."""
    if isinstance(value, (int, float)):
        return 0, value, ""
    return 1, 0.0, "" if value is None else str(value)


def _label(own: Sequence[Member], recipe: Recipe, keys: Sequence[str], known: Sequence[Recipe]) -> str:
    words = [_words(recipe, key, known) for key in keys]
    if len(known) == 1 and "algorithm.name" in recipe:
        words = [shown(recipe, "algorithm.name")]
    name = ", ".join(words) if recipe and words else own[0].label
    number = len(counted(own))
    return name + (f" ({number} seeds)" if number > 1 else "")


def _words(recipe: Recipe, key: str, known: Sequence[Recipe]) -> str:
    """Write `grpo`, or `epsilon_high 0.28`; the section comes before a key whose last part other keys have too."""
    value = " ".join(shown(recipe, key).split())
    value = value if len(value) <= LONGEST else "…" + value[-LONGEST:]
    if key in SPEAKING:
        return value
    last = key.rpartition(".")[2]
    others = {other for each in known for other in each if other.rpartition(".")[2] == last}
    name = last if len(others) == 1 else ".".join(key.split(".")[-2:])
    return f"{name} {value}"


def _unique(labels: Sequence[str]) -> list[str]:
    """Add numbers to the labels that come again.

    >>> _unique(["a", "b", "a"])
    ['a', 'b', 'a #2']
    """
    unique: list[str] = []
    for label in labels:
        number = 1
        while (fresh := label if number == 1 else f"{label} #{number}") in unique:
            number += 1
        unique.append(fresh)
    return unique


def _rank(key: str) -> tuple[int, str]:
    if key in SPEAKING:
        return SPEAKING.index(key), key
    of_section = (not key.startswith("algorithm.")) + (not key.startswith(("algorithm.", "learner.")))
    return len(SPEAKING) + of_section, f"{key.rpartition('.')[2] not in NAMED_BY:d}{key}"
