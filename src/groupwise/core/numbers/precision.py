"""Precisions by name: torch's types of their numbers, and where float16 ends."""

from collections.abc import Iterable, Mapping
from typing import Literal

import torch
from torch import Tensor

Precision = Literal["fp32", "bf16", "fp16"]
DTYPES: Mapping[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_NAMED: Mapping[torch.dtype, Precision] = {torch.bfloat16: "bf16", torch.float16: "fp16"}


def precision_of(dtype: torch.dtype) -> Precision:
    """Return the name of the precision of these numbers; what is longer than float32 counts as it."""
    return _NAMED.get(dtype, "fp32")


def beyond_float16(weights: Iterable[tuple[str, Tensor]]) -> str:
    """Say which of the weights has a finite number that would be infinite in float16; "" if none has."""
    sizes = {
        name: torch.stack(torch.aminmax(weight.detach())).abs().amax().double()
        for name, weight in weights
        if weight.is_floating_point() and weight.numel()
    }
    if not sizes:
        return ""
    every = torch.stack([*sizes.values()])  # looked at once, for each look waits for the device
    beyond = (every.isfinite() & every.half().isinf()).tolist()
    name = next((name for name, is_beyond in zip(sizes, beyond, strict=True) if is_beyond), None)
    return f"{name} has a number of size {float(sizes[name]):g}, and float16 ends at 65,504" if name else ""
