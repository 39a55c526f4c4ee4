"""Precisions in which weights are held and products are computed: names, devices, and what is fast on them."""

import logging
import os
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor

from groupwise.core.errors import UsageError, need
from groupwise.core.numbers.precision import DTYPES, Precision, beyond_float16

#: "same" is as the learner's master weights are.
WeightPrecision = Literal["same", Precision]

#: What installs bitsandbytes, beside groupwise.
BITSANDBYTES = "bitsandbytes"

#: How many compiled products oneDNN keeps, and torch's layer over it; the variables by which both are told.
PRODUCTS_KEPT, PRODUCT_CACHES = "128", ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")


def itemsize(precision: WeightPrecision) -> int:
    """Return bytes of a weight; master weights are float32."""
    return DTYPES.get(precision, torch.float32).itemsize


def cast_weights(model: Any, precision: WeightPrecision) -> Any:
    """Return the model itself, its parameters cast one after the other; tied ones stay tied.

    Buffers stay as they are: rotary frequencies in bfloat16 would put distant tokens in other places.
    """
    dtype = DTYPES.get(precision)
    for parameter in model.parameters() if dtype else ():
        parameter.data = parameter.data.to(dtype)
    return model


def keep_few_products() -> None:
    """Keep the last 128 products of bfloat16 or float16 that a CPU has compiled for their shapes, and not 1,024.

    Microbatches seldom have as many tokens as one before, so what is kept is used within one alone, and a product takes
    about 0.6 MiB. Counts in a process that has made no such product yet; variables that are set already stay.
    """
    for name in PRODUCT_CACHES:
        os.environ.setdefault(name, PRODUCTS_KEPT)


def require_range(key: str, precision: str, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Raise UsageError, the setting's key first, if the precision cannot hold one of the weights."""
    if precision == "fp16" and (beyond := beyond_float16(weights)):
        raise UsageError(f"{key} = 'fp16': {beyond}; set it to 'bf16', or to 'same'")


def require_precision(key: str, precision: str, device: str) -> None:
    """Raise UsageError, the setting's key first, if the device cannot compute in it."""
    if precision == "bf16" and torch.device(device).type == "cuda" and not torch.cuda.is_bf16_supported(False):
        name = torch.cuda.get_device_name(device)
        instead = "'fp32' (of engine and reference also 'fp16')"
        raise UsageError(f"{key} = 'bf16': {name} has no bfloat16; set it to {instead}, or device = 'cpu'")


def bitsandbytes(what: str) -> Any:
    """Import bitsandbytes for `what`. Raises UsageError if it is not installed."""
    return need_silently("bitsandbytes", BITSANDBYTES, what)


def need_silently(module: str, extra: str, what: str) -> Any:
    """Import a library as `need` does, without what bitsandbytes says, if it comes along, of kernels for processors."""
    log = logging.getLogger("bitsandbytes.backends.cpu.ops")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        return need(module, extra, what)
    finally:
        log.setLevel(before)


def computes_in(x: Tensor) -> torch.dtype:
    """Return the type that a product of this tensor is computed in: autocast's inside it, else the tensor's own."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def operand(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return x rounded to `dtype`, held in the type in which the device multiplies such numbers fastest.

    A CPU without instructions for bfloat16 takes five times as long for its products as for float32's. There float32
    holds the rounded numbers: a product of two of them is exact in it, and sums are float32's either way. The caller
    rounds what comes out.
    """
    x = x.to(dtype)
    return x.float() if dtype == torch.bfloat16 and not multiplies_bf16(x.device.type) else x


def wide_product(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply x [m,H] by the transpose of weight [V,H] -> [m,V], in float32 where both have 16 bits."""
    if x.dtype.itemsize > 2:
        return x @ weight.T
    if x.is_cuda:
        return torch.mm(x, weight.T, out_dtype=torch.float32)
    return x.float() @ weight.float().T


@lru_cache
def multiplies_bf16(kind: str) -> bool:
    """Tell whether a kind of device has instructions for products of bfloat16; yes, where torch does not tell."""
    capabilities = getattr(torch.cpu, "get_capabilities", None)
    if kind != "cpu" or capabilities is None:
        return True
    return any(capabilities().get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))
