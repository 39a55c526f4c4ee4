"""What is known of single generators: a short way to ask, and how an answer is worked out step by step.

For tiny policies, which read and write one character at a time. Every other generator is asked in its own words, and
its demonstrations show answers without work.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from groupwise.core.samples import Sample
from groupwise.tasks.gym.problems import entry_of


@dataclass(frozen=True)
class Form:
    """All from an entry's metadata.

    ask      the problem in a few characters, everything that its answer depends on included
    work     what is written before the answer; "" where there is nothing to write
    mistake  an answer that is natural to give and mostly wrong
    """

    ask: Callable[[Mapping[str, Any]], str]
    work: Callable[[Mapping[str, Any]], str]
    mistake: Callable[[Mapping[str, Any]], str]


def chain_sum_steps(expression: str) -> str:
    """The first two terms summed in each step but the last, whose result is the answer.

    >>> chain_sum_steps("4 + 7 - 1 + 2")
    '11-1+2=10+2'
    """
    terms, steps = expression.split(), []
    while len(terms) > 3:
        first, sign, second = terms[:3]
        terms[:3] = [str(int(first) + int(sign + second))]
        steps.append("".join(terms))
    return "=".join(steps)


def euclid(numbers: Sequence[int]) -> str:
    """Remainders down to the greatest common divisor of all numbers.

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
    """Where a chain of sums ends if it stops after one step.

    >>> first_sum("4 + 7 - 1 + 2")
    '11'
    """
    first, *rest = expression.split()
    return str(int(first) + int("".join(rest[:2]) or "0"))


FORMS: Mapping[str, Form] = {
    "chain_sum": Form(
        ask=lambda m: m["expression"].replace(" ", "") + "=",
        work=lambda m: chain_sum_steps(m["expression"]),
        mistake=lambda m: first_sum(m["expression"]),
    ),
    "gcd": Form(
        ask=lambda m: "gcd " + ",".join(map(str, m["numbers"])) + "=",
        work=lambda m: euclid(m["numbers"]),
        mistake=lambda m: str(min(m["numbers"])),
    ),
    "number_sorting": Form(
        ask=lambda m: ("^" if m["direction"] == "ascending" else "v") + " ".join(m["original_numbers"]) + "=",
        work=lambda m: "",
        mistake=lambda m: str(m["original_numbers"]),
    ),
    "spell_backward": Form(ask=lambda m: m["word"] + "<", work=lambda m: "", mistake=lambda m: m["word"]),
}


def show(sample: Sample, after: str, tags: bool) -> str:
    """A right completion: the work, where a form of it is known and the answer can be told from it, then the answer.

    `after` and `tags` say where an answer is looked for, as in `gym_answers.final_answer`.
    """
    form = FORMS.get(sample.source) if after or tags else None
    work = form.work(entry_of(sample)["metadata"]) if form else ""
    if tags:
        return f"{work}<answer>{sample.answer}</answer>"
    return f"{work}{after}{sample.answer}" if work else sample.answer


def mistaken(sample: Sample, others: Sequence[Sample], tags: bool, rng: random.Random) -> str:
    """A completion that answers at once: the generator's mistake where one is known, else what is the answer of
    another problem, which cannot be learned. Both are mostly wrong, and now and then right.
    """
    form = FORMS.get(sample.source)
    answer = form.mistake(entry_of(sample)["metadata"]) if form else rng.choice(others).answer
    return f"<answer>{answer}</answer>" if tags else answer
