"""Supervisor of child processes: starts one, talks to it with a deadline, ends it, says why it ended.

    child = Child("groupwise.some.module", {"option": 1})    # there: main(channel, option=1)
    child.send({"question": 2})
    child.receive(seconds=5.0)                               # a dict, or PeerLost
    child.close()

A child ends when its parent does, however that ends (groupwise.core.channel.end_with). The standard library only.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from groupwise.core.channel import Channel
from groupwise.core.peer import Peer

#: The folder that this package is imported from.
ROOT = str(Path(__file__).parents[3])
#: The folder of this package itself.
PACKAGE = str(Path(__file__).parents[2])
#: What would lead another interpreter to the libraries of this one.
OWN_LIBRARIES = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
_BOOT = """\
import json, sys
start = json.loads(sys.argv[1])
sys.path[:0] = start.pop("path")
folder = start.pop("package")
if folder:
    from importlib.util import module_from_spec, spec_from_file_location
    spec = spec_from_file_location("groupwise", folder + "/__init__.py", submodule_search_locations=[folder])
    sys.modules["groupwise"] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules["groupwise"])
from groupwise.core.channel import run_module
run_module(**start)
"""
_REAP = 1.0  # seconds that a child may take to end after it closed its connection


class Child(Peer):
    """A process that runs a module's `main(channel, **options)`, in a process group of its own.

    options      what `main` is called with: JSON
    command      what starts Python, without a program: an interpreter with its flags, or a launcher before it
    path         what the child finds first on its sys.path; this process's own where none is given
    alone        the command is another interpreter with libraries of its own: of this process it gets groupwise alone
    environment  this process's own where none is given
    folder       the working folder; this process's own where none is given
    stderr       as for subprocess.Popen; stdin and stdout are /dev/null

    Raises OSError where it cannot be started. A fork of this process inherits nothing: there the child is closed.
    """

    def __init__(
        self,
        module: str,
        options: Mapping[str, Any] | None = None,
        *,
        command: Sequence[str] = (),
        path: Sequence[str] | None = None,
        alone: bool = False,
        environment: Mapping[str, str] | None = None,
        folder: str | None = None,
        stderr: int | None = subprocess.DEVNULL,
    ) -> None:
        with _forking:
            ours, theirs = socket.socketpair()
            tied, lifeline = os.pipe()
            start = {
                "path": [] if alone else list(sys.path if path is None else path), "module": module,
                "package": PACKAGE if alone else "",
                "connection": theirs.fileno(), "lifeline": tied, "options": options or {},
            }  # fmt: skip
            super().__init__(Channel(ours))
            held = open(lifeline, "wb", buffering=0)  # noqa: SIM115  until `close`
            try:
                self.process = subprocess.Popen(
                    [*(command or (sys.executable, "-P")), "-c", _BOOT, json.dumps(start)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=stderr,
                    env=_without_libraries(environment) if alone else environment,
                    cwd=folder,
                    pass_fds=(theirs.fileno(), tied),
                    start_new_session=True,
                )
            except BaseException:
                ours.close()
                held.close()
                raise
            finally:
                theirs.close()
                os.close(tied)
            self._end = weakref.finalize(self, _end, self.process, self.channel, held, os.getpid())
            _children.add(self)

    @property
    def closed(self) -> bool:
        """True if it was closed here, or this process is a fork of the one that it belongs to."""
        return not self._end.alive

    @property
    def usable(self) -> bool:
        """True if it runs, and has answered every time, as far as is known."""
        return not self.closed and not self.lost and self.process.poll() is None

    def close(self) -> None:
        """Kill the process and its group, and wait for its end. Again, or in a fork of this process, does nothing."""
        self._end()

    def _killed(self) -> bool:
        return (self.process.returncode or 0) < 0

    def _gone(self) -> str:
        try:
            return f"it ended: {ending(self.process.wait(_REAP))}"
        except subprocess.TimeoutExpired:
            return "it closed its connection"


def ending(code: int) -> str:
    """Say how a process ended, by its exit code, which is negative where a signal killed it (as Popen.returncode is).

    >>> ending(3), ending(-9)
    ('exit code 3', 'killed by SIGKILL')
    """
    return f"killed by {signal_name(-code)}" if code < 0 else f"exit code {code}"


def signal_name(number: int) -> str:
    """Name a signal: `SIGKILL` for 9; the number itself where it has no name."""
    return signal.Signals(number).name if number in signal.valid_signals() else str(number)


def _without_libraries(environment: Mapping[str, str] | None) -> dict[str, str]:
    given = os.environ if environment is None else environment
    return {name: value for name, value in given.items() if name not in OWN_LIBRARIES}


def _end(process: subprocess.Popen[bytes], channel: Channel, lifeline: IO[bytes], owner: int) -> None:
    if owner == os.getpid():
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS refuses a group that has ended
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()  # where it has no group of its own yet
        process.wait()
    else:
        process.returncode = 0  # another process's child: there is nothing to wait for here
    channel.close()
    lifeline.close()


# A fork would hold the writing end of every lifeline, and children would outlive their parent by its life: it closes
# them. A fork by another thread waits while descriptors are made that are not yet known here.
_children: weakref.WeakSet[Child] = weakref.WeakSet()
_forking = threading.Lock()


def _close_inherited() -> None:
    for child in list(_children):
        child.close()
    _forking.release()


os.register_at_fork(before=_forking.acquire, after_in_parent=_forking.release, after_in_child=_close_inherited)


#: Bytes that are remembered.
MOST = 1 << 14


class Tail:
    """A pipe that a thread of this process reads to its end.

        tail = Tail()
        subprocess.Popen(command, stderr=tail.writing)
        tail.given()       # from here on the other process alone can write
        tail.text()

    writing  the descriptor that the other process prints to
    """

    def __init__(self, most: int = MOST) -> None:
        self._most, self._last = most, bytearray()
        self._reading, self.writing = os.pipe()
        self._thread = threading.Thread(target=self._read, name="tail", daemon=True)
        self._thread.start()

    def given(self) -> None:
        """Close the writing end here. Once only."""
        os.close(self.writing)

    def text(self, seconds: float = 0.0) -> str:
        """Return what was printed last; waits so long at most for the end of a process that is about to end."""
        self._thread.join(seconds)
        return bytes(self._last).decode(errors="replace")

    def _read(self) -> None:
        while data := os.read(self._reading, 1 << 16):
            self._last += data
            del self._last[: -self._most]
        os.close(self._reading)
