"""The port at which processes that a run has started elsewhere call back, each known by a token of its own."""

import hmac
import secrets
import socket
import threading
from collections.abc import Callable
from typing import Any

from groupwise.core.channel import Channel, FrameError
from groupwise.core.processes.network import Address, Door, keep_alive

#: Characters of a token, and seconds in which it must have come.
TOKEN, PATIENCE = 32, 10.0

#: (token, what the process says of itself, its connection)
Arrived = Callable[[str, dict[str, Any], Channel], None]


class Listener:
    """Accepts connections until it is closed. A caller without an expected token is sent away unread.

    address  of the port
    Raises OSError if it cannot listen at the host.
    """

    def __init__(self, host: str, arrived: Arrived) -> None:
        self._arrived = arrived
        self._expected: set[str] = set()
        place = Address(host, 0)
        listening = socket.create_server(place, family=place.family)
        self.address = Address(host, listening.getsockname()[1])
        self._door = Door(listening, self._known, self._meet)
        threading.Thread(target=self._door.serve, name="callers", daemon=True).start()

    def expect(self) -> str:
        """Make a new token, good for one connection."""
        token = secrets.token_hex(TOKEN // 2)
        self._expected.add(token)
        return token

    def forget(self, token: str) -> None:
        """Take back a token."""
        self._expected.discard(token)

    def close(self) -> None:
        """Stop listening. A second call does nothing."""
        self._door.close()

    def _known(self, connection: socket.socket) -> str | None:
        """Read a caller's token; None if it is not one that is expected."""
        try:
            given = bytes(Channel(connection).receive_raw(TOKEN, PATIENCE))
        except (OSError, EOFError):
            return None
        token = next((one for one in list(self._expected) if hmac.compare_digest(one.encode(), given)), None)
        self._expected.discard(token or "")
        return token

    def _meet(self, token: str, connection: socket.socket, _: tuple[str, int]) -> None:
        channel = Channel(connection)
        try:
            keep_alive(connection)
            facts = channel.receive(PATIENCE)
        except (OSError, EOFError, FrameError):
            channel.close()
        else:
            self._arrived(token, facts, channel)
