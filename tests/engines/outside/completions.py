"""Completions compared to the bit, tensors included."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from groupwise.core.records import Completion


def assert_same(some: Sequence[Sequence[Completion]], others: Sequence[Sequence[Completion]]) -> None:
    assert [len(group) for group in some] == [len(group) for group in others]
    for group, other in zip(some, others, strict=True):
        for one, two in zip(group, other, strict=True):
            assert fields(one) == fields(two)


def fields(value: Any) -> Any:
    """A record as nested values that compare; of a tensor its type, its shape and its bytes."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.contiguous().view(torch.uint8).numpy().tobytes()
    if dataclasses.is_dataclass(value):
        return {field.name: fields(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return repr(value)  # NaN is not equal to itself
