"""Weights cast to a precision: what is cast, what stays, and what is refused."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch

from groupwise.core.errors import UsageError
from groupwise.core.numbers.precision import beyond_float16, precision_of
from groupwise.models.load import Policy
from groupwise.models.precision import (
    WeightPrecision,
    cast_weights,
    itemsize,
    multiplies_bf16,
    require_precision,
    require_range,
)


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_parameters_are_cast_and_tied_ones_stay_tied_and_buffers_stay(
    policy: Policy, precision: WeightPrecision, dtype: torch.dtype
):
    model = cast_weights(copy.deepcopy(policy.model), precision)
    assert {p.dtype for p in model.parameters()} == {dtype}
    assert (precision_of(dtype), itemsize(precision)) == (precision, 2)
    assert {b.dtype for b in model.buffers() if b.is_floating_point()} == {torch.float32}
    assert {p.dtype for p in policy.model.parameters()} == {torch.float32}
    assert len(list(model.parameters())) == len(list(policy.model.parameters()))
    for cast, master in zip(model.parameters(), policy.model.parameters(), strict=True):
        assert torch.equal(cast, master.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_same_is_what_the_weights_are_in(policy: Policy, dtype: torch.dtype):
    model = policy.model.to(dtype)
    assert {p.dtype for p in cast_weights(copy.deepcopy(model), "same").parameters()} == {dtype}
    assert {p.dtype for p in cast_weights(copy.deepcopy(model), "fp32").parameters()} == {torch.float32}


def test_a_precision_that_the_device_has_not_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda emulated: emulated)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Old Card")
    with pytest.raises(UsageError, match=r"^engine.precision = 'bf16': Old Card has no bfloat16; set it to 'fp32'"):
        require_precision("engine.precision", "bf16", "cuda")
    for precision, device in (("same", "cuda"), ("fp32", "cuda"), ("fp16", "cuda"), ("bf16", "cpu")):
        require_precision("engine.precision", precision, device)


def test_a_weight_that_float16_cannot_hold_is_named():
    """65,504 is its last number: what is nearer to that than to 65,536, which it has not, is rounded to it."""
    weights = {"last": torch.tensor([[1.0, -65_519.0]]), "none": torch.empty(0, 3), "ids": torch.tensor([1 << 40])}
    assert not beyond_float16(weights.items())
    weights |= {"lost": torch.tensor([torch.nan, 1.0]), "infinite": torch.tensor(-torch.inf)}  # in float32 too
    require_range("engine.precision", "fp16", weights.items())
    beyond = [("first", torch.tensor([3.0, -65_520.0])), ("second", torch.tensor(1e9))]
    assert all(tensor.half().isinf().any() for _, tensor in beyond)
    for precision in ("same", "bf16"):
        require_range("engine.precision", precision, beyond)
    words = (
        r"^engine\.precision = 'fp16': first has a number of size 65520, and float16 ends at 65,504; set it to 'bf16'"
    )
    with pytest.raises(UsageError, match=words):
        require_range("engine.precision", "fp16", [*weights.items(), *beyond])


@pytest.mark.skipif(not multiplies_bf16("cpu"), reason="products are float32's here")
@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
@pytest.mark.slow
@pytest.mark.parametrize("bounded", [False, True])
def test_products_of_many_shapes_do_not_stay(bounded: bool):
    """In a process of its own: 400 products of as many shapes hold more than 160 MiB, and less with a bound."""
    program = f"""
import torch
from groupwise.core.machine.free_memory import give_back, held_memory
from groupwise.models.precision import keep_few_products
if {bounded}:
    keep_few_products()
weight = torch.ones(1536, 576, dtype=torch.bfloat16)
torch.ones(64, 576, dtype=torch.bfloat16) @ weight.T
before = held_memory("cpu")
for tokens in range(100, 500):
    torch.ones(tokens, 576, dtype=torch.bfloat16) @ weight.T
give_back()
print((held_memory("cpu") - before) >> 20)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (int(ended.stdout) < 160) == bounded
