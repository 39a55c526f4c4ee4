"""A host and a port: how they are written, and what a connection to one is told."""

import re
import socket
from typing import NamedTuple

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
    """So that a machine that has gone silently is known to be gone within two minutes, and nothing waits to be sent."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 6)):
        if hasattr(socket, option):  # not every system can be told
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
