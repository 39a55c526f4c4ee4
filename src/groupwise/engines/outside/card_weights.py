"""Weights in one buffer on a GPU, which the run writes and the processes of engines on that GPU read where it lies.

    run     fills the buffer, sums it up, waits for the GPU, and sends a handle, the places and the sums
    child   opens the handle once, sums the buffer up as well, copies what is there, waits for the GPU, and answers

Until the answer comes nothing writes, so that neither reads half of a version. What is there stays until the next
version, for a process that is started again. A sum is that of a tensor's bytes, eight of them as one number, modulo
2^64: the order in which a GPU adds changes nothing.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from groupwise.core.engine import streamed
from groupwise.core.errors import RunError
from groupwise.core.machine.free_memory import give_back_card
from groupwise.engines.outside.card import CardHandle, Unshareable, card_of, exported, opened, released

#: Every tensor begins at a multiple of it, bytes; sums take eight at a time.
ALIGNED, WORD = 16, 8


@dataclass(frozen=True)
class CardPlace:
    """Place of a tensor in a buffer: `begin` in bytes; dtype by torch's name."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int

    def view(self, buffer: Tensor) -> Tensor:
        """Return the tensor where it lies."""
        return buffer[self.begin : self.begin + self.size].view(getattr(torch, self.dtype)).view(self.shape)

    @property
    def size(self) -> int:
        """Bytes of its numbers."""
        return torch.Size(self.shape).numel() * getattr(torch, self.dtype).itemsize


@dataclass(frozen=True)
class CardParcel:
    """All that a reader has to know of what lies in a buffer: `sums` are those of the places, in their order."""

    handle: CardHandle
    places: tuple[CardPlace, ...]
    sums: tuple[int, ...]


class CardWeights:
    """The newest weights of a run on its GPU, for processes that are on it too.

    export, release  make a handle of the buffer for a reader, and count a reader as gone
    Raises Unshareable where there is no room for them.
    """

    def __init__(
        self,
        device: torch.device,
        export: Callable[[Tensor], CardHandle] = exported,
        release: Callable[[CardHandle], None] = released,
    ) -> None:
        self._device, self._export, self._release = device, export, release
        self._buffer = torch.empty(0, dtype=torch.uint8, device=device)
        self._places: tuple[CardPlace, ...] = ()
        self._sums: tuple[int, ...] = ()
        self._handles: dict[object, CardHandle] = {}

    def write(self, tensors: Iterable[tuple[str, Tensor]] | Mapping[str, Tensor]) -> tuple[int, ...]:
        """Replace everything that was there, which no process may read meanwhile; the sums of the tensors."""
        given = streamed(tensors)
        self._places, length = placed(given.like)
        if len(self._buffer) != length:
            self._make(length)
        places = {place.name: place for place in self._places}
        for name, tensor in given:
            places[name].view(self._buffer).copy_(tensor.detach())
            del tensor  # before the next one is gathered
        self._sums = sums_of(self._buffer, self._places)
        settle(self._device)
        return self._sums

    def parcel(self, reader: object) -> CardParcel:
        """Return what a reader needs; the same reader gets the same handle. Raises Unshareable if there is none."""
        if reader not in self._handles:
            self._handles[reader] = self._export(self._buffer)
        return CardParcel(self._handles[reader], self._places, self._sums)

    def tensors(self) -> dict[str, Tensor]:
        """Return what was written last, where it lies."""
        return {place.name: place.view(self._buffer) for place in self._places}

    def forget(self, reader: object) -> None:
        """Count a reader as gone, which has ended or could not open its handle."""
        if (handle := self._handles.pop(reader, None)) is not None:
            self._release(handle)

    def close(self) -> None:
        """Give the memory back as soon as no reader has it. A second call does nothing."""
        self._make(0)

    def _make(self, length: int) -> None:
        """Make another buffer. Readers have still the one that was there, until they open a handle of the next."""
        self._handles = {}
        self._buffer = self._buffer.new_empty(0)
        give_back_card()  # the next buffer is then an allocation of its own, which is what a handle is of
        try:
            self._buffer = self._buffer.new_zeros(length)
        except torch.OutOfMemoryError:
            raise Unshareable(f"the GPU has no room for them once more, {length / 2**20:,.0f} MiB") from None


class CardReader:
    """Reads weights that another process has on a GPU.

    open  returns the buffer of a handle
    card  returns the GPU's UUID
    """

    def __init__(
        self,
        open: Callable[[CardHandle, torch.device], Tensor] = opened,
        card: Callable[[torch.device], str] = card_of,
    ) -> None:
        self._open, self._card = open, card
        self._handle: CardHandle | None = None
        self._buffer: Tensor | None = None

    def read(self, parcel: CardParcel, device: torch.device, version: int) -> dict[str, Tensor]:
        """Return the tensors where they lie: to be copied, to the end, before the other process writes again.

        Raises Unshareable if this device cannot read them, RunError if they are not those that the parcel tells of.
        """
        if parcel.handle != self._handle or self._buffer is None:
            self.close()
            if self._card(device) != parcel.handle.card:
                raise Unshareable("the engine is on another GPU than the run")
            self._handle, self._buffer = parcel.handle, self._open(parcel.handle, device)
        actual = sums_of(self._buffer, parcel.places)
        if wrong := [p.name for p, a, b in zip(parcel.places, actual, parcel.sums, strict=True) if a != b]:
            raise RunError(
                f"the weights of version {version} did not arrive whole: the sum of {wrong[0]} is another on the GPU "
                f"than was sent, with those of {len(wrong) - 1} more"
            )
        return {place.name: place.view(self._buffer) for place in parcel.places}

    def close(self) -> None:
        """Give the other process's memory back. A second call does nothing."""
        self._handle = self._buffer = None


def placed(tensors: Mapping[str, Tensor]) -> tuple[tuple[CardPlace, ...], int]:
    """Lay tensors out one behind the other: their places, and the bytes of all.

    >>> [place.begin for place in placed({"a": torch.zeros(3), "b": torch.zeros(2, 3)})[0]]
    [0, 16]
    """
    places, end = [], 0
    for name, tensor in tensors.items():
        place = CardPlace(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), end)
        places.append(place)
        end += -(-place.size // ALIGNED) * ALIGNED
    return tuple(places), end


def sums_of(buffer: Tensor, places: tuple[CardPlace, ...]) -> tuple[int, ...]:
    """Add up the bytes of each tensor, with the zeros behind it, modulo 2^64; waits once for the device."""
    words = buffer.view(torch.int64)
    sums = [words[place.begin // WORD : -(-(place.begin + place.size) // WORD)].sum() for place in places]
    return tuple(torch.stack(sums).tolist()) if sums else ()


def settle(device: torch.device) -> None:
    """Wait for the end of all work on a device, so that another process may use what it wrote or read."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
