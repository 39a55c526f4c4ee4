"""Cores of this process that other work holds, and so the threads that it should take.

Threads that share a core with other work wait for each other at every barrier: a step of two threads beside one busy
process takes five to ten times as long as with one thread.
"""

import math
import os
import time
from collections.abc import Collection

#: Where Linux counts the time of every core, in ticks of which each second has TICKS.
STAT = "/proc/stat"
TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
#: Of a line of STAT: the columns in which a core does nothing, idle and iowait; the last two are part of others.
_IDLE, _COUNTED = (3, 4), 8


def cores() -> int:
    """Return how many cores this process may use."""
    return len(_own_cores())


def held_cores(seconds: float = 0.3) -> float:
    """Measure the cores of this process that others keep busy, a mean over so many seconds; 0.0 if nothing says it."""
    before, own = busy_seconds(_stat(), _own_cores()), time.process_time()
    started = time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - started
    busy = busy_seconds(_stat(), _own_cores()) - before - (time.process_time() - own)
    return max(0.0, busy / passed)


def busy_seconds(stat: str, own: Collection[int]) -> float:
    """Add up the seconds that the cores `own` have been busy since the machine started, from the text of STAT.

    >>> busy_seconds("cpu  9 9 9 9 9 9 9 9\\ncpu0 100 50 50 900 80 0 0 0 0 0\\ncpu1 7 7 7 7 7 7 7 7", own=[0]) * TICKS
    200.0
    """
    rows = {name: ticks for name, *ticks in (line.split() for line in stat.splitlines()) if name[3:].isdecimal()}
    counted = [rows[f"cpu{core}"][:_COUNTED] for core in own if f"cpu{core}" in rows]
    return sum(int(t) for ticks in counted for i, t in enumerate(ticks) if i not in _IDLE) / TICKS


def free_threads(most: int, held: float, among: int) -> int:
    """Return as many threads as there are free cores, one at least and `most` at most, where others hold `held` of
    `among`.

    >>> [free_threads(2, held, among=2) for held in (0.0, 0.2, 0.9, 2.0)], free_threads(64, 1.0, among=64)
    ([2, 2, 1, 1], 63)
    """
    return min(most, max(1, math.floor(among - held + 0.5)))


def _own_cores() -> Collection[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)


def _stat() -> str:
    try:
        with open(STAT) as file:
            return file.read()
    except OSError:
        return ""
