"""Rewards beside generation: worker processes with a deadline each, and one mark for every completion.

One thread of the run talks to the workers and sleeps in between; the scores themselves take nothing from the run.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from groupwise.core.errors import RunError, UsageError
from groupwise.core.reward import Mark
from groupwise.core.samples import Attempt, Sample
from groupwise.rewards.pool.dispatch import Dispatcher, Entry, Limits
from groupwise.rewards.pool.isolate import Walls


class Pool:
    """Scores attempts in worker processes. Use it as a context manager, or close it.

    rewards   by name: objects that can be sent to another process (User, TaskScore, any Reward)
    workers   processes; they start with the first submit
    seconds   for one completion, or for one call of a reward that takes many at once
    memory    bytes of address space a worker may have; 0 for no limit
    yielding  whether workers run only where no other process wants the core
    preload   modules that every worker finds already imported
    load      seconds that loading a user's code may take
    walls     what keeps a worker's processes together; None for the strongest that this machine gives
    """

    def __init__(
        self,
        rewards: Mapping[str, Any],
        workers: int = 2,
        seconds: float = 10.0,
        memory: int = 4 << 30,
        yielding: bool = True,
        preload: Sequence[str] = (),
        load: float = 120.0,
        walls: Walls | None = None,
    ) -> None:
        if workers < 1 or seconds <= 0 or load <= 0 or memory < 0:
            raise UsageError("rewards: workers must be 1 or more, seconds above 0 and memory 0 (no limit) or more")
        self._rewards = dict(rewards)
        self._next = 0
        self._lock = threading.Lock()
        limits = Limits(workers, seconds, load, memory, yielding, tuple(preload), walls)
        self._dispatcher = Dispatcher(self._rewards, limits)
        self._end = weakref.finalize(self, self._dispatcher.close)

    def submit(self, name: str, attempts: Sequence[Attempt]) -> list[int]:
        """Hands attempts over and returns at once, with a ticket for each. Give those of one group together."""
        return self._put([Entry(ticket, name, attempt) for ticket, attempt in self._numbered(name, attempts)])

    def wait(self, tickets: Sequence[int]) -> list[Mark]:
        """The marks for these tickets, once all are there. Each ticket is good for one wait.

        Raises UsageError where a reward cannot be loaded or called, RunError where the processes cannot be had.
        """
        return self._dispatcher.wait(tickets)

    @property
    def seconds(self) -> float:
        """What the workers have spent on scoring so far, all together, waiting for a core not counted."""
        return self._dispatcher.spent

    def score(self, name: str, attempts: Sequence[Attempt]) -> list[Mark]:
        """Submit and wait."""
        return self.wait(self.submit(name, attempts))

    def check(self, samples: Sequence[Sample] = ()) -> dict[str, str]:
        """Loads every reward in a worker: its form in words, by name. Raises UsageError where that cannot be done.

        samples   rows whose columns the rewards must be able to take their parameters from
        """
        tickets = {}
        for name in self._rewards:
            ((ticket, _),) = self._numbered(name, [None])
            rows = tuple(Attempt(sample, "") for sample in samples)
            tickets[name] = self._put([Entry(ticket, name, None, rows)])
        return {name: self.wait(ticket)[0].detail for name, ticket in tickets.items()}

    def close(self) -> None:
        """Ends every process of the pool; returns when none is left."""
        self._end()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _numbered(self, name: str, items: Sequence[Any]) -> list[tuple[int, Any]]:
        if name not in self._rewards:
            raise KeyError(name)
        with self._lock:
            first, self._next = self._next, self._next + len(items)
        return list(enumerate(items, first))

    def _put(self, entries: list[Entry]) -> list[int]:
        if not self._end.alive:
            raise RunError("rewards: the pool is closed")
        self._dispatcher.put(entries)
        return [entry.ticket for entry in entries]
