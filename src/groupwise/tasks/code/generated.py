"""The functions that the task `code` asks for where it has no file: chains of steps such as `+3*2-1:`.

The prompt lists what happens to x, in order; the completion is the body of `def f(x):`. Its demonstrations are a
mixture. Some take step after step and are right (`x+=3;x*=2;x-=1;return x`), the others write the steps down as one
expression (`return x+3*2-1`), where Python multiplies first and the value is wrong. A policy that imitates them can do
both; what reinforcement learning has to find is which of the two the tests accept.
"""

import random
import re
from collections.abc import Sequence
from functools import lru_cache

from groupwise.core.samples import Sample
from groupwise.core.task import Demonstration
from groupwise.tasks.splits import in_hash_order, split_by_prompt

PREFIX = "def f(x):"
ALPHABET = "0123456789+-*=:; xreturn"
_STEP = re.compile(r"[-+*][0-9]")
_STEPS = [sign + str(n) for sign, most in (("+", 9), ("-", 9), ("*", 4)) for n in range(1 + (sign == "*"), most + 1)]
_INPUTS = (-7, -1, 0, 2, 5)


@lru_cache(maxsize=8)
def splits(steps: tuple[int, int], heldout_share: float, problems: int, seed: int) -> dict[str, tuple[Sample, ...]]:
    """Return the samples of "train" and "heldout", at most `problems` together."""
    rng = random.Random(seed)
    prompts: set[str] = set()
    counts = range(steps[0], steps[1] + 1)
    for count in counts:
        for _ in range(4 * problems // len(counts)):
            chain = [rng.choice(_STEPS) for _ in range(count)]
            if _haste_fails(chain) and len(prompts) < problems:
                prompts.add("".join(chain) + ":")
    return split_by_prompt([_sample(prompt) for prompt in in_hash_order(prompts, seed)], heldout_share)


def demonstrations(train: Sequence[Sample], worked_share: float, count: int, seed: int) -> list[Demonstration]:
    """Draw `count` demonstrations on these problems, a `worked_share` of them right."""
    rng = random.Random(seed)
    chosen = [(rng.choice(train).prompt, rng.random() < worked_share) for _ in range(count)]
    return [Demonstration(prompt, right(prompt) if works else hasty(prompt)) for prompt, works in chosen]


def right(prompt: str) -> str:
    """Take step after step: `+3*2:` -> `x+=3;x*=2;return x`."""
    return "".join(f"x{step[0]}={step[1]};" for step in _STEP.findall(prompt)) + "return x"


def hasty(prompt: str) -> str:
    """Write the steps as they stand: `+3*2:` -> `return x+3*2`, which adds 6."""
    return "return x" + prompt.rstrip(":")


def value(prompt: str, x: int) -> int:
    """Compute what the steps make of x.

    >>> value("+3*2:", 1)
    8
    """
    for step in _STEP.findall(prompt):
        sign, number = step[0], int(step[1])
        x = x + number if sign == "+" else x - number if sign == "-" else x * number
    return x


def _haste_fails(chain: Sequence[str]) -> bool:
    """Tell whether a multiplication comes after a sum: Python would do it first."""
    sums = [i for i, step in enumerate(chain) if step[0] != "*"]
    return bool(sums) and any(step[0] == "*" for step in chain[sums[0] :])


def _sample(prompt: str) -> Sample:
    tests = [{"call": "f", "args": [x], "expected": value(prompt, x)} for x in _INPUTS]
    return Sample(key=prompt, prompt=prompt, answer=right(prompt), extra={"prefix": PREFIX, "tests": tests})
