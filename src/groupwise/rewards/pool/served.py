"""A pool in a process elsewhere: what runs there. It scores with processes of its own until the run is gone."""

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import astuple
from typing import Any

from groupwise.core.channel import Channel, FrameError
from groupwise.core.errors import GroupwiseError, RunError, UsageError, one_line
from groupwise.core.processes import parcel
from groupwise.rewards.pool.given import Given
from groupwise.rewards.pool.isolate import Isolation
from groupwise.rewards.pool.pool import Pool
from groupwise.rewards.pool.work import Limits

#: Seconds between two signs of life.
BEAT = 1.0


def main(run: Channel) -> None:
    """Serves the run at the other end of the channel."""
    first = run.receive()
    limits, isolation = first["limits"], first["limits"]["isolation"]
    serving = Serving(run, Limits(**{**limits, "isolation": isolation and Isolation(isolation)}), first["rewards"])
    threading.Thread(target=serving.beat, daemon=True).start()
    try:
        serving.serve()
    except (EOFError, OSError, FrameError):  # the run is gone
        serving.close()
        os._exit(0)


class Serving:
    """A pool and its line to the run.

    rewards  by name, packed by the run
    """

    def __init__(self, run: Channel, limits: Limits, rewards: Any) -> None:
        self._run, self._sending = run, threading.Lock()
        self._tickets: dict[int, int] = {}  # the run's -> the pool's
        self._error: GroupwiseError | None = None
        self._pool: Pool | None = None
        try:
            self._pool = Pool(parcel.unpack(rewards), limits)
        except Exception as error:  # whatever is missing here that the run has
            words = f"{type(error).__name__}: {one_line(error)}"
            self._error = UsageError(f"rewards: one of them cannot be loaded where it is to score: {words}")

    def serve(self) -> None:
        """Takes what is to be scored, and answers each question from a thread of its own."""
        while True:
            given = Given.received(self._run)
            if "submit" in given.message:
                self._submit(given)
            else:
                threading.Thread(target=self._answer, args=(given,), daemon=True).start()

    def beat(self) -> None:
        """Says that the process lives, until the run is gone."""
        while self._send({"alive": True}):
            time.sleep(BEAT)

    def close(self) -> None:
        """Ends the processes that score."""
        if self._pool is not None:
            self._pool.close()

    def _submit(self, given: Given) -> None:
        try:
            tickets = self._ready.submit(given.message["name"], given.work())
        except Exception as error:
            self._error = _as_ours(error)  # every question is answered with it
        else:
            self._tickets |= zip(given.message["submit"], tickets, strict=True)

    def _answer(self, given: Given) -> None:
        question = given.message
        try:
            if "check" in question:
                content: dict[str, Any] = {"forms": self._ready.check([one.sample for one in given.work()])}
            else:
                results = self._ready.wait([self._tickets.pop(ticket) for ticket in question["wait"]])
                content = {"results": [astuple(result) for result in results]}
        except Exception as error:
            ours = _as_ours(error)
            notes = getattr(ours, "__notes__", [])
            content = {"error": {"message": str(ours), "usage": isinstance(ours, UsageError), "notes": notes}}
        self._send({"answer": question["number"], **content, "spent": self._pool.seconds if self._pool else 0.0})

    @property
    def _ready(self) -> Pool:
        if self._error is not None or self._pool is None:
            raise self._error or AssertionError
        return self._pool

    def _send(self, message: Mapping[str, Any]) -> bool:
        """Whether it was sent; where not, the run is gone."""
        try:
            with self._sending:
                self._run.send(message)
        except OSError:
            return False
        return True


def _as_ours(error: Exception) -> GroupwiseError:
    """The error as one that the run can raise: whatever it is, whoever waits for an answer gets one."""
    if isinstance(error, GroupwiseError):
        return error
    return RunError(f"rewards: in the process that scores: {type(error).__name__}: {one_line(error)}")
