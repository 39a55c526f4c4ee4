"""Runs put side by side: those of one recipe that differ in their seed only become one group, a mean and a band."""

import json
import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean

from groupwise.core.errors import UsageError
from groupwise.core.files.jsonl import flat
from groupwise.core.numbers.statistics import Interval, over_seeds
from groupwise.health.symptoms.base import is_number
from groupwise.reports.folder.columns import rounded
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
    recipe: Mapping[str, object]


def grouped(members: Sequence[Member]) -> tuple[Group, ...]:
    """Group runs, each group with a label that no other has; the order in which the runs are given does not matter.

    Raises UsageError if one run is given twice.
    """
    _require_distinct(members)
    by_kind: dict[str, list[Member]] = {}
    for member in sorted(members, key=_place):
        by_kind.setdefault(_kind(member), []).append(member)
    recipes = [_trained(own[0].run) for own in by_kind.values()]
    known = [recipe for recipe in recipes if recipe]
    keys = telling(known)
    ordered = sorted(
        zip(by_kind.values(), recipes, strict=True), key=lambda pair: _order(pair[1], keys, pair[0][0].label)
    )
    names = _unique([_label(own, recipe, keys, known) for own, recipe in ordered])
    return tuple(
        Group(name, tuple(own), counted(own), recipe) for name, (own, recipe) in zip(names, ordered, strict=True)
    )


def differing(recipes: Sequence[Mapping[str, object]]) -> list[str]:
    """Find the keys that not all of the flat recipes have with one value: speaking ones, the algorithm's, the rest."""
    keys = {key for recipe in recipes for key in recipe}
    return sorted((key for key in keys if len({shown(recipe, key) for recipe in recipes}) > 1), key=_rank)


def telling(recipes: Sequence[Mapping[str, object]]) -> tuple[str, ...]:
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


def shown(recipe: Mapping[str, object], key: str) -> str:
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
    return tuple(max(same, key=_reached) for same in by_seed.values())


def _require_distinct(members: Iterable[Member]) -> None:
    seen: set[str] = set()
    for folder in (member.run.folder for member in members):
        place = os.path.realpath(folder)
        if place in seen:
            raise UsageError(f"{folder}: this run is given twice; a comparison takes each run once")
        seen.add(place)


def _trained(run: RunFolder) -> dict[str, object]:
    """Flatten the recipe without what a group's members may differ in; a user's own file goes by its content."""
    contents = _contents(run.about.get("code"))
    kept = {k: v for k, v in flat(run.recipe).items() if k not in APART and not k.startswith(JOURNAL)}
    return {key: _by_content(value, contents) for key, value in kept.items()}


def _contents(code: object) -> dict[str, str]:
    """Name the files that about.json lists by their content, path -> `my_parts.py@1a2b3c4d`: a file may change between
    two runs, and that of a notebook's function lies in each run's own folder.
    """
    rows = [row for row in tables(code) if "path" in row]
    return {str(row["path"]): f"{Path(str(row['path'])).name}@{str(row.get('sha256'))[:8]}" for row in rows}


def _by_content(value: object, contents: Mapping[str, str]) -> object:
    """Write a recipe's value with `path.py:Name` as `name.py@hash:Name`, in lists too."""
    if isinstance(value, list):
        return [_by_content(one, contents) for one in value]
    path, colon, name = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    return f"{contents[path]}{colon}{name}" if path in contents else value


def _kind(member: Member) -> str:
    """Make a key that is equal for runs of one group. A run whose recipe is unknown is a group by itself."""
    kind = _trained(member.run) if member.run.recipe else str(member.run.folder)
    return json.dumps(kind, sort_keys=True, default=str)


def _place(member: Member) -> tuple[tuple[int, float, str], str, str]:
    return _value_order(member.seed), member.label, str(member.run.folder)


def _reached(member: Member) -> tuple[bool, int, int]:
    return member.run.status.state == "finished", len(member.run.evaluation_rows), member.last


def _order(recipe: Mapping[str, object], keys: Sequence[str], label: str) -> tuple[object, ...]:
    """Sort groups by the values that tell them apart, numbers by size; those without a recipe come last."""
    return not recipe, tuple(_value_order(recipe.get(key)) for key in keys), label


def _value_order(value: object) -> tuple[int, float, str]:
    if isinstance(value, (int, float)):
        return 0, value, ""
    return 1, 0.0, "" if value is None else str(value)


Recipes = Sequence[Mapping[str, object]]


def _label(own: Sequence[Member], recipe: Mapping[str, object], keys: Sequence[str], known: Recipes) -> str:
    """Name a group by what tells it apart, and by how many seeds it has."""
    words = [_words(recipe, key, known) for key in keys]
    if len(known) == 1 and "algorithm.name" in recipe:
        words = [shown(recipe, "algorithm.name")]
    name = ", ".join(words) if recipe and words else own[0].label
    number = len(counted(own))
    return name + (f" ({number} seeds)" if number > 1 else "")


def _words(recipe: Mapping[str, object], key: str, known: Recipes) -> str:
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
    """Number the labels that come again.

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


#: From so many seeds on there is an interval, and the band is a standard deviation; of fewer it is their range.
ENOUGH = 3
#: Columns of what an evaluation measures, and those that bound one run's own interval of it.
HELD_OUT, OF_ONE_RUN = ("avg_at_k", "measured_mean"), ("low", "high")


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
        across = _across(seeds, name, steps)
        by_interval = name in held_out and len(seeds) >= ENOUGH
        bands = [_cut(_band(values, len(seeds), by_interval), limits(name)) for values in across]
        columns[name] = [fmean(values) if values else None for values in across]
        columns[f"{name}.low"], columns[f"{name}.high"] = ([band[end] for band in bands] for end in (0, 1))
    return rounded(Curves(steps, columns))


def band_words(seeds: int) -> str:
    """Tell what the band of so many seeds is; empty for one."""
    if seeds < 2:
        return ""
    around = "their range" if seeds < ENOUGH else "one sample standard deviation over them to each side"
    return f"Lines are the mean of {seeds} seeds, bands {around}."


def measured(curves: Curves) -> dict[str, list[Number]]:
    """Choose the columns with at least one number."""
    return {name: values for name, values in curves.columns.items() if any(map(is_number, values))}


def _across(seeds: Sequence[Curves], name: str, steps: Sequence[int]) -> list[list[float]]:
    """Gather for each step the numbers that the seeds have there."""
    by_step = [dict(zip(each.step, each.columns.get(name, ()), strict=False)) for each in seeds]
    return [[value for each in by_step if is_number(value := each.get(step))] for step in steps]


def seeds_interval(values: Sequence[float]) -> Interval | None:
    """Compute Student's interval over seeds; None for fewer than ENOUGH, or without a spread."""
    return with_spread(over_seeds(values)) if len(values) >= ENOUGH else None


def with_spread(interval: Interval | None) -> Interval | None:
    """Take an interval if it has a width; None if not."""
    return interval if interval and interval.low < interval.high else None


def _cut(band: tuple[Number, Number], ends: tuple[Number, Number]) -> tuple[Number, Number]:
    """Cut a band at the ends of its axis, if these are known."""
    (low, high), (least, most) = band, ends
    if low is None or high is None:
        return band
    return low if least is None else max(least, low), high if most is None else min(most, high)


def _band(values: Sequence[float], seeds: int, by_interval: bool) -> tuple[Number, Number]:
    if by_interval:
        interval = seeds_interval(values)
        return (interval.low, interval.high) if interval else (None, None)
    if len(values) < 2:
        return None, None
    if seeds < ENOUGH:
        return min(values), max(values)
    middle = fmean(values)
    apart = math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1))  # stdev is far slower
    return middle - apart, middle + apart
