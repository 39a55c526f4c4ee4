"""Texts for single generators: a short question, and how an answer is worked out step by step.

For tiny policies, which read and write one character at a time. Every other generator's questions are in its own words,
and its demonstrations show answers without work.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from groupwise.core.samples import Sample
from groupwise.tasks.arithmetic import TERM, worked
from groupwise.tasks.gym.generators import Entry, entry_of


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
