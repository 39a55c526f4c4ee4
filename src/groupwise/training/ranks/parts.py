"""Tensors that ranks hold together, on disk: a file for the rows of each rank, and beside them a layout in JSON.

    optimizer.00001-of-00002.safetensors   the rows of rank 0, and what every rank has whole
    optimizer.00002-of-00002.safetensors   the rows of rank 1
    optimizer.layout.json                  of each tensor its shape, and where the rows of each rank begin

A process by itself writes one file, optimizer.safetensors. Any number of ranks reads either: each the rows that it
holds, from the files where they lie.

Moments and the critic are two thirds of a checkpoint's bytes, and only a resume reads them, so each rank writes its own
rows; the policy, which anything may read, is gathered and written as a Hugging Face folder by rank 0.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from torch.distributed.tensor import DTensor

from groupwise.core.files.tensor_layout import file_layout, header
from groupwise.models.shards import first_rows, own_part, with_own_part
from groupwise.training.mesh import Mesh


@dataclass(frozen=True)
class ShardedTensor:
    """Place of a tensor.

    shape  of all of it
    rows   where each rank's rows begin, and behind them how many there are: [0, 8, 15]; empty where the first file has
           all of it
    """

    shape: tuple[int, ...]
    rows: tuple[int, ...] = ()


class Stored:
    """The tensors of a checkpoint, by name, wherever their rows lie.

    places  where each of them lies
    """

    def __init__(self, places: Mapping[str, ShardedTensor], files: Sequence[Any]) -> None:
        self.places, self._files = places, files

    def whole(self, name: str) -> Tensor:
        """Return all of a tensor."""
        place = self.places[name]
        return self._rows(name, place.rows[0], place.rows[-1]) if place.rows else self._files[0].get_tensor(name)

    def like(self, name: str, x: Tensor) -> Tensor:
        """Return a tensor of x's shape, on its device and in parts as x is; no more is read than x holds here."""
        if not isinstance(x, DTensor):
            return self.whole(name).to(x.device)
        bounds, rank = first_rows(x), x.device_mesh.get_local_rank()
        own = self._rows(name, bounds[rank], bounds[rank + 1])
        return with_own_part(x, own.to(x.device))

    def _rows(self, name: str, first: int, stop: int) -> Tensor:
        place = self.places[name]
        bounds = place.rows or (0, place.shape[0])
        parts = [
            file.get_slice(name)[max(first, start) - start : min(stop, end) - start]
            for file, start, end in zip(self._files, bounds, bounds[1:], strict=False)
            if max(first, start) < min(stop, end)
        ]
        return torch.cat(parts) if parts else self._files[0].get_tensor(name)[:0]


def write_parts(folder: Path, name: str, tensors: Mapping[str, Tensor], mesh: Mesh) -> dict[str, str]:
    """Write tensors under the name of one file; each rank writes its own rows -> the hashes of the ranks' files, by
    name.

    Raises OSError, on every rank, if one of them cannot write.
    """
    if mesh.alone:
        write_tensors(folder / name, tensors)
        return {}
    files = [_file(name, rank, mesh.size) for rank in range(mesh.size)]
    own = {key: own_part(x) for key, x in tensors.items() if mesh.leads or isinstance(x, DTensor)}
    said = mesh.of_each(_written(folder / files[mesh.rank], own))
    for rank, (_, number, words) in enumerate(said):
        if words:
            raise OSError(number, f"{words} (rank {rank})")
    if mesh.leads:
        entries = {
            key: {"shape": list(x.shape), "rows": list(first_rows(x)) if isinstance(x, DTensor) else []}
            for key, x in tensors.items()
        }
        (folder / _layout(name)).write_text(json.dumps({"ranks": mesh.size, "tensors": entries}, indent=1))
    return {file: digest for file, (digest, _, _) in zip(files, said, strict=True)}


def is_stored(folder: Path, name: str) -> bool:
    """Return whether `write_parts` has written something of this name there."""
    return (folder / name).is_file() or (folder / _layout(name)).is_file()


@contextmanager
def stored(folder: Path, name: str) -> Iterator[Stored]:
    """Open what `write_parts` wrote, whatever number of ranks wrote it.

    Raises OSError, KeyError, ValueError or SafetensorError where it is not there, or is something else.
    """
    shared = folder / _layout(name)
    with ExitStack() as stack:
        if not shared.exists():
            entries = file_layout(folder / name).places  # in the order in which they were written
            places = {key: ShardedTensor(entry.shape) for key, entry in entries.items()}
            yield Stored(places, [stack.enter_context(safe_open(folder / name, "pt"))])
            return
        known = json.loads(shared.read_bytes())
        places = {key: ShardedTensor(tuple(one["shape"]), tuple(one["rows"])) for key, one in known["tensors"].items()}
        paths = [folder / _file(name, rank, known["ranks"]) for rank in range(known["ranks"])]
        yield Stored(places, [stack.enter_context(safe_open(path, "pt")) for path in paths])


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file tensor by tensor: wherever they lie, one at a time is copied to the processor."""
    with path.open("wb") as file:
        file.write(header(tensors))
        for tensor in tensors.values():
            file.write(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)


def sha256_of(path: Path) -> str:
    """Hash a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Wait until a file, or what a folder holds by name, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _written(path: Path, tensors: Mapping[str, Tensor]) -> tuple[str, int, str]:
    """Write a file with these tensors -> its hash; or the number and the words of the error where it is not."""
    try:
        write_tensors(path, tensors)
        sync(path)
        return sha256_of(path), 0, ""
    except OSError as error:
        return "", error.errno or 0, error.strerror or str(error)


def _file(name: str, rank: int, size: int) -> str:
    """Return the file of a rank's rows.

    >>> _file("optimizer.safetensors", rank=0, size=2)
    'optimizer.00001-of-00002.safetensors'
    """
    path = Path(name)
    return f"{path.stem}.{rank + 1:05d}-of-{size:05d}{path.suffix}"


def _layout(name: str) -> str:
    return f"{Path(name).stem}.layout.json"
