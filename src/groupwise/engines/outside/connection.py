"""An engine's process at an address, which a server there has started for this run."""

import secrets
import time

from groupwise.core.channel import Channel, FrameError
from groupwise.core.errors import UsageError
from groupwise.core.peer import Peer, PeerLost
from groupwise.core.processes.network import Address
from groupwise.engines.address import PATIENCE, connect
from groupwise.engines.outside import wire
from groupwise.engines.outside.line import Parcel
from groupwise.engines.outside.shared_weights import SharedWeights

#: Seconds between two tries to reach a server again.
PAUSE = 1.0


class EngineConnection(Peer):
    """A connection to a process without an engine yet."""

    pid: int | None = None

    def __init__(self, channel: Channel, address: Address) -> None:
        super().__init__(channel)
        self._address = address

    def parcel(self, weights: SharedWeights) -> Parcel:
        """Return all their bytes."""
        return Parcel({wire.WEIGHTS: weights.array()}, ())

    def explained(self, lost: PeerLost) -> PeerLost:
        """Return the loss, and where more can be read."""
        where = "" if lost.late else f"; groupwise serve at {self._address} has printed why"
        return PeerLost(f"{lost}{where}", late=lost.late)


class Reaching:
    """Reaches the server at an address, in the name of one run.

    seconds  in which it must be there again after a connection was lost
    """

    def __init__(self, address: Address, seconds: float) -> None:
        self._address, self._seconds = address, seconds
        self._run = secrets.token_hex(8)

    def __call__(self, again: bool) -> EngineConnection:
        """Return a process of its own. Raises UsageError if none can be had at once, or PeerLost after many tries."""
        if not again:
            return self._connected()
        end = time.monotonic() + self._seconds
        while True:
            try:
                return self._connected()
            except UsageError as error:
                if time.monotonic() + PAUSE > end:
                    raise PeerLost(str(error)) from None
            time.sleep(PAUSE)

    def _connected(self) -> EngineConnection:
        channel = connect(self._address)
        try:
            channel.send({"run": self._run}, seconds=PATIENCE)
            answer = channel.receive(PATIENCE)
        except (OSError, EOFError, FrameError):
            answer = {"refused": "it closed the connection"}
        if refused := answer.get("refused"):
            channel.close()
            raise UsageError(f"engine.address = '{self._address}': {refused}")
        return EngineConnection(channel, self._address)
