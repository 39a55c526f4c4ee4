"""Where processes that a run has started elsewhere call back: each is known by a token that it alone was given."""

import contextlib
import hmac
import secrets
import socket
import threading
from collections.abc import Callable
from typing import Any

from groupwise.core.address import Address, keep_alive
from groupwise.core.channel import Channel, FrameError

#: Characters of a token, and seconds in which it must have come.
TOKEN, PATIENCE = 32, 10.0

#: (token, what the process says of itself, its connection)
Arrived = Callable[[str, dict[str, Any], Channel], None]


class Listener:
    """Accepts connections until it is closed. Whoever sends no token that is expected is sent away, unread.

    address  at which it listens
    Raises OSError where it cannot listen at the host.
    """

    def __init__(self, host: str, arrived: Arrived) -> None:
        self._arrived = arrived
        self._expected: set[str] = set()
        place = Address(host, 0)
        self._listening = socket.create_server(place, family=place.family)
        self.address = Address(host, self._listening.getsockname()[1])
        threading.Thread(target=self._accept, name="callers", daemon=True).start()

    def expect(self) -> str:
        """A new token, good for one connection."""
        token = secrets.token_hex(TOKEN // 2)
        self._expected.add(token)
        return token

    def forget(self, token: str) -> None:
        """Nobody is expected by it any more."""
        self._expected.discard(token)

    def close(self) -> None:
        """Listens no more. Again does nothing."""
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._meet, args=(connection,), name="caller", daemon=True).start()

    def _meet(self, connection: socket.socket) -> None:
        channel = Channel(connection)
        try:
            given = bytes(channel.receive_raw(TOKEN, PATIENCE))
            token = next((one for one in list(self._expected) if hmac.compare_digest(one.encode(), given)), None)
            if token is None:
                raise FrameError
            self._expected.discard(token)
            keep_alive(connection)
            facts = channel.receive(PATIENCE)
        except (OSError, EOFError, FrameError):
            channel.close()
        else:
            self._arrived(token, facts, channel)
