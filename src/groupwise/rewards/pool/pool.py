"""Rewards beside generation: worker processes with a deadline each, and one result for every completion.

One thread of the run talks to the workers and sleeps in between; the scores themselves take nothing from the run.
"""

import contextlib
import itertools
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from groupwise.core.samples import Attempt, Sample, ScoreResult
from groupwise.rewards.pool.dispatch import Dispatcher
from groupwise.rewards.pool.work import Entry, Limits, Work


class Pool(contextlib.AbstractContextManager["Pool"]):
    """Scores attempts in worker processes. Use it as a context manager, or close it.

    rewards  by name: objects that can be sent to another process (User, TaskScore, any Reward)
    """

    def __init__(self, rewards: Mapping[str, Any], limits: Limits | None = None) -> None:
        self._rewards = dict(rewards)
        self._tickets = itertools.count()
        self._dispatcher = Dispatcher(self._rewards, limits or Limits())
        self._end = weakref.finalize(self, self._dispatcher.close)

    def submit(self, name: str, attempts: Sequence[Work]) -> list[int]:
        """Hand attempts or turns of episodes over and return at once, with a ticket for each. Give those of one group
        together.
        """
        if name not in self._rewards:
            raise KeyError(name)
        return self._dispatcher.put([Entry(next(self._tickets), name, attempt) for attempt in attempts])

    def wait(self, tickets: Sequence[int]) -> list[ScoreResult]:
        """Return the results for these tickets, once all are there. Each ticket is good for one wait.

        Raises UsageError where a reward cannot be loaded or called, RunError where the processes cannot be started.
        """
        return self._dispatcher.wait(tickets)

    def play(self, name: str, begin: Callable[[], Work], then: Callable[[Future[ScoreResult]], None]) -> None:
        """Have a session played, in place of a submit and a wait.

        begin  makes the session, each time that a process is given it
        then   has its result when it is there; both are called in a thread of the pool's
        """
        with self._dispatcher.lock:
            (ticket,) = self._dispatcher.put([Entry(next(self._tickets), name, None, begin=begin)])
            future = self._dispatcher.futures[ticket]
        future.add_done_callback(lambda done: self._dispatcher.futures.pop(ticket))
        future.add_done_callback(then)

    @property
    def seconds(self) -> float:
        """Seconds that the workers have spent on scoring so far, all together, waiting for a core not counted."""
        return self._dispatcher.spent

    def check(self, samples: Sequence[Sample] = ()) -> dict[str, str]:
        """Load every reward in a worker: its form in words, by name. Raises UsageError where that cannot be done.

        samples   rows whose columns the rewards must be able to take their parameters from
        """
        rows = tuple(Attempt(sample, "") for sample in samples)
        entries = [Entry(next(self._tickets), name, None, rows) for name in self._rewards]
        results = self.wait(self._dispatcher.put(entries))
        return {name: result.detail for name, result in zip(self._rewards, results, strict=True)}

    def close(self) -> None:
        """End every process of the pool, and return when none is left."""
        self._end()

    def __exit__(self, *_: object) -> None:
        self.close()
