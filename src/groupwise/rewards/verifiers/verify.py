"""Questions about expressions (`symbolic`) put to a child process, each answered within a deadline.

A time limit by SIGALRM holds in the main thread only, and not while C code runs. Here the question is put to another
process; one that is late is killed with its whole process group and replaced.
"""

import resource
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache

from groupwise.core.channel import Channel
from groupwise.core.errors import RunError
from groupwise.core.peer import PeerLost
from groupwise.core.processes.children import Child
from groupwise.core.task import Starting
from groupwise.rewards.verifiers.symbolic import QUESTIONS

#: A child that has not said that it is ready after this long never will: seconds. Not part of a question's deadline,
#: and less than a pool's limit for loading, which would say less.
START_SECONDS = 100.0
#: An answer that needs more memory than this fails: bytes of address space.
MEMORY = 4 * 2**30
#: Questions whose forms sympy meets first here, where no deadline runs.
_WARM = (
    ("value", r"\frac{\sqrt{3}}{2}", r"\sin(\frac{\pi}{3})"),
    ("value", "x^{2}+2x+1", "(x+1)^{2}"),
    ("multiple", "e^{x}", "y", "y-e^{x}", "0"),
)


@dataclass
class Tally:
    """How many questions had no answer: too late, or with the end of the child (a crash, or out of memory)."""

    late: int = 0
    died: int = 0


@dataclass(eq=False, repr=False)
class Guard:
    """Questions from any thread to one persistent child, this module's `main`, which starts at the first question.

    deadline  seconds for one answer
    starting  entered while the child gets ready

    A copy, also one that is sent to another process or made by a fork, starts a child of its own.
    """

    deadline: float
    tally: Tally = field(default_factory=Tally)
    starting: Starting = nullcontext
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _child: Child | None = None
    _ready: bool = False

    def __reduce__(self) -> tuple[object, ...]:
        return Guard, (self.deadline,)

    def start(self) -> None:
        """Starts the child without waiting for it, so that the first question need not."""
        with self._lock:
            self._running()

    def ask(self, *question: str, seconds: float) -> tuple[bool | int, float]:
        """The child's answer, and the seconds that it took; False where it was late or died, which `tally` tells apart.

        Neither the start of the child nor the questions of other threads count. Raises RunError.
        """
        with self._lock:
            child = self._running()
            try:
                self._wait_until_ready(child)
                begin = time.monotonic()
                child.send({"question": question}, seconds=seconds)
                return child.receive(seconds)["answer"], time.monotonic() - begin
            except PeerLost as lost:
                self.tally.late += lost.late
                self.tally.died += not lost.late
                child.close()
                self._running()
                return False, seconds
            except BaseException:
                child.close()  # an interrupt in between: its answer would be taken for the next question's
                raise

    def _running(self) -> Child:
        if self._child is None or self._child.closed:
            self._child, self._ready = Child(__name__), False
        return self._child

    def _wait_until_ready(self, child: Child) -> None:
        if self._ready:
            return
        try:
            with self.starting():
                child.receive(START_SECONDS)
        except PeerLost:
            raise RunError(
                f"the process that checks answers did not start ({sys.executable} -m {__name__}): "
                f"run this command by hand to see why"
            ) from None
        self._ready = True


def prepare() -> Callable[..., bool | int]:
    """Loads sympy and gives the function that answers questions."""

    @lru_cache(maxsize=4096)
    def answer(kind: str, *texts: str) -> bool | int:
        try:
            return QUESTIONS[kind](*texts)
        except (ArithmeticError, MemoryError, NotImplementedError, RecursionError, TypeError, ValueError):
            return False

    for question in _WARM:
        answer(*question)
    return answer


def main(parent: Channel) -> None:
    """Answers questions until the parent is gone."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answer = prepare()
    parent.send({})
    while True:
        parent.send({"answer": answer(*parent.receive()["question"])})


if __name__ == "__main__":
    prepare()
