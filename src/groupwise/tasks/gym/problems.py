"""Problems of reasoning_gym's generators: parameters checked, entries the same in every process, samples of them."""

from __future__ import annotations

import dataclasses
import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

from groupwise.core.errors import UsageError, nearest
from groupwise.core.extras import need
from groupwise.core.samples import Sample

#: What reasoning_gym itself calls an item of a generator: {"question", "answer", "metadata"}.
Entry = Mapping[str, Any]

_OURS = {"size": "task.problems", "seed": "task.seed"}
_SEEDS = 2**31  # numpy takes no larger seed than twice this


@dataclass(frozen=True)
class Source:
    """A generator of a mixture.

    weight   its share of the training problems, relative to the others'
    own      the generator's parameters that the recipe sets
    where    the recipe's table they stand in, for messages
    """

    name: str
    weight: float
    own: Mapping[str, Any]
    where: str


def generators() -> Mapping[str, tuple[type, type]]:
    """Name -> (dataset class, class of its parameters), of all that reasoning_gym has but its own mixture."""
    need("reasoning_gym", "tasks", "task reasoning_gym")
    known = need("reasoning_gym.factory", "tasks", "task reasoning_gym").DATASETS
    return {name: known[name] for name in sorted(known) if name != "composite"}


def source(name: str, table: Mapping[str, Any], where: str) -> Source:
    """A generator with its table of the recipe, checked. Raises UsageError."""
    known = generators()
    if name not in known:
        raise UsageError(f"{where}: reasoning_gym has no generator {name!r}; {nearest(name, known)}")
    if not isinstance(table, Mapping):
        raise UsageError(f"{where} = {table!r}: must be a table; such as [{where}]")
    weight = table.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 < weight < float("inf"):
        raise UsageError(f"{where}.weight = {weight!r}: must be a number above 0")
    fields = {f.name: _default(f) for f in dataclasses.fields(known[name][1])}
    own = {key: _fit(f"{where}.{key}", key, table[key], fields) for key in table if key != "weight"}
    return Source(name, float(weight), own, where)


def dataset(source: Source, parameters: Mapping[str, Any], seed: int, size: int) -> Any:
    """The generator with these parameters. Raises UsageError with its own reason where it refuses them."""
    create = need("reasoning_gym", "tasks", "task reasoning_gym").create_dataset
    try:
        with steady(seed):
            return create(source.name, **parameters, seed=seed, size=size)
    except Exception as error:  # a generator's validation raises what it likes, most often AssertionError
        raise UsageError(f"{source.where}: {source.name} refuses {dict(parameters)}: {_reason(error)}") from None


def entries(source: Source, made: Any) -> Iterator[Entry]:
    """Every entry of a dataset, in order. Raises UsageError where the generator finds none with its parameters."""
    for index in range(len(made)):
        try:
            with steady(made.seed + index):
                entry = made[index]
        except Exception as error:
            raise UsageError(f"{source.where}: {source.name} makes no problem {index}: {_reason(error)}") from None
        yield entry


def pool(source: Source, made: Any, level: int, prompt: Callable[[Entry], str]) -> tuple[Sample, ...]:
    """The different problems of a dataset: of those with an equal prompt the first."""
    found: dict[str, Sample] = {}
    for entry in entries(source, made):
        text = prompt(entry)
        if text not in found:
            found[text] = _sample(source.name, text, entry, level)
    return tuple(found.values())


def entry_of(sample: Sample) -> dict[str, Any]:
    """The generator's entry, as its scorer wants it."""
    extra = sample.extra
    answer = sample.answer if extra["answered"] else None
    return {"question": extra["question"], "answer": answer, "metadata": unpacked(extra["metadata"])}


def level_of(sample: Sample) -> int:
    """The curriculum's level that the problem was made at."""
    level = sample.extra["level"]
    assert isinstance(level, int)
    return level


def packed(value: Any) -> Any:
    """As JSON values, from which `unpacked` makes equal ones: scorers care for tuples and for keys that are numbers.

    >>> packed({1: (2, 3)})
    {'dict': [[1, {'tuple': [2, 3]}]]}
    """
    if isinstance(value, Enum):
        return packed(value.value)
    if isinstance(value, dict):
        if all(type(key) is str for key in value) and value.keys() not in ({"dict"}, {"tuple"}):
            return {key: packed(v) for key, v in value.items()}
        return {"dict": [[packed(key), packed(v)] for key, v in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [packed(v) for v in value]}
    if isinstance(value, list):
        return [packed(v) for v in value]
    return value.item() if hasattr(value, "item") else value  # numpy's numbers


def unpacked(value: Any) -> Any:
    """The value that `packed` was given.

    >>> unpacked(packed({1: (2, 3)}))
    {1: (2, 3)}
    """
    if isinstance(value, list):
        return [unpacked(v) for v in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"tuple"}:
        return tuple(unpacked(v) for v in value["tuple"])
    if value.keys() == {"dict"}:
        return {unpacked(key): unpacked(v) for key, v in value["dict"]}
    return {key: unpacked(v) for key, v in value.items()}


def number(*parts: object) -> float:
    """A number in [0, 1) that depends on the parts' text alone: the same in every process and Python version."""
    return int.from_bytes(hashlib.sha256("\0".join(map(str, parts)).encode()).digest()[:6], "big") / 2**48


def seed_of(*parts: object) -> int:
    """A seed that depends on the parts' text alone."""
    return int(number("seed", *parts) * _SEEDS)


@contextmanager
def steady(seed: int) -> Iterator[None]:
    """A few generators draw from Python's shared random numbers too: seeded inside, and nobody else's afterwards."""
    before = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)


def _sample(name: str, prompt: str, entry: Entry, level: int) -> Sample:
    answer = entry["answer"]
    extra = {
        "question": entry["question"],
        "metadata": packed(entry["metadata"]),
        "level": level,
        "answered": answer is not None,
    }
    key = f"{name}-{hashlib.sha256(prompt.encode()).hexdigest()[:16]}"
    return Sample(key=key, prompt=prompt, answer="" if answer is None else answer, extra=extra, source=name)


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


def _fit(where: str, key: str, value: Any, fields: Mapping[str, Any]) -> Any:
    """A recipe's value as the generator wants it: TOML has no tuples and no enumerations."""
    if key in _OURS:
        raise UsageError(f"{where}: it is set for all generators together; use {_OURS[key]}")
    if key not in fields:
        raise UsageError(f"{where}: there is no such parameter; {nearest(key, ['weight', *_settable(fields)])}")
    like = fields[key]
    if isinstance(like, Enum):
        known = [str(member.value) for member in type(like)]
        if value not in known:
            raise UsageError(f"{where} = {value!r}: {nearest(str(value), known)}")
        return type(like)(value)
    if isinstance(like, tuple) and isinstance(value, list):
        return _tuples(value)
    if type(like) is float and type(value) is int:
        return float(value)
    if like is not None and type(value) is not type(like):
        raise UsageError(f"{where} = {value!r}: must be a {type(like).__name__}, as its default {like!r} is")
    return value


def _settable(fields: Mapping[str, Any]) -> Sequence[str]:
    return [name for name in fields if name not in _OURS]


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
