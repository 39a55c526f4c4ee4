"""Places of the processes of a run: here, as children of its own, or where something else starts them.

    process = place.start(Role.ENGINE, "groupwise.some.module", {"option": 1}, seconds=60)
    process.send({"question": 2})                        # there: main(channel, option=1)

What a process is asked, and how it is lost, is the same at every place.
"""

import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, TypeVar

from groupwise.core.errors import one_line, shortened
from groupwise.core.peer import PeerLost, Transport
from groupwise.core.processes.address import LOOPBACK
from groupwise.core.processes.children import Child, ending
from groupwise.core.processes.tail import Tail

#: Seconds in which the rest of what an ended process printed must have come.
REST = 1.0


class Closable(Protocol):
    """What holds something until it is closed."""

    def close(self) -> None: ...


C = TypeVar("C", bound=Closable)


class Role(StrEnum):
    """What a process does for its run."""

    RANK = "rank"
    ENGINE = "engine"
    POOL = "pool"


class Exit(NamedTuple):
    """How a process ended.

    words  such as "killed by SIGKILL"
    code   negative where a signal ended it; None where only what it lived in is known to be gone
    """

    words: str
    code: int | None


class Process(Transport, Protocol):
    """A process at the other end of a connection, as core/peer.py asks it, and what is known of it besides.

    lost           whether an answer failed to come, so that the next one could be taken for it
    shares_memory  whether it gets descriptors that are sent to it; else all bytes have to be sent
    pid            its number, where it is a child of this process
    """

    lost: bool

    @property
    def shares_memory(self) -> bool: ...

    @property
    def pid(self) -> int | None: ...

    @property
    def usable(self) -> bool:
        """Whether it runs, and has answered every time, as far as is known."""
        ...

    @property
    def closed(self) -> bool: ...

    def speaks(self, seconds: float) -> bool: ...

    def exit(self, seconds: float = 0.0) -> Exit | None:
        """How it ended, if it does within these seconds; None where it runs, as far as is known."""
        ...

    def printed(self, seconds: float = 0.0) -> str:
        """The last that it printed; waits so long at most for the rest of a process that is about to end."""
        ...

    def close(self) -> None:
        """Ends it, with all that it started, and waits for its end. Again does nothing."""
        ...


class Place(Protocol):
    """Place at which processes are started.

    host  at which they reach this machine
    own   whether they are children of this process, so that descriptors can be passed to them
    """

    @property
    def host(self) -> str: ...

    @property
    def own(self) -> bool: ...

    def start(
        self, role: Role, module: str, options: Mapping[str, Any], *, seconds: float, python: str | None = None
    ) -> Process:
        """A process that runs the module's `main(channel, **options)`; it ends with this one, however that ends.

        seconds  in which it must run
        python   its interpreter, which has libraries of its own; None is the one of this process
        Raises PeerLost where it does not.
        """
        ...

    def close(self) -> None:
        """Ends what the place itself needs. Again does nothing."""
        ...


class LocalProcess(Child):
    """A child of this process that says how it ended and what it printed last."""

    shares_memory = True

    def __init__(self, module: str, options: Mapping[str, Any], python: str | None = None) -> None:
        """Raises PeerLost where it cannot be started."""
        command = [python, "-P"] if python else ()
        try:
            self._tail = Tail()
            try:
                super().__init__(module, options, command=command, alone=python is not None, stderr=self._tail.writing)
            finally:
                self._tail.given()
        except (OSError, RuntimeError) as error:  # RuntimeError: no more threads, of which the tail has one
            words = getattr(error, "strerror", None) or one_line(error)
            raise PeerLost(f"it cannot be started: {words}") from None
        self.pid: int | None = self.process.pid

    def exit(self, seconds: float = 0.0) -> Exit | None:
        """How it ended, if it does within these seconds."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        return Exit(ending(code), code)

    def printed(self, seconds: float = 0.0) -> str:
        """The last that it printed."""
        return self._tail.text(seconds)


class Here:
    """Processes as children of this one."""

    host, own = LOOPBACK, True

    def start(
        self, role: Role, module: str, options: Mapping[str, Any], *, seconds: float, python: str | None = None
    ) -> LocalProcess:
        """A child, at once; whether it comes to run its module is seen when it is asked. Raises PeerLost."""
        return LocalProcess(module, options, python)

    def close(self) -> None:
        """There is nothing but the children, and each is closed by whoever started it."""


#: This machine, and this process's own children.
HERE = Here()


def last_line(process: Process) -> str:
    """The last line that a process printed, as `last_of` has it."""
    return last_of(process.printed(REST))


def last_of(text: str) -> str:
    """The last line of what was printed, in brackets behind a space; "" where there is none.

    >>> last_of("one\\ntwo\\n"), last_of("")
    (' (two)', '')
    """
    line = text.strip().rpartition("\n")[2].strip()
    return f" ({shortened(line)})" if line else ""


def started(makers: Sequence[Callable[[], C]]) -> list[C]:
    """What they make, side by side. Raises the first's error where one fails, and closes what others have made."""
    with ThreadPoolExecutor(len(makers)) as workers:
        futures = [workers.submit(maker) for maker in makers]
    errors = [error for future in futures if (error := future.exception()) is not None]
    if not errors:
        return [future.result() for future in futures]
    for future in futures:
        if future.exception() is None:
            future.result().close()
    raise errors[0]
