"""Server of an engine for runs on other machines."""

import shutil
from collections.abc import Callable

import torch

from groupwise.commands.build.policy import named_model
from groupwise.core.errors import UsageError
from groupwise.core.files.atomic import temporary_folder
from groupwise.core.machine.gpu import Device, device_of
from groupwise.core.processes.handshake import key_in
from groupwise.core.processes.network import LOOPBACK, Address
from groupwise.engines.outside.serving import EngineServer
from groupwise.models.load import model_folder

Say = Callable[[str], None]
#: The program of a teacher's process.
TEACHER = "groupwise.training.teachers.server"
#: Hosts at which this machine alone is heard, and those that stand for all of its addresses.
OWN = frozenset({LOOPBACK, "localhost", "::1"})
EVERYWHERE = frozenset({"0.0.0.0", "::"})


def serve(
    address: str,
    python: str | None,
    device: Device,
    threads: int | None,
    key_file: str | None,
    say: Say,
    teacher: str | None = None,
) -> None:
    """Serve an engine until an interrupt, or a teacher: a model's folder, a hub's id or a run.

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
    where = (place, python, device_of(device, f"--device {device}"), threads, say, key)
    if teacher is None:
        _serve(EngineServer(*where), "engine", key is not None, say)
        return
    with temporary_folder("teacher") as own:
        model = {"model": str(model_folder(named_model(teacher, own / "policy", say)).resolve())}
        _serve(EngineServer(*where, module=TEACHER, said=model), "reference", key is not None, say)


def _serve(server: EngineServer, section: str, asks: bool, say: Say) -> None:
    """Say how a run names a server in this section, and serve."""
    host, port = server.address
    # Of one that listens everywhere the run knows the name.
    name = f"HOST:{port}" if host in EVERYWHERE else server.address
    try:
        keys = f" and {section}.key_file with the same key" if asks else ""
        say(f"listens at {server.address}; a run takes --set {section}.address={name}{keys}; Ctrl-C ends")
        if host not in OWN:
            say("whoever has the key can use it, and nothing on the way is encrypted: see docs/howto/engines.md")
        server.serve()
    except KeyboardInterrupt:
        say("ends")
    finally:
        server.close()
