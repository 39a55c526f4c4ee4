"""Memory of a GPU that two processes of a machine share, by CUDA's IPC: torch's calls, and a handle that JSON can say.

`exported`, `opened` and `released` are the only lines that need a GPU with a process on either side; without one, tests
give what reads and writes (card_weights.py) others in their place.

torch counts for each export whether its reader has it still, in a file that both map: the memory of a buffer that is
dropped is given back once that says no. A reader that ends by a signal, or without destructors, never says so: then its
writer does (`released`). An export takes an event of the driver, of which there are few, so a reader has one export for
all of a run. Its event says that the buffer was written once; of later writes the writer waits for the end itself.
"""

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


class Unshareable(Exception):
    """Reason, in words, for which two processes cannot share memory of a GPU; they share the machine's then."""


@dataclass(frozen=True)
class CardHandle:
    """A handle of a buffer for one reader, as torch exports it; bytes are written in base64.

    card     the GPU's UUID
    memory   CUDA's handle of the allocation that the buffer lies in
    size     bytes of the buffer
    offset   bytes of the allocation before it
    counter, counted   torch's file of counters of readers, and the number of this one there
    event    CUDA's handle of the event that the buffer was written
    waits    whether a reader waits for it
    """

    card: str
    memory: str
    size: int
    offset: int
    counter: str
    counted: int
    event: str
    waits: bool


def card_of(device: torch.device) -> str:
    """Return the UUID of a GPU. Raises Unshareable if torch finds none here."""
    if device.type != "cuda" or not torch.cuda.is_available():
        raise Unshareable("torch finds no GPU there")
    return str(torch.cuda.get_device_properties(device).uuid)


def exported(buffer: Tensor) -> CardHandle:
    """Make a handle of a whole buffer on a GPU, for one reader. Raises Unshareable if it cannot be shared."""
    if expandable(buffer.data_ptr(), torch.cuda.memory_snapshot()):
        raise Unshareable("torch's allocator has expandable_segments, whose memory CUDA's IPC does not share")
    try:
        _, memory, size, offset, counter, counted, event, waits = buffer.untyped_storage()._share_cuda_()
    except RuntimeError as error:
        raise Unshareable(f"its memory cannot be shared: {_first(error)}") from None
    return CardHandle(card_of(buffer.device), _text(memory), size, offset, _text(counter), counted, _text(event), waits)


def opened(handle: CardHandle, device: torch.device) -> Tensor:
    """Return the buffer of another process, bytes on this device, until the last reference to it ends.

    Raises Unshareable if the driver or torch refuses.
    """
    torch.cuda.init()
    try:
        storage = torch.UntypedStorage._new_shared_cuda(
            device.index or 0,
            _bytes(handle.memory),
            handle.size,
            handle.offset,
            _bytes(handle.counter),
            handle.counted,
            _bytes(handle.event),
            handle.waits,
        )
    except RuntimeError as error:
        raise Unshareable(f"the run's memory cannot be opened there: {_first(error)}") from None
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, 0, (handle.size,), (1,))


def released(handle: CardHandle) -> None:
    """Count the reader of a handle as gone, which has not done it itself."""
    torch.UntypedStorage._release_ipc_counter(_bytes(handle.counter), handle.counted, device="cuda")


def expandable(address: int, segments: Iterable[Mapping[str, Any]]) -> bool:
    """Tell if an address lies in a segment that grows, of the allocator's (torch.cuda.memory_snapshot).

    >>> expandable(12, [{"address": 10, "total_size": 5, "is_expandable": True}]), expandable(12, [])
    (True, False)
    """
    return any(
        one.get("is_expandable", False) and one["address"] <= address < one["address"] + one["total_size"]
        for one in segments
    )


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)


def _first(error: Exception) -> str:
    """Return the first line: CUDA's errors have a page."""
    return str(error).partition("\n")[0]
