"""The process that scores: it takes jobs, calls rewards, answers with their results."""

import asyncio
import contextlib
import faulthandler
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple
from functools import partial
from typing import Any

from groupwise.core.channel import Channel, pack
from groupwise.core.code.trace import own_traceback
from groupwise.core.code.user_code import raised
from groupwise.core.errors import GroupwiseError, UsageError
from groupwise.core.processes import parcel
from groupwise.core.reward import ScoreResult
from groupwise.core.task import Starts
from groupwise.rewards.functions.adapters import ATTEMPTS, Bound, fault
from groupwise.rewards.functions.results import exhausted, list_is_wrong
from groupwise.rewards.functions.user import finisher
from groupwise.rewards.pool.given import Given

#: Asks this process where it is, also where C code never comes back: faulthandler answers from the handler itself.
WHERE = signal.SIGUSR1


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
        """Jobs until the line is closed. The first message is what there is to score with."""
        self.send({"hello": _outer_pid()})
        settle()
        run = Channel(self.line)
        self.rewards = parcel.unpack(run.receive()["rewards"])
        while True:
            given = Given.received(run)
            self.send({**self.answer(given.message["kind"], given.message["name"], given.work()), "done": True})

    def send(self, message: dict[str, object]) -> None:
        if os.getpid() != self.pid:
            os._exit(0)  # a copy of this process that a user's function made, come back out of it
        self.line.sendall(pack(message))

    def answer(self, kind: str, name: str, attempts: Sequence[Any]) -> dict[str, object]:
        """The last message of a job; results of completions scored one by one go out before it, each at once."""
        try:
            bound = self.bound.get(name) or self.bind(name)
            if kind == "load":
                for attempt in attempts:
                    bound.check(attempt.sample)
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
        """The reward, loaded."""
        reward = self.rewards[name]
        bind: Callable[[], Bound] | None = getattr(reward, "bind", None)
        with self.loading(name):
            self.bound[name] = bound = bind() if bind else Bound(lambda attempts: reward(attempts), ATTEMPTS, name)
        if bound.starts:
            self.unstarted[name] = bound.starts
        return bound

    @contextlib.contextmanager
    def loading(self, name: str) -> Iterator[None]:
        """Around what may take longer than a score. What goes wrong in it is no completion's fault and ends the run."""
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


def _outer_pid() -> int:
    """This process's number where the run sees it: /proc is still the run's."""
    with contextlib.suppress(OSError):
        return int(os.readlink("/proc/self"))
    return os.getpid()


def score(line: socket.socket, settle: Callable[[], None]) -> None:
    """The life of a worker process; it ends when the run closes the line. `settle` is called after the hello."""
    faulthandler.enable(all_threads=False)
    faulthandler.register(WHERE, all_threads=True)
    sys.argv = [""]
    try:
        Worker(line).serve(settle)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(0)
    except BaseException as error:
        print(own_traceback(error), file=sys.stderr)
        os._exit(1)
