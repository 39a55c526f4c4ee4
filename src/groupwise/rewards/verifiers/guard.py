"""A child process that answers questions one at a time, each within a deadline, from any thread.

A time limit by SIGALRM holds in the main thread only, and not while C code runs. Here the question is put to another
process; one that is late is killed with its whole process group and replaced. The child dies with its parent, also when
the parent is killed: the kernel signals it when the last writer of its lifeline is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import dataclass, field

from groupwise.core.errors import RunError, UsageError

#: A child that has not said that it is ready after this long never will: seconds. Not part of a question's deadline.
START_SECONDS = 120.0


class Late(Exception):
    """No answer before the deadline."""


class Died(Exception):
    """The child ended while it was asked."""


@dataclass
class Tally:
    """How questions ended: answered, too late, or with the end of the child (a crash, or out of memory)."""

    answered: int = 0
    late: int = 0
    died: int = 0


@dataclass(eq=False, repr=False)
class Guard:
    """Questions to one persistent child: `python -m module`, JSON lines in and out. It starts at the first question.

    module    what the child runs: `groupwise.rewards.verifiers.child.serve` with a function of its own
    deadline  seconds for one answer

    A copy, also one that is sent to another process or made by a fork, starts a child of its own.
    """

    module: str
    deadline: float
    tally: Tally = field(default_factory=Tally)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _child: _Child | None = None

    def __reduce__(self) -> tuple[type[Guard], tuple[str, float]]:
        return Guard, (self.module, self.deadline)

    def start(self) -> None:
        """Starts the child without waiting for it, so that the first question need not."""
        with self._lock:
            self._ready()

    def ask(self, question: object) -> object | None:
        """The child's answer; None where it was late or died, which `tally` tells apart. UsageError, RunError."""
        line = json.dumps(question).encode() + b"\n"
        with self._lock:
            child = self._ready()
            try:
                child.wait_ready()
                answer = child.ask(line, self.deadline)
            except (Late, Died) as ended:
                self.tally.late += isinstance(ended, Late)
                self.tally.died += isinstance(ended, Died)
                child.kill()
                self._child = _Child(self.module)
                return None
            except BaseException:
                child.kill()  # an interrupt in between: its answer would be taken for the next question's
                self._child = None
                raise
            self.tally.answered += 1
            return answer

    def _ready(self) -> _Child:
        if self._child is None or not self._child.mine():
            self._child = _Child(self.module)
        return self._child


class _Child:
    """One child process and its pipes."""

    def __init__(self, module: str) -> None:
        lifeline, self._held = os.pipe()
        self._command = [sys.executable, "-m", module, str(lifeline)]
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        try:
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                start_new_session=True,
                pass_fds=(lifeline,),
                env={**os.environ, "PYTHONPATH": path},
            )
        finally:
            os.close(lifeline)
        self._owner = os.getpid()
        self._greeted = False
        self._rest = b""
        self.kill = weakref.finalize(self, _end, self.process, self._held, self._owner)

    def mine(self) -> bool:
        """False in a fork of the process that started it."""
        return self._owner == os.getpid()

    def wait_ready(self) -> None:
        """Waits for the child's first line: that it is ready, or what it lacks."""
        if self._greeted:
            return
        try:
            told = self._line(START_SECONDS)
        except (Late, Died):
            raise RunError(
                f"the process that checks answers did not start ({' '.join(self._command)}): "
                f"run this command by hand to see why"
            ) from None
        if told is not None:
            raise UsageError(str(told))
        self._greeted = True

    def ask(self, line: bytes, deadline: float) -> object:
        try:
            self._stdin().write(line)
        except OSError:
            raise Died from None
        return self._line(deadline)

    def _line(self, seconds: float) -> object:
        end = time.monotonic() + seconds
        stdout = self.process.stdout
        assert stdout is not None
        poll = select.poll()
        poll.register(stdout, select.POLLIN)
        while b"\n" not in self._rest:
            left = end - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                raise Late
            got = os.read(stdout.fileno(), 65536)
            if not got:
                raise Died
            self._rest += got
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    def _stdin(self):
        assert self.process.stdin is not None
        return self.process.stdin


def _end(process: subprocess.Popen[bytes], held: int, owner: int) -> None:
    if owner == os.getpid():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    os.close(held)
