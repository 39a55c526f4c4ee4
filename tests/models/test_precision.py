"""Weights cast to a precision: what is cast, what stays, and what is refused."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch

from groupwise.core.errors import UsageError
from groupwise.models.load import Policy
from groupwise.models.precision import cast_weights, multiplies_bf16, require_precision


def test_parameters_are_cast_and_tied_ones_stay_tied_and_buffers_stay(policy: Policy):
    model = cast_weights(copy.deepcopy(policy.model), "bf16")
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert {b.dtype for b in model.buffers() if b.is_floating_point()} == {torch.float32}
    assert {p.dtype for p in policy.model.parameters()} == {torch.float32}
    assert len(list(model.parameters())) == len(list(policy.model.parameters()))
    for cast, master in zip(model.parameters(), policy.model.parameters(), strict=True):
        assert torch.equal(cast, master.bfloat16())


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
    for precision, device in (("same", "cuda"), ("fp32", "cuda"), ("bf16", "cpu")):
        require_precision("engine.precision", precision, device)


@pytest.mark.skipif(not multiplies_bf16("cpu"), reason="products are float32's here")
@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
@pytest.mark.parametrize("bounded", [pytest.param(False, marks=pytest.mark.slow), True])
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
