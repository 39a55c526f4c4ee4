"""Tensors that ranks hold together, on disk: a file for the rows of each rank, and beside them a layout in JSON.

    optimizer.00001-of-00002.safetensors   the rows of rank 0, and what every rank has whole
    optimizer.00002-of-00002.safetensors   the rows of rank 1
    optimizer.layout.json                  of each tensor its shape, and where the rows of each rank begin

A process by itself writes one file, optimizer.safetensors. Any number of ranks reads either: each the rows that it
holds, from the files where they lie.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from torch.distributed.tensor import DTensor

from groupwise.models.shards import first_rows, own_part, with_own_part
from groupwise.training.mesh import Mesh
from groupwise.training.ranks.tensor_file import layout_of, sha256_of, sync, write_tensors


@dataclass(frozen=True)
class Place:
    """Where a tensor lies.

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

    def __init__(self, places: Mapping[str, Place], files: Sequence[Any]) -> None:
        self.places, self._files = places, files

    def whole(self, name: str) -> Tensor:
        """All of a tensor."""
        place = self.places[name]
        return self._rows(name, place.rows[0], place.rows[-1]) if place.rows else self._files[0].get_tensor(name)

    def like(self, name: str, x: Tensor) -> Tensor:
        """A tensor of x's shape, on its device and in parts as x is; no more is read than x holds here."""
        if not isinstance(x, DTensor):
            return self.whole(name).to(x.device)
        bounds, rank = first_rows(x), x.device_mesh.get_local_rank()
        own = self._rows(name, bounds[rank], bounds[rank + 1])
        return with_own_part(x, own.to(x.device))

    def _rows(self, name: str, first: int, stop: int) -> Tensor:
        """The rows from `first` on up to `stop`, put together from the files that have some of them."""
        place = self.places[name]
        bounds = place.rows or (0, place.shape[0])
        parts = [
            file.get_slice(name)[max(first, start) - start : min(stop, end) - start]
            for file, start, end in zip(self._files, bounds, bounds[1:], strict=False)
            if max(first, start) < min(stop, end)
        ]
        return torch.cat(parts) if parts else self._files[0].get_tensor(name)[:0]


def write_parts(folder: Path, name: str, tensors: Mapping[str, Tensor], mesh: Mesh) -> dict[str, str]:
    """The tensors under the name of one file; each rank writes its own rows -> the hashes of the ranks' files, by name.

    Raises OSError, on every rank, where one of them cannot write.
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
        entries = {key: {"shape": list(x.shape), "rows": list(_rows_of(x))} for key, x in tensors.items()}
        (folder / _layout(name)).write_text(json.dumps({"ranks": mesh.size, "tensors": entries}, indent=1))
    return {file: digest for file, (digest, _, _) in zip(files, said, strict=True)}


def is_stored(folder: Path, name: str) -> bool:
    """Whether `write_parts` has written something of this name there."""
    return (folder / name).is_file() or (folder / _layout(name)).is_file()


@contextmanager
def stored(folder: Path, name: str) -> Iterator[Stored]:
    """What `write_parts` wrote, open to be read, whatever number of ranks wrote it.

    Raises OSError, KeyError, ValueError or SafetensorError where it is not there, or is something else.
    """
    layout = folder / _layout(name)
    with ExitStack() as stack:
        if not layout.exists():
            places = {key: Place(entry.shape) for key, entry in layout_of(folder / name).places.items()}
            yield Stored(places, [stack.enter_context(safe_open(folder / name, "pt"))])
            return
        known = json.loads(layout.read_bytes())
        places = {key: Place(tuple(one["shape"]), tuple(one["rows"])) for key, one in known["tensors"].items()}
        paths = [folder / _file(name, rank, known["ranks"]) for rank in range(known["ranks"])]
        yield Stored(places, [stack.enter_context(safe_open(path, "pt")) for path in paths])


def _written(path: Path, tensors: Mapping[str, Tensor]) -> tuple[str, int, str]:
    """The hash of a file with these tensors, on disk; or the number and the words of the error where it is not."""
    try:
        write_tensors(path, tensors)
        sync(path)
        return sha256_of(path), 0, ""
    except OSError as error:
        return "", error.errno or 0, error.strerror or str(error)


def _rows_of(x: Tensor) -> tuple[int, ...]:
    return first_rows(x) if isinstance(x, DTensor) else ()


def _file(name: str, rank: int, size: int) -> str:
    """The file of a rank's rows.

    >>> _file("optimizer.safetensors", rank=0, size=2)
    'optimizer.00001-of-00002.safetensors'
    """
    path = Path(name)
    return f"{path.stem}.{rank + 1:05d}-of-{size:05d}{path.suffix}"


def _layout(name: str) -> str:
    return f"{Path(name).stem}.layout.json"
