"""Facts of the machine that a run depends on and its recipe does not say: libraries, memory, and cores that are free.

Threads that share a core with other work wait for each other at every barrier: a step of two threads beside one busy
process takes five to ten times as long as with one thread.
"""

import math
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import transformers

#: What getrusage counts memory in: kibibytes on Linux, bytes on macOS.
RSS_UNIT = 1 if sys.platform == "darwin" else 2**10


def where(device: str) -> dict[str, Any]:
    """Say the machine in a few words, "x86_64, 2 threads, cpu", and the versions of what computes the numbers."""
    return {
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, {device}",
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }


def commit(folder: Path) -> str:
    """Name the commit of the git checkout that a folder is in, and if files in it have changed since; "" if in none."""
    ask = ["git", "-C", str(folder)]
    try:
        name, changes = (
            subprocess.run([*ask, *words], capture_output=True, text=True, timeout=5, check=True).stdout.strip()
            for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
    return f"{name}, with changes" if changes else name


def peak_bytes() -> int:
    """Return the most memory that this process has held so far, or since `count_peak_anew`.

    On Linux a process that is started takes over its parent's ru_maxrss, so that a small child of a large parent would
    look large; VmHWM is its own.
    """
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT


def count_peak_anew() -> None:
    """Let what was held until now and is free again not count as the most; on Linux alone."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def machine_row(step: int) -> dict[str, Any]:
    """Return a line of machine.jsonl: the time, unix seconds, and the most memory held so far, MiB."""
    row = {"step": step, "time": round(time.time(), 3)}
    row["memory_peak_mib"] = round(peak_bytes() / 2**20, 1)
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        row["device_memory_peak_mib"] = round(torch.cuda.max_memory_allocated() / 2**20, 1)
    return row


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
