"""An engine at an address: how a run reaches what listens there, and how it knows that it is the right one."""

import socket
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator

from groupwise.core import VERSION
from groupwise.core.channel import Channel, FrameError
from groupwise.core.errors import UsageError
from groupwise.core.processes.network import Address, keep_alive

#: Seconds that a connection may take, and the first words on it.
PATIENCE = 10.0
#: The first words of a server.
GREETING: Mapping[str, str] = {"groupwise": VERSION}


def addresses_of(text: str) -> tuple[Address, ...]:
    """Read "HOST:PORT", or several with commas between them. Raises ValueError for what is none.

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
    """Return the addresses in full."""
    return ", ".join(map(str, addresses_of(text)))


#: One address, or several with commas between them, as a recipe has them.
AddressText = Annotated[str, AfterValidator(_spelled)]


def connect(address: Address) -> Channel:
    """Return a connection to a server that has greeted. Raises UsageError if there is none of this version."""
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


def _unreachable(error: Exception, address: Address) -> str:
    if isinstance(error, ConnectionRefusedError):
        return f"nothing listens there; start it on that machine: groupwise serve {address.port}"
    if isinstance(error, TimeoutError):
        return f"no answer for {PATIENCE:g} seconds"
    if isinstance(error, socket.gaierror | UnicodeError):
        return "there is no such host"
    return (getattr(error, "strerror", None) or str(error)).lower()
