"""The layout of a safetensors file: the length of its header, the header, and then every tensor's bytes.

The header is a JSON object: of each tensor its type, its shape, and where its bytes begin and end behind the header.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

#: The format's names of what a tensor's numbers are.
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
#: Bytes of the header's length, and the entry of a header that is no tensor.
LENGTH, METADATA = 8, "__metadata__"
_NAMED = {name: dtype for dtype, name in DTYPES.items()}


@dataclass(frozen=True)
class TensorBytes:
    """Place of a tensor's bytes, counted from the beginning of the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Layout:
    """Tensors of a file by name, and what else its header says."""

    places: Mapping[str, TensorBytes]
    metadata: Mapping[str, str]


def size(tensor: Tensor) -> int:
    """Return the bytes of its numbers."""
    return tensor.numel() * tensor.element_size()


def header(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None, multiple: int = LENGTH) -> bytes:
    """Return what stands before the bytes of these tensors, which follow in the same order and without gaps.

    The header ends with spaces, so that its whole length is a multiple of `multiple`.
    """
    entries: dict[str, object] = {METADATA: dict(metadata)} if metadata else {}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + size(tensor)
        entries[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(LENGTH + len(text)) % multiple)
    return len(text).to_bytes(LENGTH, "little") + text


def layout(start: bytes) -> Layout:
    """Return what a file holds, of which `start` is the beginning, the whole header included.

    Raises ValueError if this is no such header.

    >>> layout(header({"a": torch.zeros(2, 3)}, {"version": "7"})).metadata
    {'version': '7'}
    """
    try:
        behind = LENGTH + int.from_bytes(start[:LENGTH], "little")
        entries = json.loads(start[LENGTH:behind])
        metadata = entries.pop(METADATA, {})
        return Layout({name: _place(entry, behind) for name, entry in entries.items()}, metadata)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not the header of a safetensors file: {type(error).__name__}") from None


def file_layout(path: Path) -> Layout:
    """Return what a file holds. Raises OSError if it cannot be read, ValueError if it is no such file."""
    with path.open("rb") as file:
        start = file.read(LENGTH)
        length = min(int.from_bytes(start, "little"), path.stat().st_size)
        return layout(start + file.read(length))


def read_tensor(path: Path, place: TensorBytes) -> Tensor:
    """Read one tensor of a file. Raises OSError if it cannot be read, ValueError if the file ends before."""
    tensor = torch.empty(place.shape, dtype=place.dtype)
    with path.open("rb") as file:
        file.seek(place.begin)
        if tensor.numel() and file.readinto(tensor.view(-1).view(torch.uint8).numpy().data) != tensor.nbytes:
            raise ValueError(f"{path} ends too early")
    return tensor


def _place(entry: Mapping[str, object], behind: int) -> TensorBytes:
    dtype, shape = _NAMED[str(entry["dtype"])], tuple(map(int, entry["shape"]))  # type: ignore[call-overload]
    begin, end = map(int, entry["data_offsets"])  # type: ignore[call-overload]
    if begin < 0 or end - begin != math.prod(shape) * dtype.itemsize:
        raise ValueError("its bytes are not those of its shape")
    return TensorBytes(dtype, shape, behind + begin, behind + end)
