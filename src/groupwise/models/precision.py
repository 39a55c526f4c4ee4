"""What a copy of the weights is held in: the names that a recipe has, and whether a device can compute in them."""

from collections.abc import Mapping
from typing import Any, Literal

import torch

from groupwise.core.errors import UsageError

#: "same" is as the learner's master weights are.
WeightPrecision = Literal["same", "fp32", "bf16"]
DTYPES: Mapping[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}


def itemsize(precision: WeightPrecision) -> int:
    """Bytes of a weight; master weights are float32."""
    return DTYPES.get(precision, torch.float32).itemsize


def cast_weights(model: Any, precision: WeightPrecision) -> Any:
    """The model itself, its parameters cast one after the other; tied ones stay tied.

    Buffers stay as they are: rotary frequencies in bfloat16 would put distant tokens in other places.
    """
    dtype = DTYPES.get(precision)
    for parameter in model.parameters() if dtype else ():
        parameter.data = parameter.data.to(dtype)
    return model


def require_precision(key: str, precision: str, device: str) -> None:
    """Raises UsageError, the setting's key first, where the device cannot compute in it."""
    if precision == "bf16" and torch.device(device).type == "cuda" and not torch.cuda.is_bf16_supported(False):
        name = torch.cuda.get_device_name(device)
        raise UsageError(f"{key} = 'bf16': {name} has no bfloat16; set it to 'fp32', or device = 'cpu'")
