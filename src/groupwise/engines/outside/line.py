"""The connection to a process that has an engine, wherever that process is."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from groupwise.core.peer import PeerLost, Transport
from groupwise.core.processes.codec import Arrays
from groupwise.engines.outside.shared_weights import SharedWeights


class Parcel(NamedTuple):
    """Weights as they go with a message: as arrays behind it, or as descriptors of memory that both processes have."""

    arrays: Arrays
    descriptors: Sequence[int]


class EngineLine(Transport, Protocol):
    """This end of it.

    pid  of the process, where it is one of this machine's
    """

    pid: int | None

    def parcel(self, weights: SharedWeights) -> Parcel:
        """Tell how the weights go there."""
        ...

    def speaks(self, seconds: float) -> bool:
        """Waits until there is a message, or the end of the connection; False where neither comes so soon."""
        ...

    def explained(self, lost: PeerLost) -> PeerLost:
        """Return the loss with what is known of its cause."""
        ...

    def close(self) -> None:
        """Ends the connection, and the engine with it."""
        ...


#: Makes a connection; `again`: after one that was lost. Raises PeerLost, and UsageError for what cannot get better.
Reach = Callable[[bool], EngineLine]
