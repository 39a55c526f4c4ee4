"""Wall time by phase: at every moment exactly one phase runs, so phases add up to the whole by construction."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

#: Phases that are no part of a step: everything before the first one, and what an earlier process did in vain.
START, LOST = "start", "lost"
BEFORE = (START, LOST)


class Extent(NamedTuple):
    """Extent of a phase, from its first moment to its last, in seconds of time.perf_counter."""

    begin: float
    end: float


class Clock:
    """`with clock.phase(name)` is one phase; `lap()` hands out the seconds by phase since the last lap.

    `switch(name)` ends the phase that runs and begins another, where a phase is no block of code.
    """

    def __init__(self, phase: str = "other") -> None:
        self.started = self._since = time.perf_counter()
        self.current = phase
        self._seconds: dict[str, float] = {}
        self._extents: dict[str, Extent] = {}

    def switch(self, phase: str) -> None:
        now = time.perf_counter()
        self._seconds[self.current] = self._seconds.get(self.current, 0.0) + now - self._since
        begin = self._extents[self.current].begin if self.current in self._extents else self._since
        self._extents[self.current] = Extent(begin, now)
        self.current, self._since = phase, now

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what runs inside as this phase; afterwards the phase of before goes on."""
        before = self.current
        self.switch(name)
        try:
            yield
        finally:
            self.switch(before)

    def add(self, phase: str, seconds: float) -> None:
        """Add seconds of a process before this one, which no lap has handed out."""
        self._seconds[phase] = self._seconds.get(phase, 0.0) + seconds

    def lap(self) -> dict[str, float]:
        """Hand out the seconds by phase since the last lap; the phase that runs goes on as "other"."""
        self.switch("other")
        seconds, self._seconds = self._seconds, {}
        return {phase: round(value, 6) for phase, value in seconds.items()}

    def take_extents(self) -> Mapping[str, Extent]:
        """Say when each phase ran since this was asked before."""
        self.switch(self.current)
        extents, self._extents = self._extents, {}
        return extents

    @property
    def total(self) -> float:
        """Seconds since the clock was made."""
        return time.perf_counter() - self.started
