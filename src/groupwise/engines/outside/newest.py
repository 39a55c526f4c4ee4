"""The newest weights of a run: on its GPU where every engine's process can read them there, else in shared memory."""

import threading
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType
from typing import Any

import numpy as np
from torch import Tensor

from groupwise.core.engine import WeightStream, streamed
from groupwise.core.files.dataclass_json import to_json
from groupwise.engines.outside import wire
from groupwise.engines.outside.card import Unshareable
from groupwise.engines.outside.card_weights import CardWeights
from groupwise.engines.outside.shared_weights import SharedWeights, Stamp


@dataclass(frozen=True)
class Parcel:
    """Weights as they go with a message: what it says of them, arrays behind it, and descriptors of shared memory."""

    content: Mapping[str, Any]
    arrays: wire.Arrays = field(default_factory=lambda: MappingProxyType({}))
    descriptors: Sequence[int] = ()


class NewestWeights:
    """The newest weights, which the run writes and the processes of engines read.

    kept   what is written with every version: what a model holds beside the parameters that a load names
    card   where they lie on the run's GPU; None: in memory of the machine
    note   hears why they leave the GPU
    stamp  of what was written last
    """

    def __init__(
        self, kept: Mapping[str, Tensor], card: CardWeights | None = None, note: Callable[[str], None] = lambda _: None
    ) -> None:
        self._kept, self._card, self._note = kept, card, note
        self._host = SharedWeights()
        self._left: CardWeights | None = None
        self._lock = threading.Lock()
        self.stamp = Stamp(0, 0)

    def write(self, weights: Iterable[tuple[str, Tensor]] | Mapping[str, Tensor], version: int) -> None:
        """Replace everything that was there, which no process may read meanwhile; one tensor after another.

        Raises RunError without room.
        """
        given = streamed(weights)
        every = WeightStream({**self._kept, **given.like}, lambda: chain(self._kept.items(), given))
        self._let_go()
        if self._card is not None:
            try:
                sums = self._card.write(every)
            except Unshareable as why:
                self._card.close()
                self._card = None
                self._say(str(why))
            else:
                self.stamp = Stamp(version, zlib.crc32(np.array(sums, np.int64).tobytes()))
                return
        self.stamp = self._host.write(every, version)

    def parcel(self, reader: object, shares_memory: bool) -> Parcel:
        """Return them for a reader's message; `shares_memory`: it is a child of this process, and gets descriptors."""
        with self._lock:
            if self._card is not None and not shares_memory:
                self._leave(reader, "an engine's process is no child of the run")
            if self._card is not None:
                try:
                    return Parcel({"stamp": to_json(self.stamp), "card": to_json(self._card.parcel(reader))})
                except Unshareable as why:
                    self._leave(reader, str(why))
        said = {"stamp": to_json(self.stamp)}
        if shares_memory:
            return Parcel(said, descriptors=[self._host.descriptor])
        return Parcel(said, {wire.WEIGHTS: self._host.array()})

    def decline(self, reader: object, why: str) -> None:
        """Put them into memory of the machine, for a reader that cannot read them on the GPU."""
        with self._lock:
            if self._card is not None:
                self._leave(reader, why)

    def forget(self, reader: object) -> None:
        """Count a reader as gone, whose process has ended."""
        with self._lock:
            for card in (self._card, self._left):
                if card is not None:
                    card.forget(reader)

    def close(self) -> None:
        """Give the memory back. A second call does nothing."""
        self._let_go()
        if self._card is not None:
            self._card.close()
        self._host.close()

    def _leave(self, reader: object, why: str) -> None:
        """Go on in memory of the machine; the buffer stays until the next version, for others may read it now."""
        assert self._card is not None
        self._card.forget(reader)
        self._left, self._card = self._card, None
        self.stamp = self._host.write(self._left.tensors(), self.stamp.version)
        self._say(why)

    def _let_go(self) -> None:
        if self._left is not None:
            self._left.close()
            self._left = None

    def _say(self, why: str) -> None:
        self._note(f"engine       weights go to it through the machine's memory, not within the GPU: {why}")
