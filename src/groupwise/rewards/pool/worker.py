"""Process that scores, and the one above it that ends it; the zygote (rewards/zygote.py) makes both.

    run -> zygote -> keeper -> worker

The worker takes jobs, calls rewards, answers with their results. The keeper remembers the last of what the worker
prints, ends everything when the run asks or is gone, and says how the worker ended once nothing of it is left. In a
PID namespace it is the first process: its end is that of all others.
"""

import asyncio
import contextlib
import faulthandler
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple
from functools import partial
from typing import Any

from groupwise.core.channel import Channel, fork, pack
from groupwise.core.code.trace import own_traceback
from groupwise.core.code.user_code import raised
from groupwise.core.errors import GroupwiseError, UsageError
from groupwise.core.processes import codec
from groupwise.core.samples import ScoreResult
from groupwise.core.task import Starts
from groupwise.rewards import isolation
from groupwise.rewards.functions.adapters import ATTEMPTS, Bound, exhausted, fault, list_is_wrong
from groupwise.rewards.functions.form import finisher
from groupwise.rewards.isolation import Isolation
from groupwise.rewards.pool.work import Given
from groupwise.rewards.zygote import make_children

#: Asks the worker where it is, also where C code never comes back: faulthandler answers from the handler itself.
WHERE = signal.SIGUSR1
#: The last bytes of what a worker prints are remembered.
_TAIL = 1 << 14


def main(run: Channel, memory: int, wanted: str | None) -> None:
    """Make a keeper for each pair of sockets (its worker's line, its own leash) that the run sends.

    memory  bytes of address space that a worker may have; 0 for no limit
    wanted  the isolation; None for the strongest that this machine gives
    """
    isolation.yield_to_others()
    outside = isolation.space()
    chosen = Isolation(wanted) if wanted else isolation.find_isolation()
    home = isolation.enter(chosen)

    def begin(_: object, descriptors: Sequence[int]) -> None:
        try:
            run.close()
            if home is not None:
                os.close(home)
            line, leash = (socket.socket(fileno=descriptor) for descriptor in descriptors)
            keep(line, leash, lambda: _scoring(line, memory, outside), alone=home is not None)
        except BaseException as error:
            print(f"rewards: {chosen}: {type(error).__name__}: {error}", file=sys.stderr)

    make_children(run, begin, home)
    os._exit(0)


def keep(line: socket.socket, leash: socket.socket, score: Callable[[], None], alone: bool) -> None:
    """Make a worker, wait until it or the run has had enough, end all that is left of it, say how it ended.

    line   the worker's connection to the run
    leash  this process's: a byte or its end means stop
    score  the worker's life
    alone  this is the first process of a PID namespace, in which all that is left ends with it
    """
    os.setsid()  # the zygote's group ends at once; a keeper ends what it keeps first
    wakened, wakes = os.pipe()
    for end in (wakened, wakes):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD,) if alone else (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    isolation.die_with_parent(signal.SIGKILL if alone else signal.SIGTERM)
    isolation.adopt_orphans()
    output, printed = os.pipe()

    def begin() -> None:
        leash.close()
        os.dup2(printed, 1)  # 0 is /dev/null since the zygote
        os.dup2(printed, 2)
        for end in (output, printed, wakened, wakes):
            os.close(end)
        score()

    child = fork(begin)
    line.close()
    os.close(printed)
    tail, status = _watch(child, leash, output, wakened)
    if not alone:
        isolation.kill_below(child)
    _drain(output, tail)
    with contextlib.suppress(OSError):  # the run has ended before
        leash.sendall(pack({"status": status, "output": tail.decode(errors="replace")}))
    os._exit(0)


def _watch(child: int, leash: socket.socket, output: int, wakened: int) -> tuple[bytearray, int | None]:
    """Wait until the child ends or is to be ended -> the last it printed, and its status if it ended by itself."""
    tail = bytearray()
    watched = [leash.fileno(), output, wakened]
    while True:
        ready, _, _ = select.select(watched, [], [])
        if output in ready and not _drain(output, tail):
            watched.remove(output)
        if wakened in ready:
            numbers = os.read(wakened, 512)
            ended = _reaped()
            if child in ended:
                return tail, ended[child]
            if signal.SIGTERM in numbers:
                return tail, None
        if leash.fileno() in ready:
            ask_where(child)
            _listen(output, tail)
            return tail, None


def _reaped() -> dict[int, int]:
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while (one := os.waitpid(-1, os.WNOHANG))[0]:
            ended[one[0]] = one[1]
    return ended


def ask_where(process: int) -> None:
    """Let the process write where it is; one that has ended meanwhile does not."""
    with contextlib.suppress(OSError):
        os.kill(process, WHERE)


def _listen(output: int, tail: bytearray, seconds: float = 0.1) -> None:
    """Wait a moment for faulthandler to write where the worker was."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and select.select([output], [], [], min(left, 0.03))[0]:
        if not _drain(output, tail):
            return


def _drain(output: int, tail: bytearray) -> bool:
    """Read once what is there; False if nothing will come any more."""
    if not select.select([output], [], [], 0)[0]:
        return True
    data = os.read(output, 1 << 16)
    tail += data
    del tail[:-_TAIL]
    return bool(data)


def _scoring(line: socket.socket, memory: int, outside: str) -> None:
    isolation.die_with_parent()
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.stdout.reconfigure(line_buffering=True)  # pyright: ignore[reportAttributeAccessIssue]
    isolation.bound_resources(memory)
    faulthandler.enable(all_threads=False)
    faulthandler.register(WHERE, all_threads=True)
    sys.argv = [""]
    try:
        Worker(line).serve(lambda: isolation.settle(outside))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(0)
    except BaseException as error:
        print(own_traceback(error), file=sys.stderr)
        os._exit(1)


class Worker:
    """One process's rewards and its line to the run."""

    def __init__(self, line: socket.socket) -> None:
        self.pid = os.getpid()
        self.line = line
        self.rewards: Mapping[str, Any] = {}
        self.bound: dict[str, Bound] = {}
        self.unstarted: dict[str, Starts] = {}
        self.runner = asyncio.Runner()

    def serve(self, settle: Callable[[], None]) -> None:
        """Do jobs until the line is closed. The first message is what there is to score with."""
        number = os.getpid()
        with contextlib.suppress(OSError):
            number = int(os.readlink("/proc/self"))  # where the run sees it: /proc is still the run's
        self.send({"hello": number})
        settle()
        run = Channel(self.line)
        self.rewards = codec.unpack(run.receive()["rewards"])
        while True:
            given = Given.received(run)
            self.send({**self.answer(given.message["kind"], given.message["name"], given.work()), "done": True})

    def send(self, message: dict[str, object]) -> None:
        if os.getpid() != self.pid:
            os._exit(0)  # a copy of this process that a user's function made, come back out of it
        self.line.sendall(pack(message))

    def answer(self, kind: str, name: str, attempts: Sequence[Any]) -> dict[str, object]:
        """Return the last message of a job; results of completions scored one by one go out before it, each at once."""
        try:
            bound = self.bound.get(name) or self.bind(name)
            if kind == "load":
                for attempt in attempts:
                    bound.check(attempt.sample)
                if bound.probe:
                    bound.probe(f"rewards.{name}")
                return {"results": [astuple(ScoreResult(detail=bound.description))]}
            if name in self.unstarted:
                self.unstarted.pop(name).start_inside(partial(self.loading, name))
            for results in bound.score(attempts, finisher(self.runner)):
                if len(results) > 1 and list_is_wrong(results):
                    return {"results": [astuple(results[0])], "failed": True}
                self.send({"results": [astuple(result) for result in results]})
                if any(exhausted(result) for result in results):
                    return {"spent": True}
        except UsageError as error:
            return _broken(error)
        except BaseException as error:  # of a call for many completions; SystemExit is a fault like others
            return {"results": [astuple(fault(error))], "failed": True, "spent": exhausted(fault(error))}
        return {}

    def bind(self, name: str) -> Bound:
        reward = self.rewards[name]
        bind: Callable[[], Bound] | None = getattr(reward, "bind", None)
        with self.loading(name):
            self.bound[name] = bound = bind() if bind else Bound(lambda attempts: reward(attempts), ATTEMPTS, name)
        if bound.starts:
            self.unstarted[name] = bound.starts
        return bound

    @contextlib.contextmanager
    def loading(self, name: str) -> Iterator[None]:
        """Enclose what may take longer than a score, and what goes wrong ends the run: it is no completion's fault."""
        self.send({"loading": name})
        try:
            yield
        except BaseException as error:
            self.send(
                _broken(error if isinstance(error, GroupwiseError) else raised(f"reward {name}", "preparing it", error))
            )
            os._exit(1)
        bound = self.bound[name]
        self.send({"loaded": name, "single": not bound.form.batched and not bound.asynchronous})


def _broken(error: GroupwiseError) -> dict[str, object]:
    notes = "".join(getattr(error, "__notes__", []))
    return {"broken": str(error), "detail": notes, "usage": isinstance(error, UsageError)}
