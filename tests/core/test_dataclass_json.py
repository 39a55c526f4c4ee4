"""Dataclasses to JSON and back."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from groupwise.core.files.dataclass_json import from_json, to_json


@dataclass(frozen=True)
class Inner:
    numbers: tuple[float, ...]
    column: Tensor | None = None


@dataclass(frozen=True)
class Outer:
    pair: tuple[str, Inner]
    inner: tuple[Inner, ...] = ()
    note: str | None = None


def test_fields_come_back_as_what_they_were_and_missing_ones_at_their_defaults():
    outer = Outer(("a", Inner((0.1, 1e-300))), (Inner(()), Inner((2.0,))), "x")
    assert from_json(Outer, json.loads(json.dumps(to_json(outer)))) == outer
    assert from_json(Outer, {"pair": ["b", {"numbers": []}]}) == Outer(("b", Inner(())))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 2), (0, 2, 2), ()])
def test_tensors_keep_type_shape_and_bits(dtype, shape):
    column = (torch.rand(shape) * 100).to(dtype)
    again = from_json(Inner, json.loads(json.dumps(to_json(Inner((), column))))).column
    assert again.dtype == dtype
    assert again.shape == column.shape
    assert torch.equal(again, column)
