"""Entries of reasoning_gym's datasets, as samples."""

import hashlib
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from groupwise.core.errors import UsageError, one_line
from groupwise.core.samples import Sample
from groupwise.tasks.gym.generators import Generator, steady

#: What reasoning_gym itself calls an item of a generator: {"question", "answer", "metadata"}.
Entry = Mapping[str, Any]


def distinct_samples(
    generator: Generator, dataset: Any, level: int, prompt: Callable[[Entry], str]
) -> tuple[Sample, ...]:
    """The different problems of a dataset: of those with an equal prompt the first.

    Raises UsageError where the generator finds no problem with its parameters.
    """
    samples: dict[str, Sample] = {}
    for index in range(len(dataset)):
        try:
            with steady(dataset.seed + index):
                entry = dataset[index]
        except Exception as error:
            what = f"{generator.name} makes no problem {index}"
            raise UsageError(f"{generator.where}: {what}: {one_line(error)}") from None
        if (text := prompt(entry)) not in samples:
            samples[text] = _sample(generator.name, text, entry, level)
    return tuple(samples.values())


def entry_of(sample: Sample) -> dict[str, Any]:
    """The generator's entry, as its scorer wants it."""
    extra = sample.extra
    answer = sample.answer if extra["answered"] else None
    return {"question": extra["question"], "answer": answer, "metadata": unpacked(extra["metadata"])}


def level_of(sample: Sample) -> int:
    """The problem's level in the curriculum."""
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
