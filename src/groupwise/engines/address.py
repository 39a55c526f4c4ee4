"""An engine at an address: how a run reaches what listens there, and how it knows that it is the right one."""

import re
import socket
from typing import Annotated, NamedTuple

from pydantic import AfterValidator

from groupwise.core.channel import Channel, FrameError
from groupwise.core.errors import UsageError
from groupwise.core.version import VERSION

#: Where a server listens unless it is given another host: on its own machine alone.
LOOPBACK = "127.0.0.1"
#: Seconds that a connection may take, and the first words on it.
PATIENCE = 10.0


class Address(NamedTuple):
    """A host, by name or number, and a port.

    >>> Address.of("gpu-3:7001"), str(Address.of("[::1]:7001")), Address.of("7001").host
    (Address(host='gpu-3', port=7001), '[::1]:7001', '127.0.0.1')
    """

    host: str
    port: int

    @classmethod
    def of(cls, text: str) -> "Address":
        """Of "HOST:PORT", or of a port of this machine. Raises ValueError for another form."""
        whole = re.fullmatch(r"(?:(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\s:/@\[\]]+)):)?(\d{1,5})", text)
        if whole is None or not int(whole[3]) < 2**16:
            raise ValueError("an address is HOST:PORT, such as 127.0.0.1:7001")
        return cls(whole[1] or whole[2] or LOOPBACK, int(whole[3]))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def addresses_of(text: str) -> tuple[Address, ...]:
    """Those of "HOST:PORT", or of several with commas between them. Raises ValueError for what is none.

    >>> [str(address) for address in addresses_of("gpu-1:7001, gpu-2:7001")]
    ['gpu-1:7001', 'gpu-2:7001']
    """
    every = tuple(Address.of(one.strip()) for one in text.split(","))
    if not all(address.port for address in every):
        raise ValueError("port 0 is no port to be reached")
    if len(set(every)) < len(every):
        raise ValueError("an address is there twice; a server has one engine")
    return every


def _spelled(text: str) -> str:
    """The addresses in full."""
    return ", ".join(map(str, addresses_of(text)))


#: One address, or several with commas between them, as a recipe has them.
AddressText = Annotated[str, AfterValidator(_spelled)]


def greeting() -> dict[str, str]:
    """What a server says first."""
    return {"groupwise": VERSION}


def connect(address: Address) -> Channel:
    """A connection to a server that has greeted. Raises UsageError where there is none of this version."""
    try:
        connection = socket.create_connection(address, timeout=PATIENCE)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"engine.address = '{address}': {_unreachable(error, address)}") from None
    keep_alive(connection)
    channel = Channel(connection)
    try:
        version = channel.receive(PATIENCE).get("groupwise")
        if version is None:
            raise FrameError
    except (OSError, EOFError, FrameError):
        channel.close()
        words = "what answers there is no engine's server; start one there: groupwise serve"
        raise UsageError(f"engine.address = '{address}': {words} {address.port}") from None
    if version != VERSION:
        channel.close()
        words = f"groupwise {version} serves there, and this is {VERSION}: install the same at both ends"
        raise UsageError(f"engine.address = '{address}': {words}")
    return channel


def require_answer(address: Address) -> None:
    """Raises UsageError where no engine can be had at the address."""
    connect(address).close()


def keep_alive(connection: socket.socket) -> None:
    """So that a machine that has gone silently is known to be gone within two minutes, and nothing waits to be sent."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 6)):
        if hasattr(socket, option):  # not every system can be told
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _unreachable(error: Exception, address: Address) -> str:
    if isinstance(error, ConnectionRefusedError):
        return f"nothing listens there; start it on that machine: groupwise serve {address.port}"
    if isinstance(error, TimeoutError):
        return f"no answer for {PATIENCE:g} seconds"
    if isinstance(error, socket.gaierror | UnicodeError):
        return "there is no such host"
    return (getattr(error, "strerror", None) or str(error)).lower()
