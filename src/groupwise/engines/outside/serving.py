"""Server that listens at an address, and gives a run an engine in a process of its own there."""

import contextlib
import os
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType

from groupwise.core.channel import Channel, FrameError
from groupwise.core.errors import UsageError, one_line
from groupwise.core.peer import PeerLost
from groupwise.core.processes.children import Child, ending
from groupwise.core.processes.handshake import Caller, Refused, meet
from groupwise.core.processes.network import Address, Door, keep_alive
from groupwise.engines.outside.connection import GREETING, PATIENCE, SERVER

#: The words for a run with another key than the server's.
WRONG_KEY = "its --key-file holds another key than engine.key_file"
#: Seconds in which a process whose connection has ended is seen to have ended too.
GRACE = 2.0
#: Seconds between two looks at whether a process still has its run.
LOOK = 0.25
#: What a connection shows once the other end is closed; the first is Linux's.
GONE = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


class EngineServer:
    """Listens, and serves one run at a time. A run whose connection was lost may come back, and gets a new process.

    python   the interpreter of engines' processes; None is this one
    device   of the engine
    threads  of torch there
    note     hears a line of what happens
    key      that a run must have; None asks for none
    module   program of the processes
    said     what the greeting and the program are told besides
    address  at which it listens, with the port that it was given
    Raises UsageError if it cannot listen.
    """

    def __init__(
        self,
        address: Address,
        python: str | None,
        device: str,
        threads: int,
        note: Callable[[str], None],
        key: bytes | None = None,
        module: str = SERVER,
        said: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._python, self._note, self._key, self._module = python, note, key, module
        self._strangers = False
        self._options, self._greeting = {"machine": [device, threads], **said}, {**GREETING, **said}
        self._lock = threading.Lock()
        self._run, self._child = "", None
        self._ended: set[Child] = set()  # here, and not of themselves
        try:
            listening = socket.create_server(address, family=address.family)
        except (OSError, OverflowError) as error:
            words = f"cannot listen at {address}: {_in_words(error)}"
            raise UsageError(f"{words}; take another port, or 0 for any that is free") from None
        self.address = Address(address.host, listening.getsockname()[1])
        self._door = Door(listening, self._run_of, self._answer, note)

    def serve(self) -> None:
        """Serve until it is closed, from another thread or by an interrupt."""
        self._door.serve()

    def close(self) -> None:
        """End the engine's process, and listen no more."""
        self._door.close()
        with self._lock:
            self._end_process()

    def _answer(self, run: Caller, connection: socket.socket, peer: tuple[str, int]) -> None:
        name = str(Address(*peer))
        with connection:
            child = self._process_for(run, connection, name)
            if child is None:
                return
            began = time.monotonic()
            code = _end_with(connection, child)
        child.close()
        with self._lock:
            ended_here = child in self._ended
            self._ended.discard(child)
            if self._child is child:
                self._run, self._child = "", None
        if not ended_here:
            how = "has gone" if code == 0 else f"has lost its engine: {ending(code)}"
            self._note(f"{name} {how}, after {time.monotonic() - began:.0f} s")

    def _run_of(self, connection: socket.socket) -> Caller | None:
        """Hear the name that a run gives itself; None of whoever only looks for a server, is no run, or has no key."""
        channel = Channel(connection)
        try:
            keep_alive(connection)
            return meet(channel, lambda _: self._key, PATIENCE, self._greeting, asks=self._key is not None)
        except (OSError, EOFError, FrameError):
            return None
        except Refused:
            with contextlib.suppress(OSError):
                channel.send({"refused": WRONG_KEY}, seconds=PATIENCE)
        self._say_stranger(connection)
        return None

    def _say_stranger(self, connection: socket.socket) -> None:
        with self._lock:
            first, self._strangers = not self._strangers, True
        if first:
            with contextlib.suppress(OSError):
                name = Address(*connection.getpeername()[:2])
                self._note(f"{name} is refused: it has another key; further ones are refused without a word")

    def _process_for(self, run: Caller, connection: socket.socket, name: str) -> Child | None:
        """Return a process that has the connection; None if another run has one."""
        channel = Channel(connection)
        with self._lock:
            if self._child is not None and run.name != self._run:
                refused = "another run has the engine there; wait for its end, or start a second server"
                with contextlib.suppress(OSError):
                    channel.send({"refused": refused}, seconds=PATIENCE)
                self._note(f"{name} is refused: another run has the engine")
                return None
            self._end_process(GRACE)  # the run has lost its connection to that one
            try:
                command = [self._python, "-P"] if self._python else ()
                child = Child(self._module, self._options, command=command, alone=self._python is not None, stderr=None)
                channel.send({"welcome": run.name, "proof": run.proof}, seconds=PATIENCE)
                child.send({}, [connection.fileno()], PATIENCE)
            except (OSError, PeerLost) as error:
                self._note(f"{name}: no process can be started for it: {_in_words(error)}")
                return None
            self._run, self._child = run.name, child
        self._note(f"{name} has an engine now, in process {child.process.pid}")
        return child

    def _end_process(self, grace: float = 0.0) -> None:
        """End the engine's process, if one lives; the lock is held. One that is ending has `grace` seconds to."""
        if self._child is None:
            return
        try:
            self._child.process.wait(grace)
        except subprocess.TimeoutExpired:
            self._ended.add(self._child)
            self._child.close()


def _end_with(connection: socket.socket, child: Child) -> int:
    """Wait for the end of a process that serves a connection -> its exit code, 0 if the run went first.

    A process that does not see that its run is gone, because it is stopped or hangs, is killed.
    """
    look = select.poll()
    look.register(connection, GONE)
    while not look.poll(0):
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.process.wait(LOOK)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.process.wait(GRACE)
    return 0


def _in_words(error: Exception) -> str:
    """Leave out what Python puts behind the system's own words."""
    number = getattr(error, "errno", None)
    return (os.strerror(number) if number and number > 0 else one_line(error)).lower()
