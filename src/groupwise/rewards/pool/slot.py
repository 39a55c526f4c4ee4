"""One worker as the run sees it: its line, its leash, what it is doing and since when."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from groupwise.core.reward import Cause, Mark
from groupwise.core.samples import Attempt
from groupwise.rewards.functions.trace import own_lines
from groupwise.rewards.pool.isolate import below

#: A worker that has started more processes than this is not given time for those that keep it from running.
SWARM = 16
#: Seconds between two counts of them, and between two looks at one that may be waiting for a core.
LOOK_AGAIN, LOOK = 0.1, 0.02


@dataclass(frozen=True)
class Entry:
    """One attempt on its way to a worker; without one, a reward that is to be loaded and tried on `rows`.

    alone  sent by itself, because a call for many that it was in failed
    fresh  sent to a process that has scored nothing yet, because what failed might be another's doing
    """

    ticket: int
    name: str
    attempt: Attempt | None
    rows: Sequence[Attempt] = ()
    alone: bool = False
    fresh: bool = False


@dataclass
class Clock:
    """Time since a start, without the time in which the worker wanted a core and got none.

    A worker gives way to generation, and is not to be blamed for that.
    """

    started: float = 0.0
    waited: float = 0.0
    stat: int = -1
    pid: int = 0
    seen: tuple[float, int] | None = None

    def watch(self, pid: int) -> None:
        self.pid = pid
        with contextlib.suppress(OSError):
            self.stat = os.open(f"/proc/{pid}/schedstat", os.O_RDONLY)

    def start(self) -> None:
        self.started, self.waited, self.seen = time.monotonic(), self._delay(), None

    def over(self, limit: float) -> bool:
        """Whether its time is up: past the limit, and not just waiting for a core at this moment.

        The system tells of a wait only when it has ended, so the worker is looked at twice: ready to run both times,
        and no further, it is waiting still.
        """
        now = time.monotonic()
        if self.seconds() < limit:
            self.seen = None
            return False
        if self.seen is not None and now - self.seen[0] < LOOK:
            return False
        before, self.seen = self.seen, (now, self._ran())
        return before is not None and not (before[1] == self.seen[1] and self._ready())

    @property
    def wall(self) -> float:
        """Seconds since the start, waiting for a core included."""
        return time.monotonic() - self.started

    def seconds(self) -> float:
        return time.monotonic() - self.started - (self._delay() - self.waited)

    def close(self) -> None:
        if self.stat >= 0:
            os.close(self.stat)
            self.stat = -1

    def _delay(self) -> float:
        """Seconds that the process was ready to run and did not; 0 where the system does not say."""
        told = self._told()
        return told[1] * 1e-9 if told else self.waited

    def _ran(self) -> int:
        """Nanoseconds that the process has run."""
        told = self._told()
        return told[0] if told else 0

    def _told(self) -> list[int]:
        try:
            return [int(number) for number in os.pread(self.stat, 128, 0).split()] if self.stat >= 0 else []
        except (OSError, ValueError):
            return []

    def _ready(self) -> bool:
        """Whether it would run if it had a core."""
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{self.pid}/stat").read_text(errors="replace") if self.stat >= 0 else ""
            return text.rpartition(")")[2].split()[:1] == ["R"]
        return False


@dataclass
class Slot:
    """A worker.

    entries  what it was given and has not answered yet
    served   whether it has scored anything
    ending   asked to end; `late` where that is because of a deadline, `swarmed` of processes that it started
    """

    line: socket.socket
    leash: socket.socket
    heard: bytearray = field(default_factory=bytearray)
    last: bytearray = field(default_factory=bytearray)
    clock: Clock = field(default_factory=Clock)
    entries: list[Entry] = field(default_factory=list)
    ready: bool = False
    busy: bool = False
    loading: str = ""
    served: bool = False
    ending: bool = False
    late: bool = False
    swarmed: bool = False
    looked: float = 0.0
    ended: dict[str, Any] = field(default_factory=dict)

    def send(self, message: object) -> None:
        """Raises OSError where the worker does not take it."""
        pipe: Connection[Any, Any] = Connection(os.dup(self.line.fileno()), readable=False)
        with contextlib.closing(pipe):
            pipe.send(message)

    def swarms(self, limit: float) -> bool:
        """Whether it is past its seconds on the wall and has started so many processes that they starve each other.

        Such a wait is its own doing, and the workers beside it must not pay for it.
        """
        now = time.monotonic()
        if self.clock.wall < limit or now - self.looked < LOOK_AGAIN:
            return False
        self.looked = now
        return len(below(self.clock.pid)) > SWARM

    def end(self) -> None:
        """Asks the keeper to end it; the leash's end says when nothing is left."""
        if not self.ending:
            self.ending = True
            with contextlib.suppress(OSError):
                self.leash.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.clock.close()
        self.line.close()
        self.leash.close()

    def verdict(self, seconds: float) -> Mark:
        """Why the process is gone, in words for a person."""
        output = own_lines(str(self.ended.get("output", "")))
        if self.late:
            return Mark(cause=Cause.TIMEOUT, detail=_joined(output, f"no score after {seconds:g} s"))
        return Mark(cause=Cause.CRASH, detail=_joined(output, _how(self.ended.get("status"))))


def _joined(output: str, words: str) -> str:
    return f"{output}\n{words}" if output else words


def _how(status: int | None) -> str:
    if status is None:
        return "the process that scored was ended from outside"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        told = " (the machine may be out of memory)" if number == signal.SIGKILL else ""
        return f"killed by {signal.Signals(number).name}{told}"
    return f"ended the process with exit code {os.WEXITSTATUS(status)}"
