"""Runs put side by side: those of one recipe that differ in their seed only become one group, a mean and a band."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from groupwise.core.errors import UsageError
from groupwise.core.files.jsonl import flat
from groupwise.reports.folder.read import RunFolder
from groupwise.reports.records import Curves

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
#: Characters of a value in a label; of a longer one its end, where a path is most telling.
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
        """What tells it from runs of the same recipe: its seed, or where it is."""
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
    """The groups, each with a label that no other has; the order in which the runs are given does not matter.

    Raises UsageError where one run is given twice.
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
    """Keys that not all of the flat recipes have with one value: the speaking ones, the algorithm's, then the rest."""
    keys = {key for recipe in recipes for key in recipe}
    return sorted((key for key in keys if len({shown(recipe, key) for recipe in recipes}) > 1), key=_rank)


def telling(recipes: Sequence[Mapping[str, object]]) -> tuple[str, ...]:
    """The fewest keys whose values tell all of the recipes apart; none where more than MOST_KEYS would be needed. Of
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
    """A key's value as it is shown. What a user's own part, task or reward is known by is the name of its class or
    function, where others have a kind, a level or a name.

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
    """One member of each seed, in their order: the one that came farthest. A run without a seed counts as it is."""
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
    """The flat recipe without what a group's members may differ in; a file of the user's own goes by what it said."""
    contents = _contents(run.about.get("code"))
    kept = {k: v for k, v in flat(run.recipe).items() if k not in APART and not k.startswith(JOURNAL)}
    return {key: _by_content(value, contents) for key, value in kept.items()}


def _contents(code: object) -> dict[str, str]:
    """Path -> `my_parts.py@1a2b3c4d` of the files that about.json lists: a file may change between two runs, and that
    of a notebook's function lies in each run's own folder.
    """
    rows = [row for row in (code if isinstance(code, list) else ()) if isinstance(row, Mapping)]
    return {str(row.get("path")): f"{Path(str(row.get('path'))).name}@{str(row.get('sha256'))[:8]}" for row in rows}


def _by_content(value: object, contents: Mapping[str, str]) -> object:
    """A recipe's value with `path.py:Name` as `name.py@hash:Name`, in lists too."""
    if isinstance(value, list):
        return [_by_content(one, contents) for one in value]
    path, colon, name = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    return f"{contents[path]}{colon}{name}" if path in contents else value


def _kind(member: Member) -> str:
    """Equal for runs of one group. A run whose recipe is unknown is a group by itself."""
    kind = _trained(member.run) if member.run.recipe else str(member.run.folder)
    return json.dumps(kind, sort_keys=True, default=str)


def _place(member: Member) -> tuple[tuple[int, float, str], str, str]:
    return _value_order(member.seed), member.label, str(member.run.folder)


def _reached(member: Member) -> tuple[bool, int, int]:
    return member.run.status.state == "finished", len(member.run.evaluation_rows), member.last


def _order(recipe: Mapping[str, object], keys: Sequence[str], label: str) -> tuple[object, ...]:
    """Groups stand by the values that tell them apart, numbers by size; those without a recipe come last."""
    return not recipe, tuple(_value_order(recipe.get(key)) for key in keys), label


def _value_order(value: object) -> tuple[int, float, str]:
    if isinstance(value, (int, float)):
        return 0, value, ""
    return 1, 0.0, "" if value is None else str(value)


Recipes = Sequence[Mapping[str, object]]


def _label(own: Sequence[Member], recipe: Mapping[str, object], keys: Sequence[str], known: Recipes) -> str:
    """What tells the group apart, and of how many seeds it is."""
    words = [_words(recipe, key, known) for key in keys]
    if len(known) == 1 and "algorithm.name" in recipe:
        words = [shown(recipe, "algorithm.name")]
    name = ", ".join(words) if recipe and words else own[0].label
    number = len(counted(own))
    return name + (f" ({number} seeds)" if number > 1 else "")


def _words(recipe: Mapping[str, object], key: str, known: Recipes) -> str:
    """`grpo`, or `epsilon_high 0.28`; the section comes before a key whose last part other keys have too."""
    value = " ".join(shown(recipe, key).split())
    value = value if len(value) <= LONGEST else "…" + value[-LONGEST:]
    if key in SPEAKING:
        return value
    last = key.rpartition(".")[2]
    others = {other for each in known for other in each if other.rpartition(".")[2] == last}
    name = last if len(others) == 1 else ".".join(key.split(".")[-2:])
    return f"{name} {value}"


def _unique(labels: Sequence[str]) -> list[str]:
    """The labels, those that come again with a number.

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
