"""A safetensors file written tensor by tensor: wherever they lie, one at a time is copied to the processor."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from groupwise.core.tensor_layout import header
from groupwise.models.shards import whole


def write_tensors(path: Path, tensors: Mapping[str, Tensor], writes: bool = True) -> None:
    """A header that says of each tensor its type, shape and place, and then their bytes one after another.

    writes  False: this rank only helps to gather the tensors
    """
    if not writes:
        for tensor in tensors.values():
            whole(tensor)
        return
    with path.open("wb") as file:
        file.write(header(tensors))
        for tensor in tensors.values():
            file.write(whole(tensor).cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
