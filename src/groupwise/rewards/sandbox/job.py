"""One program in its child, from the supervisor's side: its limits, its pipes, its deadline, how it ended."""

import os
import select
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from groupwise.core.channel import FrameError, pack, unpack
from groupwise.core.peer import PeerLost
from groupwise.core.processes.children import ending, signal_name
from groupwise.rewards.zygote import Zygote

REFUSED = 97  # the exit code of a child that could not put a layer in place


@dataclass(frozen=True)
class Limits:
    """Limits of one program.

    seconds  wall time from its start to its last answer; also its processor time, rounded up
    memory   address space, bytes
    output   bytes it may write to stdout, and to stderr
    value    bytes of one value that it returns
    threads  how many threads it may run at once (1 where the sandbox cannot count them: see Layers)
    """

    seconds: float = 5.0
    memory: int = 512 * 2**20
    output: int = 64 * 2**10
    value: int = 2**20
    threads: int = 32


class Kind(StrEnum):
    """Kinds of end of a program."""

    FINISHED = "finished"  # by itself, with exit code 0
    EXCEPTION = "exception"  # by itself, with another exit code: an uncaught exception
    TIMEOUT = "timeout"  # killed at the deadline
    MEMORY = "memory"  # it asked for more than its limit, or the system killed it
    CRASH = "crash"  # killed by a signal that it caused
    OUTPUT = "output"  # killed because it wrote or returned too much
    REFUSED = "refused"  # it never ran: a layer of protection could not be put in place


@dataclass(frozen=True)
class Outcome:
    """End of a program, in the words of the supervisor; stdout and stderr are the program's own.

    detail   for a person: the last line of the traceback, the signal, the limit
    seconds  wall time
    """

    kind: Kind
    stdout: str = ""
    stderr: str = ""
    detail: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Layers:
    """Layers of protection that are in place, as the zygote reports them after putting them there.

    namespaces  own mount, network, IPC and host-name namespaces, with a root folder that holds Python's library alone
    bubblewrap  the same made by bwrap, where this process may not make it itself
    processes   every program is alone in a process namespace of its own
    landlock    the kernel's Landlock version, 0 where there is none
    seccomp     a list of the system calls that are allowed
    user        programs run as a user of their own: under root as an unused number, else in a user namespace
    """

    namespaces: bool = False
    bubblewrap: bool = False
    processes: bool = False
    landlock: int = 0
    seccomp: bool = False
    user: bool = False

    @property
    def enough(self) -> bool:
        """True if foreign programs may run: a list of calls, and a file system with nothing in it."""
        return self.seccomp and (self.namespaces or self.bubblewrap or self.landlock > 0)

    def __str__(self) -> str:
        outer = "bubblewrap" if self.bubblewrap else "namespaces" if self.namespaces else ""
        words = [
            outer and f"no network, empty file system ({outer})",
            "no other processes" if self.processes else "",
            f"Landlock {self.landlock}" if self.landlock else "",
            "seccomp" if self.seccomp else "",
            "own user" if self.user else "",
            "resource limits",
        ]
        return ", ".join(word for word in words if word)

    @property
    def missing(self) -> str:
        """Layers that keep `enough` from being true, in words."""
        lacks = [] if self.seccomp else ["seccomp (Linux on x86_64 or aarch64)"]
        if not (self.namespaces or self.bubblewrap or self.landlock):
            lacks.append("one of: namespaces, bubblewrap (bwrap), Landlock")
        return " and ".join(lacks)


_CHUNK = 2**16
_PATIENCE = 0.5  # seconds that a program may take to end after it closed its files


class Job:
    """A child that was given a first frame. `exchange` talks to it, `finish` waits for its end, `stop` ends it now.

    struck  called if it is ended by something else than its own doing and its limits
    """

    def __init__(
        self,
        zygote: Zygote,
        limits: Limits,
        first: dict[str, Any],
        stdin: str = "",
        struck: Callable[[], None] = lambda: None,
    ) -> None:
        self.zygote, self.limits, self.struck = zygote, limits, struck
        self.ended: tuple[Kind, str] | None = None  # why the supervisor gave up, where it did
        self.outcome: Outcome | None = None
        self.read = {"stdout": bytearray(), "stderr": bytearray(), "control": bytearray()}
        self.write = {"stdin": memoryview(stdin.encode("utf-8", "surrogateescape")), "control": memoryview(b"")}
        self.begun = time.monotonic()
        self.ends, theirs = _pipes()
        try:
            self.child = zygote.spawn(asdict(limits), theirs)
        except BaseException:
            for descriptor in self.ends.values():
                os.close(descriptor)
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        if not stdin:
            os.close(self.ends.pop("stdin"))
        self._send(first)

    def exchange(self, message: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """Send the message, if any, and wait for the child's next one. None where none will come."""
        if message is not None:
            self._send(message)
        while self.ended is None:
            try:
                reply = unpack(self.read["control"], self.limits.value)
            except FrameError as error:
                self.ended = (Kind.OUTPUT, f"it returned {error}")
                return None
            if reply is not None:
                return reply
            if "control" not in self.ends or not self._pump():
                return None
        return None

    def finish(self) -> Outcome:
        """Wait until it ends or its deadline comes, and say how."""
        while self.ended is None and self._pump():
            pass
        return self.stop()

    def stop(self) -> Outcome:
        """Kill what is left of it and say how it ended. Twice says the same."""
        if self.outcome is None:
            for descriptor in self.ends.values():
                os.close(descriptor)
            self.ends.clear()
            seconds = time.monotonic() - self.begun
            out, err = (bytes(self.read[name]).decode("utf-8", "replace") for name in ("stdout", "stderr"))
            try:
                code, cpu, killed = self.zygote.reap(self.child, _PATIENCE if self.ended is None else 0.0)
                kind, detail = self.ended or self._ending(code, cpu, killed, err)
            except PeerLost as lost:
                self.struck()
                kind, detail = Kind.CRASH, f"the process above it is lost: {lost}"
            self.outcome = Outcome(kind, out, err, detail, seconds)
        return self.outcome

    def _send(self, message: dict[str, Any]) -> None:
        self.write["control"] = memoryview(bytes(self.write["control"]) + pack(message))

    def _pump(self) -> bool:
        """Move what can be moved; False when every pipe from the child is closed. Sets `ended` at a limit."""
        if not any(name in self.ends for name in self.read):
            return False
        left = self.begun + self.limits.seconds - time.monotonic()
        watched = select.poll()
        for name, descriptor in self.ends.items():
            reading = select.POLLIN if name in self.read else 0
            watched.register(descriptor, reading | (select.POLLOUT if self.write.get(name) else 0))
        ready = dict(watched.poll(max(0.0, left) * 1000))
        if left <= 0:
            self.ended = (Kind.TIMEOUT, f"killed after {self.limits.seconds:g} seconds")
            return False
        for name, descriptor in list(self.ends.items()):
            self._move(name, descriptor, ready.get(descriptor, 0))
        return True

    def _move(self, name: str, descriptor: int, events: int) -> None:
        try:
            if events & select.POLLOUT:
                self.write[name] = self.write[name][os.write(descriptor, self.write[name][:_CHUNK]) :]
                if name == "stdin" and not self.write[name]:
                    os.close(self.ends.pop(name))
            if events & (select.POLLIN | select.POLLHUP | select.POLLERR) and name in self.read:
                self._take(name, os.read(descriptor, _CHUNK))
            elif events & (select.POLLHUP | select.POLLERR):
                os.close(self.ends.pop(name))
        except BlockingIOError:
            return
        except OSError:  # the child's end is gone
            if name in self.ends:
                os.close(self.ends.pop(name))

    def _take(self, name: str, data: bytes) -> None:
        if not data:
            os.close(self.ends.pop(name))
            return
        self.read[name] += data
        most = self.limits.value + _CHUNK if name == "control" else self.limits.output
        if len(self.read[name]) > most:
            self.ended = (Kind.OUTPUT, f"it wrote more than {most} bytes to {name}")
            del self.read[name][most:]

    def _ending(self, code: int, cpu: float, killed: bool, stderr: str) -> tuple[Kind, str]:
        """Interpret the exit code. The code is the kernel's word; the texts are the child's and prove nothing."""
        last = stderr.rstrip().rpartition("\n")[2][:300]
        if killed:
            return Kind.CRASH, "killed: it closed its files and went on"
        if code in (-signal.SIGKILL, -signal.SIGXCPU):
            if cpu >= self.limits.seconds:
                return Kind.TIMEOUT, "killed: out of processor time"
            self.struck()
            return Kind.MEMORY, "killed by the system"
        if code < 0:
            return Kind.CRASH, signal_name(-code)
        if code == 0:
            return Kind.FINISHED, ""
        if code == REFUSED:
            return Kind.REFUSED, last
        if last.startswith("MemoryError"):
            return Kind.MEMORY, f"it asked for more than {self.limits.memory} bytes"
        return Kind.EXCEPTION, last or ending(code)


def _pipes() -> tuple[dict[str, int], list[int]]:
    """Open this side's ends by name, not blocking, and the child's in the order stdin, stdout, stderr, control."""
    (in_there, in_here), (out_here, out_there), (err_here, err_there) = os.pipe(), os.pipe(), os.pipe()
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ends = {"stdin": in_here, "stdout": out_here, "stderr": err_here, "control": here.detach()}
    for descriptor in ends.values():
        os.set_blocking(descriptor, False)
    return ends, [in_there, out_there, err_there, there.detach()]
