"""Wall time by phase: at every moment exactly one phase runs, so phases add up to the whole by construction."""

from __future__ import annotations

import time

#: Phases that are no part of a step: everything before the first one, and what an earlier process did in vain.
START, LOST = "start", "lost"
BEFORE = (START, LOST)


class Clock:
    """`switch(phase)` ends one phase and begins the next; `lap()` hands out the seconds since the last lap."""

    def __init__(self, phase: str = "other") -> None:
        self.started = self._since = time.perf_counter()
        self.phase = phase
        self._seconds: dict[str, float] = {}

    def switch(self, phase: str) -> None:
        now = time.perf_counter()
        self._seconds[self.phase] = self._seconds.get(self.phase, 0.0) + now - self._since
        self.phase, self._since = phase, now

    def add(self, phase: str, seconds: float) -> None:
        """Seconds of a process before this one, which no lap has handed out."""
        self._seconds[phase] = self._seconds.get(phase, 0.0) + seconds

    def lap(self) -> dict[str, float]:
        """Seconds by phase since the last lap; the phase that runs goes on as "other"."""
        self.switch("other")
        seconds, self._seconds = self._seconds, {}
        return {phase: round(value, 6) for phase, value in seconds.items()}

    @property
    def total(self) -> float:
        """Seconds since the clock was made."""
        return time.perf_counter() - self.started
