"""One worker as the run sees it: its line, its leash, what it is doing and since when."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from groupwise.core.channel import Channel, FrameError, unpack
from groupwise.core.code.trace import own_lines
from groupwise.core.environment import Conversation
from groupwise.core.processes.children import ending
from groupwise.core.samples import Cause, ScoreResult
from groupwise.rewards.isolation import below, stat_fields
from groupwise.rewards.pool.work import Entry, Given
from groupwise.rewards.zygote import Zygote

#: A worker that has started more processes than this is not given time for those that keep it from running.
SWARM = 16
#: Seconds between two counts of them, and between two looks at one that may be waiting for a core.
LOOK_AGAIN, LOOK = 0.1, 0.02
#: Bytes of a message of a worker: results of the most that it is given, with all that their functions may log.
LARGEST = 1 << 26
#: What a worker says, and of what type.
_SAID = {"hello": int, "loading": str, "loaded": str, "single": bool, "broken": str, "detail": str, "usage": bool,
         "results": list, "failed": bool, "spent": bool, "done": bool}  # fmt: skip
#: Seconds in which the end of what made a worker is seen, once the worker's is.
REST = 0.05


@dataclass
class Clock:
    """Time since a start, without the time in which the worker waited for a core: it gives way to generation."""

    started: float = 0.0
    waited: float = 0.0
    pid: int = 0
    seen: tuple[float, int] | None = None

    def start(self) -> None:
        self.started, self.waited, self.seen = time.monotonic(), self._times()[1], None

    def over(self, limit: float) -> bool:
        """Tell if its time is up: past the limit, and not just waiting for a core at this moment.

        The system tells of a wait only when it has ended, so the worker is looked at twice: ready to run both times,
        and no further, it is waiting still.
        """
        now = time.monotonic()
        if self.seconds() < limit:
            self.seen = None
            return False
        if self.seen is not None and now - self.seen[0] < LOOK:
            return False
        before, self.seen = self.seen, (now, self._times()[0])
        would_run = False
        with contextlib.suppress(OSError):
            would_run = stat_fields(self.pid)[:1] == ["R"]
        return before is not None and not (before[1] == self.seen[1] and would_run)

    @property
    def wall(self) -> float:
        """Seconds since the start, waiting for a core included."""
        return time.monotonic() - self.started

    def seconds(self) -> float:
        return self.wall - (self._times()[1] - self.waited)

    def _times(self) -> tuple[int, float]:
        """Nanoseconds that the process has run, and seconds that it was ready to and did not, as far as is known."""
        try:
            ran, delayed, _ = map(int, Path(f"/proc/{self.pid}/schedstat").read_text().split())
        except (OSError, ValueError):  # the system does not say
            return 0, self.waited
        return ran, delayed * 1e-9


@dataclass
class Slot:
    """A worker.

    line     its connection, and what has come over it; `leash` and its buffer are the keeper's (worker.keep)
    maker    the process that made it, and `number` what it is called there
    report   what the keeper said last: the worker's wait status and the end of its output
    entries  what it was given and has not answered yet
    episodes  the numbers of those that live in it, all of one round
    served   whether it has scored anything
    ending   asked to end; `late` where that is because of a deadline, `swarmed` of processes that it started, `gone`
             because it took nothing any more
    halted   whether it was stopped by a signal when its time was up
    """

    line: socket.socket
    leash: socket.socket
    maker: Zygote
    number: int
    line_buffer: bytearray = field(default_factory=bytearray)
    leash_buffer: bytearray = field(default_factory=bytearray)
    clock: Clock = field(default_factory=Clock)
    entries: list[Entry] = field(default_factory=list)
    ready: bool = False
    busy: bool = False
    loading: str = ""
    served: bool = False
    ending: bool = False
    late: bool = False
    swarmed: bool = False
    gone: bool = False
    halted: bool = False
    looked: float = 0.0
    report: dict[str, Any] = field(default_factory=dict)
    episodes: set[int] = field(default_factory=set)
    round: int = 0

    @property
    def orphaned(self) -> bool:
        """True if it is gone because the process that made it is: then all end, and none says how its worker did."""
        if self.late or self.report.get("status") is not None:
            return False
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.maker.process.wait(REST)
        return not self.maker.usable

    @property
    def killed(self) -> bool:
        """True if it is gone by something else than its own doing, as far as can be known: by SIGKILL, which the system
        sends for memory, or with its keeper; or if it was stopped in the middle of what it did, and so was late.
        """
        unasked = self.gone or not self.ending
        by_others = unasked and self.report.get("status") in (None, signal.SIGKILL)
        return self.closed and (self.halted or by_others)

    @property
    def stalled(self) -> bool:
        """True if it was late and never there: the process that was to make it hangs."""
        return self.late and not self.ready

    def play(self, conversations: Sequence[Conversation]) -> None:
        """Note that these episodes live here from now on, and none of earlier rounds does."""
        for conversation in conversations:
            if conversation.round != self.round:
                self.round, self.episodes = conversation.round, set()
            self.episodes.add(conversation.episode)

    def send(self, given: Given, seconds: float) -> None:
        """Raise OSError where the worker does not take it within these seconds."""
        try:
            given.send(Channel(self.line), seconds)
        finally:
            self.line.settimeout(None)

    def said(self) -> Iterator[dict[str, Any]]:
        """Take what the worker has said since the last call. Raises FrameError at what something else wrote there."""
        for message in messages(self.line_buffer):
            if wrong := [key for key, value in message.items() if type(value) is not _SAID.get(key)]:
                raise FrameError(f"{wrong[0]!r:.40} of another type, or unknown")
            yield message

    def is_halted(self) -> bool:
        """Tell if a signal has stopped it and none has it go on."""
        with contextlib.suppress(OSError):
            return stat_fields(self.clock.pid)[:1] == ["T"]
        return False

    def swarms(self, limit: float) -> bool:
        """Tell if it is past its seconds on the wall and has started so many processes that they starve each other."""
        now = time.monotonic()
        if self.clock.wall < limit or now - self.looked < LOOK_AGAIN:
            return False
        self.looked = now
        return len(below(self.clock.pid)) > SWARM

    def end(self) -> None:
        """Ask the keeper to end it; the leash's end says when nothing is left."""
        if not self.ending:
            self.ending = True
            self.clock.start()
            with contextlib.suppress(OSError):
                self.leash.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.line.close()
        self.leash.close()

    @property
    def closed(self) -> bool:
        return self.line.fileno() < 0

    def verdict(self, seconds: float) -> ScoreResult:
        """Say why the process is gone, in words for a person."""
        output = own_lines(str(self.report.get("output", "")))
        cause = Cause.TIMEOUT if self.late else Cause.CRASH
        words = f"no score after {seconds:g} s" if self.late else _ending(self.report.get("status"))
        return ScoreResult(cause=cause, detail=f"{output}\n{words}" if output else words)


def messages(buffer: bytearray) -> Iterator[dict[str, Any]]:
    """Take the complete messages out of the buffer. Raises FrameError after those before it."""
    return iter(lambda: unpack(buffer, LARGEST), None)


def read_available(connection: socket.socket, buffer: bytearray) -> bool:
    """Add what has come to the buffer without waiting, no more than a message may have; False once the other side is
    gone.
    """
    try:
        while len(buffer) <= LARGEST:
            data = connection.recv(1 << 16, socket.MSG_DONTWAIT)
            if not data:
                return False
            buffer += data
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True


def _ending(status: int | None) -> str:
    if status is None:
        return "the process that scored was ended from outside"
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"ended the process with {ending(code)}"
    return ending(code) + (" (the machine may be out of memory)" if code == -signal.SIGKILL else "")
