"""State of a run: whether a process writes it, how far it came, and how it ended."""

import fcntl
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from groupwise.core.files.atomic import open_regular
from groupwise.reports.folder.lines import count_of, number
from groupwise.reports.records import Status

_ERROR = re.compile(r"error: (?:step (\d{1,15}): )?")
_IN_ORDER = re.compile(r"stopped (?:after step (\d{1,15}), saved|before step 1)")


def is_held(lock: Path) -> bool:
    """Tell if a process is writing the run. The lock is shared and given back at once: the run must not notice."""
    try:
        with open_regular(lock) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def status_of(
    folder: Path, held: bool, summary: Mapping[str, Any] | None, steps: int | None, last: int | None, log: str
) -> Status:
    """Tell finished, going, failed, stopped or empty.

    steps  how many the recipe asks for
    last   the newest step with a row; None without any
    log    the last line of log.txt
    """
    done = count_of(summary.get("steps")) if summary else None
    if summary is not None and (done or 0) >= (steps or 0):
        seconds = number(summary.get("seconds_total"))
        taken = f" in {in_words(seconds)}" if seconds else ""
        return Status("finished", "finished" + (f": {done:,} steps" if done else "") + taken)
    where = f"step {last:,}" + (f" of {steps:,}" if steps else "") if last else ""
    if held:
        return Status("going", f"going on: {where} is done" if where else "going on: no step is done yet")
    resume = f"go on with: groupwise train --resume {shlex.quote(str(folder))}"
    after = f"after {where}" if where else "before its first step was done"
    error = _ERROR.match(log)
    if error and (error[1] is None or last is None or last < int(error[1])):
        return Status("failed", f"failed {after}: {log.removeprefix('error: ').rstrip('.')}; {resume}")
    if last is None:
        return Status("empty", f"nothing was logged yet, and no process is writing the run; {resume}")
    return Status("stopped", f"stopped {after}, and no process is writing the run; {resume}")


def in_words(seconds: float) -> str:
    """Write a time as a person says it.

    >>> in_words(73.8), in_words(200), in_words(4000)
    ('74 s', '3 min 20 s', '1 h 6 min')
    """
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60} min"


def ended_in_order(log: str, last: int | None) -> bool:
    """Tell if the last line of log.txt is that of a stop that was asked for, and no step was made after it.

    last  the newest step with a row; None without any

    >>> ended_in_order("stopped after step 24, saved; go on with: ...", 24), ended_in_order("step 1: pass", 24)
    (True, False)
    """
    stopped = _IN_ORDER.match(log)
    return bool(stopped) and (last or 0) <= int(stopped[1] or 0)
