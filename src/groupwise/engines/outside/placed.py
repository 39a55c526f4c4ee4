"""An engine's process of the run's own: a child on this machine, or wherever else the run's processes are started."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from groupwise.core.peer import PeerLost
from groupwise.core.processes.place import REST, Place, Process, Role
from groupwise.engines.outside import wire
from groupwise.engines.outside.line import Parcel
from groupwise.engines.outside.shared_weights import SharedWeights
from groupwise.engines.settings import EngineSettings

#: The module that runs in the process.
SERVER = "groupwise.engines.outside.server"


class EngineOfPlace:
    """A process without an engine yet."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.pid = process.pid

    def send(self, message: Mapping[str, Any], descriptors: Sequence[int] = (), seconds: float | None = None) -> None:
        """Sends a message and copies of the descriptors. Raises PeerLost."""
        self._process.send(message, descriptors, seconds)

    def receive(self, seconds: float | None = None) -> dict[str, Any]:
        """The next message from it. Raises PeerLost."""
        return self._process.receive(seconds)

    def send_raw(self, data: memoryview | bytes, seconds: float | None = None) -> None:
        """Sends bytes behind a message that says how many. Raises PeerLost."""
        self._process.send_raw(data, seconds)

    def receive_raw(self, count: int, seconds: float | None = None) -> bytearray:
        """The bytes behind a message that said how many. Raises PeerLost."""
        return self._process.receive_raw(count, seconds)

    def speaks(self, seconds: float) -> bool:
        """Whether there is a message, or the end of the connection, within these seconds."""
        return self._process.speaks(seconds)

    def parcel(self, weights: SharedWeights) -> Parcel:
        """The memory itself, or all bytes where it cannot be shared."""
        if self._process.shares_memory:
            return Parcel({}, [weights.descriptor])
        return Parcel({wire.WEIGHTS: weights.array()}, ())

    def explained(self, lost: PeerLost) -> PeerLost:
        """Why it was lost; of a program that failed with the last line that it printed, and all of it as a note."""
        printed = self._process.printed(0.0 if lost.late else REST)
        how = self._process.exit()
        failed = how is not None and (how.code or 0) > 0
        last = printed.strip().rpartition("\n")[2].strip()
        words = PeerLost(f"{lost} ({last})" if failed and last else str(lost), late=lost.late)
        if printed:
            words.add_note(printed)
        return words

    def close(self) -> None:
        """Ends the process."""
        self._process.close()


def reach_at(place: Place, settings: EngineSettings) -> Callable[[bool], EngineOfPlace]:
    """What starts such a process, the first time and again."""

    def reach(again: bool) -> EngineOfPlace:
        process = place.start(Role.ENGINE, SERVER, {}, seconds=settings.start_deadline, python=settings.python)
        return EngineOfPlace(process)

    return reach
