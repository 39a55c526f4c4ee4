"""The limits of a program, how it ended, and which layers of protection were in place."""

from dataclasses import dataclass
from enum import StrEnum

REFUSED = 97  # the exit code of a child that could not put a layer in place


@dataclass(frozen=True)
class Limits:
    """What one program may use.

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
    """How a program ended."""

    FINISHED = "finished"  # by itself, with exit code 0
    EXCEPTION = "exception"  # by itself, with another exit code: an uncaught exception
    TIMEOUT = "timeout"  # killed at the deadline
    MEMORY = "memory"  # it asked for more than its limit, or the system killed it
    CRASH = "crash"  # killed by a signal that it caused
    OUTPUT = "output"  # killed because it wrote or returned too much
    REFUSED = "refused"  # it never ran: a layer of protection could not be put in place


@dataclass(frozen=True)
class Outcome:
    """How a program ended, in the words of the supervisor; stdout and stderr are the program's own.

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
    """Which layers of protection are in place, as the zygote reports them after putting them there.

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
        """Whether foreign programs may run: a list of calls, and a file system with nothing in it."""
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
        """What keeps `enough` from being true, in words."""
        lacks = [] if self.seccomp else ["seccomp (Linux on x86_64 or aarch64)"]
        if not (self.namespaces or self.bubblewrap or self.landlock):
            lacks.append("one of: namespaces, bubblewrap (bwrap), Landlock")
        return " and ".join(lacks)
