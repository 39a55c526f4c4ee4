"""Weights that two processes share: a safetensors file in memory, without a name in any folder.

The kernel holds it (memfd), and the descriptor goes to the other process: /dev/shm and its size do not matter, and a
run that is killed leaves nothing behind. What is reserved is there, so that to write it cannot fail later.
"""

import mmap
import os
import tempfile
import weakref
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from groupwise.core.engine import Progress, silent, streamed
from groupwise.core.errors import RunError
from groupwise.core.files.tensor_layout import TensorBytes, header, layout, size

#: The header's length is a multiple of it, so that as a rule the file of another version is as long.
PAGE = 4096
#: Bytes of the file that are summed at once.
CHUNK = 1 << 26

#: The bytes of a file of weights: shared, or received into memory of this process.
Memory = mmap.mmap | memoryview


@dataclass(frozen=True)
class Stamp:
    """The identity of a file of weights: its version, and the checksum (CRC-32) of all its bytes, header included."""

    version: int
    checksum: int


class SharedWeights:
    """The newest weights of a run, which it writes and children read.

    kept        what is written with every version: what a model holds beside the parameters that a load names
    descriptor  of the file, to be sent to a child
    stamp       of what lies there
    """

    def __init__(self, kept: Mapping[str, Tensor] | None = None) -> None:
        self._kept = kept or {}
        self.stamp = Stamp(0, 0)
        if hasattr(os, "memfd_create"):
            self.descriptor = os.memfd_create("groupwise weights", os.MFD_CLOEXEC)
        else:
            with tempfile.TemporaryFile() as file:  # a file without a name, mostly in the kernel's cache
                self.descriptor = os.dup(file.fileno())
        self._memory: mmap.mmap | None = None
        self._close = weakref.finalize(self, os.close, self.descriptor)

    def write(self, weights: Iterable[tuple[str, Tensor]] | Mapping[str, Tensor], version: int) -> Stamp:
        """Replace everything that was there, which no process may read meanwhile; one tensor after another.

        Raises RunError if memory has no room.
        """
        given = streamed(weights)
        like = {**self._kept, **given.like}
        ordered = dict(sorted(like.items(), key=lambda item: -item[1].element_size()))  # each is aligned so
        head = header(ordered, {"version": str(version)}, PAGE)
        memory = self._reserved(len(head) + sum(map(size, ordered.values())))
        memory[: len(head)] = head
        places = layout(head).places
        for name, tensor in chain(self._kept.items(), given):
            if places[name].begin < places[name].end:
                view(memory, places[name]).copy_(tensor.detach())
            del tensor  # before the next one is gathered
        self.stamp = Stamp(version, checksum(memory))
        return self.stamp

    def array(self) -> np.ndarray:
        """Return what was written last, where it lies: for a process that shares no memory with this one."""
        assert self._memory is not None, "weights are written before they are sent"
        return np.frombuffer(self._memory, np.uint8)

    def close(self) -> None:
        """Give the memory back. A second call does nothing."""
        self._memory = None
        self._close()

    def _reserved(self, count: int) -> mmap.mmap:
        """Return the file as memory of `count` bytes, all of which are there."""
        if self._memory is None or len(self._memory) != count:
            self._memory = None
            try:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(self.descriptor, 0, count)
                os.ftruncate(self.descriptor, count)
                self._memory = mmap.mmap(self.descriptor, count)
            except OSError as error:
                raise RunError(
                    f"the weights for the engine's process do not fit into shared memory: {count / 2**20:,.0f} MiB: "
                    f'{error.strerror}; free memory, or set engine.process = "inside"'
                ) from None
        return self._memory


def mapped(descriptor: int) -> mmap.mmap:
    """Return the file of another process as memory of this one, which that process still writes to."""
    return mmap.mmap(descriptor, os.fstat(descriptor).st_size, access=mmap.ACCESS_COPY)


def read_weights(memory: Memory, stamp: Stamp, progress: Progress = silent) -> dict[str, Tensor]:
    """Return the tensors of a file that another process wrote, where they lie: to be copied before it writes again.

    Raises RunError if it is not the file that the stamp is of.
    """
    what = f"the weights of version {stamp.version} did not arrive whole"
    actual = checksum(memory, progress)
    if actual != stamp.checksum:
        raise RunError(f"{what}: their checksum is {actual:08x} and not {stamp.checksum:08x}")
    stored = layout(bytes(memory[: 8 + int.from_bytes(bytes(memory[:8]), "little")]))
    if stored.metadata.get("version") != str(stamp.version):
        raise RunError(f"{what}: what lies there is of version {stored.metadata.get('version')}")
    return {name: view(memory, place) for name, place in stored.places.items()}


def view(memory: Memory, place: TensorBytes) -> Tensor:
    """Return the tensor that lies there, without a copy; it holds the memory."""
    if place.begin == place.end:
        return torch.empty(place.shape, dtype=place.dtype)
    count = (place.end - place.begin) // place.dtype.itemsize
    return torch.frombuffer(memory, dtype=place.dtype, count=count, offset=place.begin).view(place.shape)


def checksum(memory: Memory, progress: Progress = silent) -> int:
    """Compute the CRC-32 of all bytes."""
    total = 0
    with memoryview(memory) as every:
        for begin in range(0, len(every), CHUNK):
            with every[begin : begin + CHUNK] as some:
                total = zlib.crc32(some, total)
            progress()
    return total
