"""Calculator: products that a small model cannot work out, and a tool that can; an environment of tools.

    groupwise model smollm2 models/smollm2
    groupwise train calculator

    What is 347 times 268?                                                          the prompt
    <tool_call>{"name": "multiply", "arguments": {"a": 347, "b": 268}}</tool_call>  the policy's first turn
    92996                                                                           the tool's answer
    92996                                                                           the policy's last turn

A class without `step` is an environment of tools: its public methods are what the policy may call, and their type hints
and docstrings are what the prompt says of them. `says_the_product` is a reward function as TRL has them.
Two problems, each with its call, its result and its answer, stand before every question: a model that was trained on no
tools still calls one sometimes, and from there it learns.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from groupwise import Numeric, Sample, UsageError

#: The factors of the examples. No problem has them.
EXAMPLES = ((31, 12), (702, 45))


@dataclass(frozen=True)
class Calculator:
    """An episode; its fields are the keys of [task.settings].

    factors   (smallest, largest)
    problems  of the train split
    heldout   problems held out for evaluation
    """

    factors: Sequence[int] = (13, 999)
    problems: int = 512
    heldout: int = 64

    def __post_init__(self) -> None:
        factors, counts = list(self.factors), (self.problems, self.heldout)
        whole = all(type(number) is int for number in (*factors, *counts))
        if not whole or len(factors) != 2 or not 0 <= factors[0] <= factors[1] or min(counts) < 1:
            raise UsageError(
                f"task.settings: factors = {self.factors!r}, problems = {self.problems}, heldout = {self.heldout}: "
                "must be [a, b], whole numbers with 0 <= a <= b, and at least 1 of each"
            )
        if 4 * sum(counts) > (factors[1] - factors[0] + 1) ** 2:
            raise UsageError(
                f"task.settings: factors = {self.factors!r}: too few products for {sum(counts)} problems that differ; "
                "widen them"
            )

    def samples(self, split: str) -> list[Sample]:
        """List the problems of "train" or "heldout"; a pair of factors, in either order, is in one of them."""
        if split not in ("train", "heldout"):
            raise UsageError(f"calculator has the splits train and heldout, not {split!r}")
        rng, pairs = random.Random(0), {frozenset(pair) for pair in EXAMPLES}
        drawn: list[Sample] = []
        while len(drawn) < self.problems + self.heldout:
            a, b = rng.randint(*self.factors), rng.randint(*self.factors)
            if frozenset((a, b)) not in pairs:
                pairs.add(frozenset((a, b)))
                drawn.append(_problem(a, b))
        return drawn[: self.problems] if split == "train" else drawn[self.problems :]

    def reset(self, **columns: Any) -> None:
        """Begin an episode: nothing is added to the prompt."""

    def multiply(self, a: int, b: int) -> int:
        """Multiplies two integers.

        Args:
            a: The first integer
            b: The second integer

        Returns:
            The product.
        """
        return a * b


def says_the_product(
    environments: Sequence[Calculator],
    completions: Sequence[Sequence[Mapping[str, str]]],
    answer: Sequence[str],
    **columns: Any,
) -> list[float]:
    """Score episodes: 1.0 if the last message is the policy's and states the product as its answer, else 0.0."""
    return [_stated(messages, gold) for messages, gold in zip(completions, answer, strict=True)]


def _stated(messages: Sequence[Mapping[str, str]], gold: str) -> float:
    last = messages[-1] if messages else {"role": "", "content": ""}
    return Numeric()(last["content"], gold) if last["role"] == "assistant" else 0.0


def _problem(a: int, b: int) -> Sample:
    question = f"What is {a} times {b}?"
    examples = (message for pair in EXAMPLES for message in _worked(*pair))
    return Sample(f"{a}x{b}", question, str(a * b), messages=(*examples, {"role": "user", "content": question}))


def _worked(a: int, b: int) -> list[dict[str, str]]:
    """Show a problem with its call, the tool's answer and the last turn."""
    call = f'<tool_call>{{"name": "multiply", "arguments": {{"a": {a}, "b": {b}}}}}</tool_call>'
    return [
        {"role": "user", "content": f"What is {a} times {b}?"},
        {"role": "assistant", "content": call},
        {"role": "tool", "content": str(a * b)},
        {"role": "assistant", "content": str(a * b)},
    ]
