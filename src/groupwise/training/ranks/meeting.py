"""Meeting point of a run's ranks: a file without a name where all are of one machine, else a host and a port.

torch's store asks nobody who they are. The file is in the memory of rank 0's process, and the kernel lets the processes
of its own user alone open it there, so that no stranger of the machine can say anything to the ranks; nothing is left
of it when that process has ended, however it ends.
"""

import atexit
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed import FileStore, Store  # pyright: ignore[reportPrivateImportUsage]

from groupwise.core.errors import UsageError
from groupwise.core.processes.network import loopback
from groupwise.training.mesh import DEADLINE, Mesh, connect, rendezvous


@dataclass(frozen=True)
class Meeting:
    """Place where ranks find one another: `file`, or else `host` and `port`; it passes as JSON."""

    file: str = ""
    host: str = ""
    port: int = 0

    def joined(self, rank: int, size: int, device: str, seconds: float, store: Store | None = None) -> Mesh:
        """Join the mesh there; ranks of one machine hear one another on its loopback alone.

        seconds  that one rank may keep the others waiting
        store    of whoever keeps the place
        Raises UsageError if the place cannot be reached, or not all of them come in time.
        """
        interface = loopback() if self.file else ""
        return connect(store or self._reached(size), rank, size, device, seconds=seconds, interface=interface)

    def _reached(self, size: int) -> Store:
        return _in(self.file, DEADLINE) if self.file else rendezvous(self.host, self.port, size, leads=False)


@dataclass(frozen=True)
class KeptMeeting:
    """Meeting place that this process keeps."""

    place: Meeting
    store: Store

    @property
    def options(self) -> Mapping[str, Any]:
        """Description of the place for another rank: what `Meeting` is made from."""
        return vars(self.place)


def kept(host: str, size: int, own: bool, seconds: float) -> KeptMeeting:
    """Open a meeting place, as rank 0.

    host     at which other machines reach this one
    own      whether all ranks are children of this process
    seconds  that it waits there for the others
    Raises UsageError if it cannot be kept.
    """
    if not own:
        store = rendezvous(host, 0, size, leads=True, seconds=seconds)
        return KeptMeeting(Meeting(host=host, port=store.port), store)
    file = _private_file()
    return KeptMeeting(Meeting(file=file), _in(file, seconds))


def _private_file() -> str:
    """Make a file that this user's processes alone can open by its path, and that is there until this one ends.

    torch's store opens its path once more and writes there when it is collected, which may be long after the ranks have
    ended: a file that has taken the number of a closed descriptor meanwhile would be read, and written to.
    """
    if hasattr(os, "memfd_create"):
        return f"/proc/{os.getpid()}/fd/{os.memfd_create('groupwise ranks', os.MFD_CLOEXEC)}"
    folder = tempfile.mkdtemp(prefix="groupwise-ranks-")  # which is its owner's alone
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder) / "store"
    path.touch()
    return str(path)


def _in(file: str, seconds: float) -> Store:
    if not os.access(file, os.W_OK):  # torch would wait until there is one
        raise UsageError(f"the ranks' meeting point {file} is not there, or another user's: rank 0 has ended")
    store = FileStore(file)
    store.set_timeout(timedelta(seconds=seconds))
    return store
