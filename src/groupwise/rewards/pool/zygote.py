"""The process that makes workers: small, without a user's code or threads, so that a new one takes milliseconds.

    run -> zygote -> keeper -> (first of the namespace) -> worker

The keeper stands outside the namespace: it keeps the last of what the worker prints, ends everything when the run asks
or is gone, and says how the worker ended once nothing of it is left.
"""

import contextlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence

from groupwise.core.channel import Channel, fork, pack, serve
from groupwise.rewards import system
from groupwise.rewards.pool import isolate, worker
from groupwise.rewards.pool.isolate import Isolation

#: The last bytes of what a worker prints are remembered.
_TAIL = 1 << 14


def main(run: Channel, memory: int, isolation: str | None) -> None:
    """Forks a keeper for each pair of sockets that the run sends. The options are fields of work.Limits."""
    isolate.yield_to_others()
    outside = isolate.space()
    chosen = Isolation(isolation) if isolation else isolate.find_isolation()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    def make(_: object, descriptors: Sequence[int]) -> None:
        fork(lambda: _guarded(run, descriptors, memory, chosen, outside))

    serve(run, 2, make)
    os._exit(0)


def _guarded(run: Channel, descriptors: Sequence[int], memory: int, isolation: Isolation, outside: str) -> None:
    try:
        run.close()
        os.setsid()  # the zygote's group ends at once; a keeper ends what it keeps first
        jobs, leash = (socket.socket(fileno=descriptor) for descriptor in descriptors)
        keep(jobs, leash, memory, isolation, outside)
    except BaseException as error:
        print(f"rewards: {isolation}: {type(error).__name__}: {error}", file=sys.stderr)


def keep(jobs: socket.socket, leash: socket.socket, memory: int, isolation: Isolation, outside: str) -> None:
    """Makes a worker, waits until it or the run has had enough, ends all that is left of it, says how it ended.

    jobs     the worker's line to the run
    leash    the run's line to this process: a byte or its end means stop
    memory   bytes of address space that the worker may have; 0 for no limit
    outside  the process namespace of the run
    """
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: None)
    wakened, wakes = os.pipe()
    for end in (wakened, wakes):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    spaced = isolation in (Isolation.NAMESPACE, Isolation.USER_NAMESPACE)
    system.die_with_parent(signal.SIGKILL if spaced else signal.SIGTERM)
    system.adopt_orphans()
    isolate.enter(isolation)
    output, printed = os.pipe()
    status_there, status_here = os.pipe()
    child = os.fork()
    if child == 0:
        leash.close()
        for end in (output, status_there, wakened, wakes):
            os.close(end)
        (_first if spaced else _scoring)(jobs, printed, status_here, memory, outside)
    jobs.close()
    os.close(printed)
    os.close(status_here)
    tail, status = _watch(child, leash, output, wakened)
    if spaced:
        with contextlib.suppress(OSError):
            os.kill(child, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)
        data = os.read(status_there, 4)  # its only writer has ended
        status = int.from_bytes(data, "big") if data else None
    else:
        isolate.kill_below(child)
    _drain(output, tail)
    with contextlib.suppress(OSError):
        leash.sendall(pack({"status": status, "output": tail.decode(errors="replace")}))
    os._exit(0)


def _watch(child: int, leash: socket.socket, output: int, wakened: int) -> tuple[bytearray, int | None]:
    """Until the child ends or is to be ended: the last it printed, and its status where it ended by itself."""
    tail = bytearray()
    watched = [leash.fileno(), output, wakened]
    while True:
        ready, _, _ = select.select(watched, [], [])
        if output in ready and not _drain(output, tail):
            watched.remove(output)
        if wakened in ready:
            numbers = os.read(wakened, 512)
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return tail, status
            if signal.SIGTERM in numbers:
                return tail, None
        if leash.fileno() in ready:
            _ask_where(child)
            _listen(output, tail)
            return tail, None


def _ask_where(process: int) -> None:
    """The process writes where it is; one that has ended meanwhile does not."""
    with contextlib.suppress(OSError):
        os.kill(process, worker.WHERE)


def _listen(output: int, tail: bytearray, seconds: float = 0.1) -> None:
    """A moment for faulthandler to write where the worker was."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and select.select([output], [], [], min(left, 0.03))[0]:
        if not _drain(output, tail):
            return


def _drain(output: int, tail: bytearray) -> bool:
    """Reads once what is there; False where nothing will come any more."""
    if not select.select([output], [], [], 0)[0]:
        return True
    data = os.read(output, 1 << 16)
    tail += data
    del tail[:-_TAIL]
    return bool(data)


def _first(jobs: socket.socket, printed: int, status_here: int, memory: int, outside: str) -> None:
    """The first process of a namespace: reaps what is orphaned, ends with the worker, and the namespace with it."""
    system.die_with_parent()
    signal.set_wakeup_fd(-1)
    scoring = os.fork()
    if scoring == 0:
        os.close(status_here)
        _scoring(jobs, printed, -1, memory, outside)
    jobs.close()
    os.close(printed)
    signal.signal(worker.WHERE, lambda *_: _ask_where(scoring))
    while True:
        ended, status = os.wait()
        if ended == scoring:
            with contextlib.suppress(BrokenPipeError):  # the keeper has ended before, and the run with it
                os.write(status_here, status.to_bytes(4, "big"))
            os._exit(0)


def _scoring(jobs: socket.socket, printed: int, _status_here: int, memory: int, outside: str) -> None:
    system.die_with_parent()
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.dup2(printed, 1)  # 0 is /dev/null since the zygote
    os.dup2(printed, 2)
    os.close(printed)
    sys.stdout.reconfigure(line_buffering=True)  # pyright: ignore[reportAttributeAccessIssue]
    isolate.bound_resources(memory)
    worker.score(jobs, lambda: isolate.settle(outside))
