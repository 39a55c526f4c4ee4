"""A safetensors file written tensor by tensor: wherever they lie, one at a time is copied to the processor."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from groupwise.core.files.tensor_layout import LENGTH, Layout, header, layout


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """A header that says of each tensor its type, shape and place, and then their bytes one after another."""
    with path.open("wb") as file:
        file.write(header(tensors))
        for tensor in tensors.values():
            file.write(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)


def layout_of(path: Path) -> Layout:
    """What a file holds, in the order in which it was written. Raises ValueError where it is no such file."""
    with path.open("rb") as file:
        start = file.read(LENGTH)
        return layout(start + file.read(min(int.from_bytes(start, "little"), path.stat().st_size)))


def sha256_of(path: Path) -> str:
    """A hash of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Waits until a file, or what a folder holds by name, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
