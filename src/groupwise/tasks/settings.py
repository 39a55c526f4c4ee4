"""Settings of tasks: a frozen dataclass a task, whose fields are the keys under [task]. Checks that several share."""

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from groupwise.core.errors import UsageError, brief
from groupwise.core.files.plain import require_plain
from groupwise.core.samples import Sample

#: Problems that are generated at most; all of them are held in memory.
MOST_PROBLEMS = 10**6


class SentAsSettings:
    """Base of tasks that are sent as their settings alone: another process reads or makes its own problems."""

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]


def field_defaults(settings: Any) -> dict[str, Any]:
    """Name -> default of a dataclass's fields, in their order; None if a field has none."""
    defaults = {}
    for field in dataclasses.fields(settings):
        made = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        defaults[field.name] = None if made is dataclasses.MISSING else made
    return defaults


def require_type(key: str, value: object, default: object) -> None:
    """Raise UsageError if a value is not of its default's type, or not one that a recipe can hold. A whole number may
    stand for a number, and a list for a pair.
    """
    require_plain(key, value)
    if default == ():
        fits = isinstance(value, (list, tuple)) and all(isinstance(v, str) for v in value)
        expected = f'a list of texts, such as ["my_file.py:{key.rpartition(".")[2]}"]'
    elif isinstance(default, tuple):
        fits = isinstance(value, (list, tuple)) and len(value) == len(default) and all(type(v) is int for v in value)
        expected = f"a list of {len(default)} whole numbers"
    elif isinstance(default, float):
        fits, expected = isinstance(value, (int, float)) and not isinstance(value, bool), "a number"
    elif isinstance(default, dict):
        fits, expected = isinstance(value, Mapping), f"a table, such as [{key}]"
    else:
        fits = type(value) is type(default)
        expected = {int: "a whole number", str: "text", bool: "true or false"}[type(default)]
    if not fits:
        raise UsageError(f"{key} = {brief(value)}: must be {expected}")


def require_shares(heldout: float, worked: float, problems: int) -> None:
    """Raise UsageError unless both splits get a share of so many problems, and `worked` is one of demonstrations."""
    if problems < 2 or problems > MOST_PROBLEMS:
        bound = "at least 2" if problems < 2 else f"at most {MOST_PROBLEMS}"
        raise UsageError(f"task.problems must be {bound}, not {problems}")
    if not 0 < heldout < 1:
        raise UsageError(f"task.heldout_share must lie between 0 and 1, not {heldout}")
    if not 0 <= worked <= 1:
        raise UsageError(f"task.worked_share must be from 0 to 1, not {worked}")


def fewest_and_most(key: str, numbers: Sequence[int], limit: int) -> tuple[int, int]:
    """Check a pair and make it a tuple, for a recipe writes a list. Raises UsageError unless 2 <= fewest <= most <=
    limit.
    """
    pair = tuple(numbers)
    if len(pair) != 2 or not 2 <= pair[0] <= pair[1] <= limit:
        raise UsageError(f"task.{key} must be [fewest, most] with 2 <= fewest <= most <= {limit}, not {pair}")
    return pair[0], pair[1]


SPLITS = ("train", "heldout")


def require_split(split: str, task: str) -> None:
    """Raise UsageError if the task has no such split."""
    if split not in SPLITS:
        raise UsageError(f"{task} has the splits {' and '.join(SPLITS)}, not {split!r}")


def hash_fraction(*parts: object) -> float:
    """Make a number in [0, 1) that depends on the parts' text alone: the same in every process and Python version."""
    return int.from_bytes(hashlib.sha256("\0".join(map(str, parts)).encode()).digest()[:6], "big") / 2**48


def split_by_prompt(samples: Iterable[Sample], share: float, separator: str = " ") -> dict[str, tuple[Sample, ...]]:
    """Split samples, each split in the given order, about a `share` held out. The hash of the prompt decides, so no
    draw or seed can move a problem. `separator` is part of what is hashed.
    """
    splits: dict[str, list[Sample]] = {split: [] for split in SPLITS}
    for sample in samples:
        heldout = hash_fraction(f"split{separator}{sample.prompt}") < share
        splits["heldout" if heldout else "train"].append(sample)
    return {split: tuple(members) for split, members in splits.items()}


def in_hash_order(prompts: Iterable[str], seed: int) -> list[str]:
    """Put the prompts in an order that depends on seed and texts alone."""
    return sorted(prompts, key=lambda prompt: hash_fraction(f"order {seed} {prompt}"))
