"""Process that makes others by fork, in milliseconds: those that score (pool), or run programs (sandbox).

    run -> zygote -> child

A zygote is small: it has no code of a user's and no thread, and never sees what its children are given, so nothing of
one job is in the memory that the next is forked from. What it prepares before, and what a child does, is said by the
module that it runs, whose `main` ends in `make_children`. Its orders come over one channel:

    {"spawn": number, "told": anything, "answer": bool} with descriptors  ->  {} where an answer is asked for
    {"reap": number, "patience": seconds}  ->  {"status": s, "cpu": seconds, "killed": bool}

A zygote that is lost takes its children with it: each has asked the kernel for that.
"""

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from groupwise.core.channel import Channel, serve
from groupwise.core.errors import RunError
from groupwise.core.processes.children import Child
from groupwise.rewards.isolation import born

#: Seconds in which an order is obeyed, the patience of one that has some apart.
ORDER = 20.0
#: Descriptors that a child may be given.
_MOST_DESCRIPTORS = 4
_LOOK = 0.0005  # seconds between two looks at a child that is about to end


class Ended(NamedTuple):
    """End of a child.

    code    its exit code; negative: the signal
    cpu     its processor time, seconds
    killed  whether it was killed because it went on
    """

    code: int
    cpu: float
    killed: bool


class Zygote(Child):
    """A running zygote, asked from any thread.

    refusal  how the message of a RunError begins where it cannot obey
    how      as for Child

    Its orders raise PeerLost where it is lost.
    """

    def __init__(self, module: str, options: Mapping[str, Any], refusal: str, **how: Any) -> None:
        super().__init__(module, options, **how)
        self._refusal, self._turn, self._numbers = refusal, threading.Lock(), itertools.count()

    def spawn(self, told: Any, descriptors: Sequence[int], wait: bool = True) -> int:
        """Make a child that gets these descriptors -> its number, for `reap`.

        wait  False: return before it is made, so that a zygote which hangs keeps nobody
        """
        number = next(self._numbers)
        self._order({"spawn": number, "told": told, "answer": wait}, descriptors, wait)
        return number

    def reap(self, number: int, patience: float = 0.0) -> Ended:
        """Kill a child that does not end by itself within `patience` seconds, and say how it ended."""
        reply = self._order({"reap": number, "patience": patience})
        return Ended(os.waitstatus_to_exitcode(reply["status"]), float(reply["cpu"]), bool(reply["killed"]))

    def _order(self, order: dict[str, Any], descriptors: Sequence[int] = (), wait: bool = True) -> dict[str, Any]:
        with self._turn:
            self.send(order, descriptors, ORDER)
            reply = self.receive(ORDER) if wait else {}
        if "failed" in reply:
            raise RunError(f"{self._refusal}: {reply['failed']}")
        return reply


def make_children(run: Channel, begin: Callable[[Any, Sequence[int]], object], home: int | None) -> None:
    """Obey the orders of the run until it is gone.

    begin  (what the child is told, its descriptors) -> its whole life
    home   the PID namespace of this process if each child is the first of its own, as a descriptor
    """
    children: dict[int, int] = {}

    def obey(order: dict[str, Any], descriptors: list[int]) -> dict[str, Any] | None:
        try:
            if "reap" in order:
                if order["reap"] not in children:
                    raise ChildProcessError("it was never made")
                return _reap(children.pop(order["reap"]), order["patience"])
            children[order["spawn"]] = born(lambda: begin(order["told"], descriptors), home)
            return {} if order["answer"] else None
        except OSError as error:
            if not order.get("answer", True):
                raise  # nobody would hear of it: whoever ordered sees that the zygote has ended
            return {"failed": str(error)}

    serve(run, _MOST_DESCRIPTORS, obey)


def _reap(process: int, patience: float) -> dict[str, Any]:
    until, ended = time.monotonic() + patience, os.wait4(process, os.WNOHANG)
    while ended[0] == 0 and time.monotonic() < until:
        time.sleep(_LOOK)
        ended = os.wait4(process, os.WNOHANG)
    killed = ended[0] == 0
    for kill in (os.killpg, os.kill) if killed else ():
        try:
            kill(process, signal.SIGKILL)
        except ProcessLookupError:  # it has no group yet
            continue
    _, status, usage = os.wait4(process, 0) if killed else ended
    return {"status": status, "cpu": usage.ru_utime + usage.ru_stime, "killed": killed}
