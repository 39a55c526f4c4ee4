"""Microbatches by arithmetic are those that a learner makes of rows of one length."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch

from groupwise.core.collate import microbatches
from groupwise.core.prefixes import prefix_microbatches, prompt_keys
from groupwise.planning.run_shape import MicrobatchSizes, RunShape, microbatch_sizes, minibatch_rows
from tests.planning.made import SMALL as SHAPE


def shape_of(prompts: int, samples: int, prompt: int, completion: int, minibatches: int = 1) -> RunShape:
    given = {"prompts": prompts, "samples": samples, "prompt": prompt, "completion": completion}
    return dataclasses.replace(SHAPE, **given, minibatches=minibatches)


def laid_out(shape: RunShape, tokens: int) -> MicrobatchSizes:
    """By the learner's own code, over rows."""
    rows = minibatch_rows(shape)
    length = torch.full((rows,), shape.prompt + shape.completion)
    keys = prompt_keys(torch.arange(rows) // shape.samples, shape.prompt, shape.completion)
    parts = prefix_microbatches(keys, length, tokens)
    sizes = []
    for part in parts:
        prompts = len({int(row) // shape.samples for row in part})
        sizes.append(prompts * shape.prompt + len(part) * (shape.completion - 1))
    return MicrobatchSizes(len(sizes), sum(sizes), max(sizes))


def test_of_any_shape() -> None:
    numbers = random.Random(0)
    for _ in range(300):
        shape = shape_of(*(numbers.randint(1, most) for most in (9, 9, 12, 9, 3)))
        tokens = numbers.randint(1, 120)
        assert microbatch_sizes(shape, tokens, line=True) == laid_out(shape, tokens), (shape, tokens)


@pytest.mark.parametrize("tokens", [1, 12, 30, 1000])
def test_of_padded_rows(tokens: int) -> None:
    parts = microbatches(torch.full((24,), 12), tokens)
    sizes = [11 * len(part) for part in parts]  # the last token of a row is not run
    expected = MicrobatchSizes(len(parts), sum(sizes), max(sizes))
    assert microbatch_sizes(SHAPE, tokens, line=False) == expected


def test_an_enormous_minibatch_is_counted_at_once() -> None:
    sizes = microbatch_sizes(shape_of(2**20, 2**12, 30, 1001), 16384, line=True)
    assert sizes.count == 2**32 / 16  # 16 completions and their prompt, or two where a group ends among them
    assert sizes.largest == 30 + 16 * 1000
