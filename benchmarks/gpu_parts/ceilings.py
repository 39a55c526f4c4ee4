"""What the machine can do at most: bytes a second of a copy, operations a second of a matrix product."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from gpu_parts.measuring import Context, seconds

TRIES = 10
#: Of a product: what its elements are, and whether float32 may be rounded to TF32 in it.
PRODUCTS: Mapping[str, tuple[torch.dtype, bool]] = {
    "bf16 product": (torch.bfloat16, False),
    "fp32 product": (torch.float32, False),
    "tf32 product": (torch.float32, True),
}


def measure(context: Context) -> None:
    context.measure({"of": "copy"}, partial(copied, context))
    for name in PRODUCTS:
        context.measure({"of": name}, partial(multiplied, context, name))


def copied(context: Context) -> dict[str, Any]:
    """The fastest of a few copies on the device, bytes read and written counted."""
    source = torch.ones(context.amounts.copied, dtype=torch.uint8, device=context.device)
    target = torch.empty_like(source)
    best = min(seconds(context.device, partial(target.copy_, source)) for _ in range(TRIES))
    return {"per_second": 2 * source.numel() / best, "unit": "bytes"}


def multiplied(context: Context, name: str) -> dict[str, Any]:
    """The fastest of a few products of two square matrices of random numbers."""
    (dtype, tf32), side = PRODUCTS[name], context.amounts.product
    left, right = (torch.randn(side, side, device=context.device, dtype=dtype) for _ in range(2))
    out, before = torch.empty_like(left), torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        best = min(seconds(context.device, partial(torch.mm, left, right, out=out)) for _ in range(TRIES))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    return {"per_second": 2 * side**3 / best, "unit": "operations"}
