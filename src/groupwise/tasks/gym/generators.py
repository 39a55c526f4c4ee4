"""reasoning_gym's generators: parameters checked, datasets the same in every process, their entries as samples."""

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

from groupwise.core.errors import UsageError, nearest, need, one_line
from groupwise.core.samples import Sample
from groupwise.tasks.arithmetic import TERM, worked
from groupwise.tasks.settings import field_defaults

#: The type that reasoning_gym itself calls an item of a generator: {"question", "answer", "metadata"}.
Entry = Mapping[str, Any]

#: Parameters that the task sets for all generators together, and the keys of the recipe that do.
_SHARED = {"size": "task.problems", "seed": "task.seed"}


@dataclass(frozen=True)
class Generator:
    """A generator of a mixture.

    weight      its share of the training problems, relative to the others'
    parameters  those that the recipe sets
    where       the recipe's table they stand in, for messages
    """

    name: str
    weight: float
    parameters: Mapping[str, Any]
    where: str


def library(module: str = "reasoning_gym") -> Any:
    """Import a module of the library. Raises UsageError if it is not installed."""
    return need(module, "tasks", "task reasoning_gym")


def dataset_classes() -> Mapping[str, tuple[type, type]]:
    """Name -> (dataset class, class of its parameters), of all that reasoning_gym has but its own mixture."""
    library()  # fills the factory
    known = library("reasoning_gym.factory").DATASETS
    return {name: known[name] for name in sorted(known) if name != "composite"}


def make_generator(name: str, table: Mapping[str, Any], where: str) -> Generator:
    """Check a generator's table of the recipe and make the generator. Raises UsageError."""
    known = dataset_classes()
    if name not in known:
        raise UsageError(f"{where}: reasoning_gym has no generator {name!r}; {nearest(name, known)}")
    if not isinstance(table, Mapping):
        raise UsageError(f"{where} = {table!r}: must be a table; such as [{where}]")
    weight = table.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 < weight < float("inf"):
        raise UsageError(f"{where}.weight = {weight!r}: must be a number above 0")
    defaults = field_defaults(known[name][1])
    parameters = {key: _parameter(f"{where}.{key}", key, table[key], defaults) for key in table if key != "weight"}
    return Generator(name, float(weight), parameters, where)


def make_dataset(generator: Generator, parameters: Mapping[str, Any], seed: int, size: int) -> Any:
    """Make reasoning_gym's own object, which makes problems and scores answers. Raises UsageError with the generator's
    reason if it refuses the parameters.
    """
    create = library().create_dataset
    try:
        with steady(seed):
            return create(generator.name, **parameters, seed=seed, size=size)
    except Exception as error:  # a generator's validation raises what it likes, most often AssertionError
        raise UsageError(f"{generator.where}: {generator.name} refuses {dict(parameters)}: {one_line(error)}") from None


@contextmanager
def steady(seed: int) -> Iterator[None]:
    """Seed Python's shared random numbers, from which a few generators draw, inside; afterwards they are as before."""
    before = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)


def distinct_samples(
    generator: Generator, dataset: Any, level: int, prompt: Callable[[Entry], str]
) -> tuple[Sample, ...]:
    """List the different problems of a dataset: of those with an equal prompt the first.

    Raises UsageError if the generator finds no problem with its parameters.
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
    """Make the generator's entry, as its scorer wants it."""
    extra = sample.extra
    answer = sample.answer if extra["answered"] else None
    return {"question": extra["question"], "answer": answer, "metadata": unpacked(extra["metadata"])}


def packed(value: Any) -> Any:
    """Make JSON values, from which `unpacked` makes equal ones: scorers care for tuples and for keys that are numbers.

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
    """Make the value that `packed` was given.

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


def _parameter(where: str, key: str, value: Any, defaults: Mapping[str, Any]) -> Any:
    """Turn a recipe's value into the generator's: TOML has no tuples and no enumerations."""
    if key in _SHARED:
        raise UsageError(f"{where}: it is set for all generators together; use {_SHARED[key]}")
    if key not in defaults:
        known = ["weight", *(name for name in defaults if name not in _SHARED)]
        raise UsageError(f"{where}: there is no such parameter; {nearest(key, known)}")
    default = defaults[key]
    if isinstance(default, Enum):
        known = [str(member.value) for member in type(default)]
        if value not in known:
            raise UsageError(f"{where} = {value!r}: {nearest(str(value), known)}")
        return type(default)(value)
    if isinstance(default, tuple) and isinstance(value, list):
        return _tuples(value)
    if type(default) is float and type(value) is int:
        return float(value)
    if default is not None and type(value) is not type(default):
        raise UsageError(f"{where} = {value!r}: must be a {type(default).__name__}, as its default {default!r} is")
    return value


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value


@dataclass(frozen=True)
class KnownGenerator:
    """Texts from an entry's metadata.

    question  the problem in a few characters, everything that its answer depends on included
    work      what is written before the answer; "" where there is nothing to write
    mistake   an answer that is natural to give and mostly wrong
    """

    question: Callable[[Mapping[str, Any]], str]
    work: Callable[[Mapping[str, Any]], str]
    mistake: Callable[[Mapping[str, Any]], str]


def chain_sum_steps(expression: str) -> str:
    """Sum the first two terms in each step but the last, whose result is the answer.

    >>> chain_sum_steps("4 + 7 - 1 + 2")
    '11-1+2=10+2'
    """
    return worked(expression.replace(" ", "")).rpartition("=")[0]


def euclid(numbers: Sequence[int]) -> str:
    """Write remainders down to the greatest common divisor of all numbers.

    >>> euclid([12, 18]), euclid([7])
    ('12,18=6,12=0,6', '')
    """
    steps, first = [], numbers[0]
    for second in numbers[1:]:
        pair = (first, second)
        while pair[0]:
            steps.append(f"{pair[0]},{pair[1]}")
            pair = (pair[1] % pair[0], pair[0])
        steps.append(f"0,{pair[1]}")
        first = pair[1]
    return "=".join(steps)


def first_sum(expression: str) -> str:
    """Compute where a chain of sums ends if it stops after one step.

    >>> first_sum("4 + 7 - 1 + 2")
    '11'
    """
    return str(sum(map(int, TERM.findall(expression.replace(" ", ""))[:2])))


KNOWN: Mapping[str, KnownGenerator] = {
    "chain_sum": KnownGenerator(
        question=lambda m: m["expression"].replace(" ", "") + "=",
        work=lambda m: chain_sum_steps(m["expression"]),
        mistake=lambda m: first_sum(m["expression"]),
    ),
    "gcd": KnownGenerator(
        question=lambda m: "gcd " + ",".join(map(str, m["numbers"])) + "=",
        work=lambda m: euclid(m["numbers"]),
        mistake=lambda m: str(min(m["numbers"])),
    ),
    "number_sorting": KnownGenerator(
        question=lambda m: ("^" if m["direction"] == "ascending" else "v") + " ".join(m["original_numbers"]) + "=",
        work=lambda m: "",
        mistake=lambda m: str(m["original_numbers"]),
    ),
    "spell_backward": KnownGenerator(
        question=lambda m: m["word"] + "<", work=lambda m: "", mistake=lambda m: m["word"]
    ),
}


def short_question(entry: Entry) -> str:
    """Return the entry's problem in a few characters."""
    return KNOWN[entry["metadata"]["source_dataset"]].question(entry["metadata"])


def right_completion(sample: Sample, after: str, tags: bool) -> str:
    """Write the work, if the generator is known and the answer can be separated from it, then the answer.

    `after` and `tags` say where an answer is looked for, as in `answers.final_answer`.
    """
    known = KNOWN.get(sample.source) if after or tags else None
    work = known.work(entry_of(sample)["metadata"]) if known else ""
    if tags:
        return f"{work}<answer>{sample.answer}</answer>"
    return f"{work}{after}{sample.answer}" if work else sample.answer


def mistaken_completion(sample: Sample, others: Sequence[Sample], tags: bool, rng: random.Random) -> str:
    """Write a completion that answers at once: the generator's mistake if one is known, else what is the answer of
    another problem, which cannot be learned. Both are mostly wrong, and now and then right.
    """
    known = KNOWN.get(sample.source)
    answer = known.mistake(entry_of(sample)["metadata"]) if known else rng.choice(others).answer
    return f"<answer>{answer}</answer>" if tags else answer
