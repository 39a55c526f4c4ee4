"""Connections of other machines: how an address is written, and a door at which strangers may connect."""

import contextlib
import errno
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

#: This machine alone.
LOOPBACK = "127.0.0.1"


class Address(NamedTuple):
    """A host, by name or number, and a port.

    >>> Address.of("gpu-3:7001"), str(Address.of("[::1]:7001")), Address.of("7001").host
    (Address(host='gpu-3', port=7001), '[::1]:7001', '127.0.0.1')
    """

    host: str
    port: int

    @classmethod
    def of(cls, text: str) -> "Address":
        """Read "HOST:PORT", or a port of this machine. Raises ValueError for another form."""
        whole = re.fullmatch(r"(?:(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\s:/@\[\]]+)):)?(\d{1,5})", text)
        if whole is None or not int(whole[3]) < 2**16:
            raise ValueError("an address is HOST:PORT, such as 127.0.0.1:7001")
        return cls(whole[1] or whole[2] or LOOPBACK, int(whole[3]))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def family(self) -> socket.AddressFamily:
        """Family of the host's address: IPv6 if it is a number of that kind."""
        return socket.AF_INET6 if ":" in self.host else socket.AF_INET


def keep_alive(connection: socket.socket) -> None:
    """Set a connection so that a machine which is gone is known to be within two minutes, and nothing waits to go."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 6)):
        if hasattr(socket, option):  # not every system can be told
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def loopback() -> str:
    """Return the name of the interface that this machine alone hears; "" if none has such a name."""
    return next((name for _, name in socket.if_nameindex() if re.fullmatch(r"lo\d*", name)), "")


@contextlib.contextmanager
def heard_only_inside() -> Iterator[None]:
    """Stop listening, behind the block, at each socket that began to inside: a library's, which would go on for good.

    Its descriptor becomes that of a socket that nothing has been done with, for the library closes the number itself.
    """
    before = _listening()
    yield
    for descriptor in _listening() - before:
        with socket.socket() as unused:
            os.dup2(unused.fileno(), descriptor, inheritable=False)


def _listening() -> set[int]:
    """Find the descriptors of this process at which it listens for connections of other machines or users."""
    found = set()
    for descriptor in map(int, os.listdir("/dev/fd")):
        with contextlib.suppress(OSError):  # no socket
            one = socket.socket(fileno=descriptor)
            try:
                internet = one.family in (socket.AF_INET, socket.AF_INET6)
                if internet and one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    found.add(descriptor)
            finally:
                one.detach()  # it is whose it was
    return found


T = TypeVar("T")

#: Connections that may be about to say who they are; for one more the oldest of them goes.
WAITING = 64
#: Seconds between two looks at whether there was an interrupt: one that comes right before the wait ends no wait.
LOOK = 0.5
#: Seconds after which it is tried again where the system has no descriptor or no memory for a connection.
PAUSE = 0.05
#: What says that the system has no room for a connection.
FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
#: What says that the socket was closed here. Whatever else goes wrong is a connection's, and the next one may be had.
CLOSED = (errno.EBADF, errno.EINVAL)


class Door:
    """Accepts connections at a socket until that is closed, each in a thread of its own.

    listening  the socket, which is given LOOK as its timeout
    known      (connection) -> who is there, within a bounded time, whatever they send; None sends them away
    met        (who is there, connection, host and port): what happens then
    note       hears, once, that the system has no room for a connection
    """

    def __init__(
        self,
        listening: socket.socket,
        known: Callable[[socket.socket], T | None],
        met: Callable[[T, socket.socket, tuple[str, int]], None],
        note: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._listening, self._known, self._met, self._note = listening, known, met, note
        self._full = False
        self._lock = threading.Lock()
        listening.settimeout(LOOK)
        self._waiting: dict[socket.socket, None] = {}  # the oldest first

    def serve(self) -> None:
        """Accept until the socket is closed, from another thread or by an interrupt."""
        while True:
            try:
                connection, peer = self._listening.accept()
            except (TimeoutError, ConnectionAbortedError):  # nobody came, or whoever it was has gone
                continue
            except OSError as error:
                if self._listening.fileno() < 0 or error.errno in CLOSED:
                    return
                self._say_full(error)
                self._send_oldest_away(most=WAITING // 2)
                time.sleep(PAUSE)
                continue
            self._send_oldest_away(most=WAITING - 1)
            with self._lock:
                self._waiting[connection] = None
            try:
                threading.Thread(target=self._meet, args=(connection, peer), name="caller", daemon=True).start()
            except RuntimeError:  # the system has no thread for it
                self._send_oldest_away(most=0)
                connection.close()

    def close(self) -> None:
        """Accept nobody any more. Again does nothing."""
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _meet(self, connection: socket.socket, peer: tuple[str, int]) -> None:
        who = self._known(connection)
        with self._lock:
            self._waiting.pop(connection, None)
        if who is None:
            connection.close()
        else:
            self._met(who, connection, (peer[0], peer[1]))

    def _say_full(self, error: OSError) -> None:
        if error.errno in FULL and not self._full:
            self._full = True
            why = os.strerror(error.errno or 0).lower()
            self._note(f"no connection can be taken for now: {why} (ulimit -n); it goes on listening")

    def _send_oldest_away(self, most: int) -> None:
        """Send the oldest away until `most` are waiting. Their threads see the end of the connection, and close it."""
        with self._lock:
            while len(self._waiting) > most:
                oldest = next(iter(self._waiting))
                del self._waiting[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
