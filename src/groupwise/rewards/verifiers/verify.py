"""Whether two mathematical expressions are the same, by math-verify in a child process, each answer within a deadline.

A time limit by SIGALRM holds in the main thread only, and not while C code runs. Here the question is put to another
process; one that is late is killed with its whole process group and replaced.
"""

import logging
import resource
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module

from groupwise.core.channel import Channel
from groupwise.core.children import Child
from groupwise.core.errors import RunError
from groupwise.core.peer import PeerLost
from groupwise.core.task import Starting
from groupwise.rewards.verifiers.hasten import replacements

#: A child that has not said that it is ready after this long never will: seconds. Not part of a question's deadline,
#: and less than a pool's limit for loading, which would say less.
START_SECONDS = 100.0
#: An answer that needs more memory than this fails: bytes of address space.
MEMORY = 4 * 2**30
#: Pairs whose forms the parser meets first here, where no deadline runs.
_WARM = (
    (r"\frac{\sqrt{3}}{2}", r"\{1, x^2\}"),
    ("x^2+2x+1", "(x+1)^2"),
    ("[0,1)", r"\sin x = 1"),
    (r"\frac{2\pi}{3}", r"2^{3}\cdot 4"),
    ("(1,-2)", r"\begin{pmatrix}1\\2\end{pmatrix}"),
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

    def same(self, gold: str, claim: str) -> bool:
        """The child's answer; False where it was late or died, which `tally` tells apart. Raises RunError."""
        with self._lock:
            child = self._running()
            try:
                self._wait_until_ready(child)
                child.send({"question": [gold, claim]}, seconds=self.deadline)
                return child.receive(self.deadline)["answer"]
            except PeerLost as lost:
                self.tally.late += lost.late
                self.tally.died += not lost.late
                child.close()
                self._running()
                return False
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


def prepare() -> Callable[[str, str], bool]:
    """Loads math-verify and gives (gold, claim) -> whether they are equal, both LaTeX or plain text.

    Its own time limits are off: the guard outside holds the deadline.
    Its first parse builds tables for a good part of a second, which is done here and not in a question's time.
    """
    library = import_module("math_verify")
    modules = [import_module(name) for name in ("latex2sympy2_extended.latex2sympy2", "math_verify.grader")]
    for module, name, faster in replacements(*modules):
        setattr(module, name, faster)
    logging.disable(logging.CRITICAL)
    kinds = [library.LatexExtractionConfig(boxed_match_priority=0), library.ExprExtractionConfig()]

    @lru_cache(maxsize=4096)
    def parsed(text: str) -> list[object]:
        return library.parse(f"\\boxed{{{text}}}", kinds, parsing_timeout=None)

    @lru_cache(maxsize=4096)
    def same(gold: str, claim: str) -> bool:
        try:
            return bool(library.verify(parsed(gold), parsed(claim), timeout_seconds=None))
        except (MemoryError, RecursionError, OverflowError):
            return False

    for gold, claim in _WARM:
        same(gold, claim)
    return same


def main(parent: Channel) -> None:
    """Answers questions, pairs of (gold, claim), until the parent is gone."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    same = prepare()
    parent.send({})
    while True:
        gold, claim = parent.receive()["question"]
        parent.send({"answer": same(gold, claim)})


if __name__ == "__main__":
    prepare()
