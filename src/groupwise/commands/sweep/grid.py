"""Grid of a sweep: the values of each key as the command line gives them, and a run for each combination."""

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from groupwise.config.recipe_files import assignment
from groupwise.core.errors import UsageError, brief, shortened
from groupwise.reports.compare.members import SPEAKING

#: The key that tells runs of one group apart.
SEED = "seed"
#: Keys that the sweep sets itself.
OWN = ("name", "runs")
#: Runs that are begun without a question; characters of a value and of all values in a folder's name.
MOST_RUNS, LONGEST_VALUE, LONGEST_NAME = 100, 40, 120

Values = Mapping[str, object]
Over = Mapping[str, Sequence[object]]


@dataclass(frozen=True)
class Cell:
    """Run of a grid: the name of its folder, and the values of the keys that the grid goes over."""

    name: str
    values: Values

    @property
    def group(self) -> Values:
        """The values but the seed: runs that have them alike are averaged."""
        return {key: value for key, value in self.values.items() if key != SEED}


def read_over(texts: Sequence[str], settings: Values, many: bool = False) -> dict[str, tuple[object, ...]]:
    """Read every `--over KEY=VALUE,VALUE`.

    Raises UsageError for what is no list of values, a value that comes twice, a key that is given twice or is set by
    `--set` as well, and more than a hundred runs unless `many` are asked for.
    """
    if not texts:
        raise UsageError("sweep: give what the runs differ in, such as --over seed=0,1,2")
    over: dict[str, tuple[object, ...]] = {}
    for text in texts:
        key, equals, rest = text.partition("=")
        key = key.strip()
        if not equals or not key:
            raise UsageError(f"--over {brief(text)}: expected KEY=VALUE,VALUE, such as --over seed=0,1,2")
        require_free(key, "--over")
        if key in over:
            raise UsageError(f"--over {key}: given twice; write all its values in one, --over {key}=VALUE,VALUE")
        for other, option in [*((other, "--set") for other in settings), *((other, "--over") for other in over)]:
            if f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}."):
                named = key if key == other else f"{key} and {other}"
                raise UsageError(f"{named}: set by --over and by {option}; leave one of them out")
        over[key] = _values(text, key, rest)
    if count(over) > MOST_RUNS and not many:
        raise UsageError(f"sweep: these are {count(over):,} runs; add --yes to start more than {MOST_RUNS}")
    return over


def require_free(key: str, option: str) -> None:
    """Raise UsageError for a key that the sweep sets itself."""
    if key in OWN:
        raise UsageError(f"{option} {key}: a sweep names the folder of each run itself; choose where with --out")


def _values(text: str, key: str, rest: str) -> tuple[object, ...]:
    values: dict[str, object] = {}
    for part in split(rest):
        value = _value(text, key, part.strip())
        if json.dumps(value, default=str) in values:
            raise UsageError(f"--over {brief(text)}: {brief(value)} is given twice; each value is one run")
        values[json.dumps(value, default=str)] = value
    return tuple(values.values())


def _value(text: str, key: str, part: str) -> object:
    if not part:
        raise UsageError(f"--over {brief(text)}: a value is empty; write them as in --over seed=0,1,2")
    try:
        return assignment(f"{key}={part}")[1]
    except UsageError:
        raise UsageError(f"--over {brief(text)}: {brief(part)} is not one value; put a text in quotes") from None


def split(text: str) -> list[str]:
    """Split at commas that stand in no quotes and no brackets.

    >>> split("grpo,dapo"), split("[2, 3],[2, 4]"), split('"a,b",c')
    (['grpo', 'dapo'], ['[2, 3]', '[2, 4]'], ['"a,b"', 'c'])
    """
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in "[]{}":
            depth += 1 if letter in "[{" else -1
        if letter == "," and not quote and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def count(over: Over) -> int:
    """Count the runs of a grid."""
    return math.prod(map(len, over.values()))


def cells(over: Over, taken: Collection[str]) -> Iterator[Cell]:
    """List the runs of a grid, the last key changing fastest; no folder has a name of `taken`."""
    used = set(taken)
    for values in product(*over.values()):
        cell = dict(zip(over, values, strict=True))
        stem = name = _name(cell)
        number = 1
        while name in used:
            number += 1
            name = f"{stem}-{number}"
        used.add(name)
        yield Cell(name, cell)


def shown(value: object) -> str:
    """Write a value, a text as it is.

    >>> shown("grpo"), shown([2, 3]), shown(True)
    ('grpo', '[2, 3]', 'true')
    """
    return value if isinstance(value, str) else json.dumps(value, default=str)


def words(values: Values) -> str:
    """Say values of a grid in short.

    >>> words({"seed": 0, "algorithm.name": "grpo", "learner.learning_rate": 3e-4})
    'grpo, learning_rate 0.0003, seed 0'
    """
    return ", ".join(f"{_title(key)} {shown(value)}".strip() for key, value in _seed_last(values))


def options(values: Values) -> str:
    """Write values as keys of a recipe.

    >>> options({"seed": 0, "algorithm.name": "grpo"})
    'seed=0 algorithm.name=grpo'
    """
    return " ".join(f"{key}={shortened(shown(value), LONGEST_VALUE)}" for key, value in values.items())


def _name(values: Values) -> str:
    """Name a folder.

    >>> _name({"seed": 0, "algorithm.name": "grpo"}), _name({"start": "../other/run", "task.operands": [2, 3]})
    ('grpo-seed-0', 'run-operands-2_3')
    """
    parts = [(_mark(_title(key)), _mark(_last(key, shown(value)))) for key, value in _seed_last(values)]
    name = "-".join(filter(None, (part for pair in parts for part in pair)))[:LONGEST_NAME]
    return re.sub(r"^\.+", "", name) or "run"


def _mark(value: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.+-]+", "_", value).strip("_")[-LONGEST_VALUE:]


def _seed_last(values: Values) -> list[tuple[str, object]]:
    return sorted(values.items(), key=lambda pair: pair[0] == SEED)


def _title(key: str) -> str:
    return "" if key in SPEAKING else key.rpartition(".")[2]


def _last(key: str, value: str) -> str:
    """Take the last part of a path."""
    return value.rstrip("/").rpartition("/")[2] if key in SPEAKING else value
