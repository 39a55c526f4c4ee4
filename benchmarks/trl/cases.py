"""What is timed: the rows of the table, and the axes along which the cost of a step grows."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

#: The name of the model that is a real one; all others are made of a Shape.
SMOLLM2 = "smollm2"


@dataclass(frozen=True)
class Shape:
    """A Qwen3 with random weights, half as many key-value heads as heads, and 32 channels a head."""

    layers: int = 4
    width: int = 128
    vocabulary: int = 4096

    @property
    def heads(self) -> int:
        return max(2, self.width // 32)


@dataclass(frozen=True)
class Case:
    """One step of GRPO: `prompts` prompts of `prompt_tokens` words, `samples` completions of each.

    model        None is SmolLM2-135M-Instruct, asked for products and rewarded for them
    limit        the most tokens of a completion
    mean_length  what the model's end token is set for, tokens; 0: it is never sampled
    warmup       steps of every process that are not counted; `timed` ones follow
    blocks       how many times the sides go in the order ours, theirs, theirs, ours; 0: ours, theirs, once
    axis, value  what grows, and how large it is here; "" for a row of the table
    """

    name: str
    title: str
    model: Shape | None
    prompts: int
    samples: int
    prompt_tokens: int
    limit: int
    mean_length: float = 0.0
    warmup: int = 3
    timed: int = 8
    blocks: int = 2
    axis: str = ""
    value: int = 0

    @property
    def completions(self) -> int:
        return self.prompts * self.samples

    @property
    def steps(self) -> int:
        return self.warmup + self.timed

    @property
    def model_name(self) -> str:
        """A folder's name: one for each shape and distribution of lengths."""
        if self.model is None:
            return SMOLLM2
        shape = self.model
        ends = f"mean{self.mean_length:g}of{self.limit}" if self.mean_length else "endless"
        return f"qwen3-{shape.layers}x{shape.width}-{shape.vocabulary}-{ends}"

    @property
    def short(self) -> "Case":
        """The same with as few steps as tell which of two settings is faster."""
        return replace(self, warmup=1, timed=2)

    @cached_property
    def digest(self) -> str:
        """Tells a case from the same one before it was changed."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:12]


ROWS = (
    Case(
        "lengths-22",
        "vocabulary 15, mean length 22 of at most 48",
        Shape(vocabulary=15),
        prompts=32,
        samples=8,
        prompt_tokens=8,
        limit=48,
        mean_length=22,
    ),
    Case("equal-48", "vocabulary 4,096, equal lengths 48", Shape(), prompts=32, samples=8, prompt_tokens=8, limit=48),
    Case(
        "lengths-53",
        "vocabulary 48, mean length 53 of at most 192",
        Shape(vocabulary=48),
        prompts=32,
        samples=8,
        prompt_tokens=8,
        limit=192,
        mean_length=53,
    ),
    Case(
        "prompts-512",
        "vocabulary 4,096, prompts of 512, 16 completions of 32 each",
        Shape(),
        prompts=8,
        samples=16,
        prompt_tokens=512,
        limit=32,
        warmup=2,
        timed=6,
    ),
    Case(
        SMOLLM2,
        "SmolLM2-135M-Instruct, at most 32 tokens",
        None,
        prompts=8,
        samples=8,
        prompt_tokens=0,
        limit=32,
        warmup=1,
        timed=3,
    ),
    Case(
        "large-vocabulary",
        "vocabulary 151,936, equal lengths 32",
        Shape(vocabulary=151_936),
        prompts=8,
        samples=8,
        prompt_tokens=8,
        limit=32,
        warmup=1,
        timed=4,
    ),
)

#: What every axis starts from: all but one number of a point are these.
BASE = Case("", "", Shape(vocabulary=1024), 16, 8, prompt_tokens=64, limit=32, warmup=2, timed=4, blocks=0)


def along(axis: str, points: Mapping[int, Case]) -> tuple[Case, ...]:
    return tuple(
        replace(case, name=f"{axis.replace(' ', '-')}-{value}", title=f"{axis} {value:,}", axis=axis, value=value)
        for value, case in points.items()
    )


GROWTH = (
    *along("group size", {g: replace(BASE, prompts=128 // g, samples=g) for g in (2, 4, 8, 16, 32)}),
    *along("completion length", {n: replace(BASE, limit=n) for n in (16, 32, 64, 128, 256)}),
    *along("vocabulary", {v: replace(BASE, model=Shape(vocabulary=v)) for v in (64, 1024, 8192, 32768, 131072)}),
    *along(
        "width",
        {
            width: replace(BASE, model=Shape(layers=layers, width=width, vocabulary=1024))
            for layers, width in ((2, 64), (4, 128), (4, 256), (8, 384), (12, 512))
        },
    ),
)

#: Shows in a minute that everything works; no figure of it means anything.
SMOKE = Case("smoke", "a trial", Shape(2, 64, 64), 4, 4, prompt_tokens=4, limit=8, mean_length=5, warmup=1, timed=2)

CASES = {case.name: case for case in (*ROWS, *GROWTH, SMOKE)}


def rows_at_once(case: Case) -> tuple[int, ...]:
    """What the other side may take as its batch on a device: all completions, or a half, a quarter, an eighth."""
    return tuple(case.completions // part for part in (1, 2, 4, 8))
