"""Server of an engine for runs on other machines."""

import shutil
from collections.abc import Callable

import torch

from groupwise.core.errors import UsageError
from groupwise.core.machine.gpu import Device, device_of
from groupwise.core.processes.handshake import key_in
from groupwise.core.processes.network import LOOPBACK, Address
from groupwise.engines.outside.serving import EngineServer

Say = Callable[[str], None]
#: Hosts at which this machine alone is heard, and those that stand for all of its addresses.
OWN = frozenset({LOOPBACK, "localhost", "::1"})
EVERYWHERE = frozenset({"0.0.0.0", "::"})


def serve(
    address: str, python: str | None, device: Device, threads: int | None, key_file: str | None, say: Say
) -> None:
    """Serve until an interrupt.

    Raises UsageError if it cannot listen, the machine has no such device or program, the file holds no secret key, or
    other machines could come without one.
    """
    try:
        place = Address.of(address)
    except ValueError as error:
        raise UsageError(f"{address!r}: {error}, or a port of this machine") from None
    if python is not None and shutil.which(python) is None:
        raise UsageError(f"--python {python}: there is no such program")
    try:
        key = None if key_file is None else key_in(key_file)
    except ValueError as error:
        raise UsageError(f"--key-file {key_file}: {error}") from None
    if key is None and place.host not in OWN:
        raise UsageError(
            f"{address!r}: other machines reach it, and any of them could use the engine; give it a key with "
            "--key-file FILE, which runs name as engine.key_file, or listen for this machine alone: groupwise serve "
            f"{place.port}"
        )
    threads = threads or torch.get_num_threads()
    server = EngineServer(place, python, device_of(device, f"--device {device}"), threads, say, key)
    # Of one that listens everywhere the run knows the name.
    name = f"HOST:{server.address.port}" if server.address.host in EVERYWHERE else server.address
    try:
        keys = "" if key is None else " and engine.key_file with the same key"
        say(f"listens at {server.address}; a run takes --set engine.address={name}{keys}; Ctrl-C ends")
        if place.host not in OWN:
            say("whoever has the key can use it, and nothing on the way is encrypted: see docs/howto/engines.md")
        server.serve()
    except KeyboardInterrupt:
        say("ends")
    finally:
        server.close()
