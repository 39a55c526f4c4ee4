"""A child process that answers questions one at a time, each within a deadline, from any thread.

A time limit by SIGALRM holds in the main thread only, and not while C code runs. Here the question is put to another
process; one that is late is killed with its whole process group and replaced.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass, field

from groupwise.core.children import Child, ChildLost
from groupwise.core.errors import RunError, UsageError

#: A child that has not said that it is ready after this long never will: seconds. Not part of a question's deadline.
START_SECONDS = 120.0


@dataclass
class Tally:
    """How questions ended: answered, too late, or with the end of the child (a crash, or out of memory)."""

    answered: int = 0
    late: int = 0
    died: int = 0


@dataclass(eq=False, repr=False)
class Guard:
    """Questions to one persistent child, which starts at the first question.

    module    what the child runs; its `main` sends {} once it is ready, or {"lacks": what is missing}, and answers
              each {"question": value} with {"answer": value}
    deadline  seconds for one answer

    A copy, also one that is sent to another process or made by a fork, starts a child of its own.
    """

    module: str
    deadline: float
    tally: Tally = field(default_factory=Tally)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _child: Child | None = None
    _ready: bool = False

    def __reduce__(self) -> tuple[type[Guard], tuple[str, float]]:
        return Guard, (self.module, self.deadline)

    def start(self) -> None:
        """Starts the child without waiting for it, so that the first question need not."""
        with self._lock:
            self._running()

    def ask(self, question: object) -> object | None:
        """The child's answer; None where it was late or died, which `tally` tells apart. UsageError, RunError."""
        with self._lock:
            child = self._running()
            try:
                self._wait_until_ready(child)
                child.send({"question": question}, seconds=self.deadline)
                answer = child.receive(self.deadline)["answer"]
            except ChildLost as lost:
                self.tally.late += lost.late
                self.tally.died += not lost.late
                self._end(child)
                self._running()
                return None
            except BaseException:
                self._end(child)  # an interrupt in between: its answer would be taken for the next question's
                raise
            self.tally.answered += 1
            return answer

    def _running(self) -> Child:
        if self._child is None or self._child.closed:
            self._child, self._ready = Child(self.module), False
        return self._child

    def _end(self, child: Child) -> None:
        child.close()
        self._child = None

    def _wait_until_ready(self, child: Child) -> None:
        if self._ready:
            return
        try:
            greeting = child.receive(START_SECONDS)
        except ChildLost:
            raise RunError(
                f"the process that checks answers did not start ({sys.executable} -m {self.module}): "
                f"run this command by hand to see why"
            ) from None
        if "lacks" in greeting:
            raise UsageError(greeting["lacks"])
        self._ready = True
