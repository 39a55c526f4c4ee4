"""Hand-over of a run's rows to its trackers, each by a thread of its own: none stops or slows the run."""

import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from groupwise.core.errors import shortened
from groupwise.core.files.json_text import writable
from groupwise.health.symptoms.base import is_number
from groupwise.journal.trackers import Row, Table, Tracked, Tracker, evaluation_numbers, numbers

#: What a table of completions has of a row of rollouts.jsonl, in this order.
COLUMNS = (
    "step",
    "group",
    "fate",
    "prompt",
    "answer",
    "completion",
    "score",
    "reward",
    "advantage",
    "tokens",
    "finish",
)


class Senders:
    """The trackers of a run, each with a sender of its own, so that one that hangs keeps no other waiting."""

    def __init__(self, trackers: Sequence[Tracker], log: Callable[[str], None], patience: float = 15.0) -> None:
        self._each = [Sender(tracker, log, patience=patience) for tracker in trackers]

    def start(self, run: Tracked) -> None:
        """Begin with all of them."""
        for sender in self._each:
            sender.start(run)

    def metrics(self, row: Row) -> None:
        """Send a row of metrics.jsonl to all."""
        for sender in self._each:
            sender.metrics(row)

    def completions(self, rows: Sequence[Row]) -> None:
        """Send completions of a step to all, rows of rollouts.jsonl."""
        for sender in self._each:
            sender.completions(rows)

    def cut_back(self, step: int) -> None:
        """Tell all that the rows after a step are no more."""
        for sender in self._each:
            sender.cut_back(step)

    def close(self, summary: Row | None) -> None:
        """End all at once: together they take no longer than the slowest."""
        if not self._each:
            return
        with ThreadPoolExecutor(len(self._each)) as pool:
            list(pool.map(lambda sender: sender.end(summary), self._each))
        for sender in self._each:
            sender.say_lines()


class Sender:
    """A thread that hands rows to a tracker: whatever the tracker does, the run goes on as without it.

    The first error switches it off; while it hangs, at most `room` rows wait and later ones are left out. Each is one
    line to `log`, in the caller's thread; so is, once, a call that takes longer than `patience` seconds.
    """

    def __init__(self, tracker: Tracker, log: Callable[[str], None], room: int = 1000, patience: float = 15.0) -> None:
        self.tracker, self.log, self.patience = tracker, log, patience
        self.left_out = 0
        self._jobs: queue.Queue[Callable[[], object] | None] = queue.Queue(room)
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="tracker", daemon=True)
        self._begun = self._closed = False
        self._late = math.inf  # the moment from which on the call that the tracker is in is worth a line

    def start(self, run: Tracked) -> None:
        """Begin. The tracker may take its time, such as to reach a server: rows wait."""
        self._jobs.put(lambda: self._begin(run))
        self._thread.start()

    def metrics(self, row: Row) -> None:
        """Send a row of metrics.jsonl, of a step or of an evaluation."""
        self.say_lines()
        if self._thread.is_alive():
            made = evaluation_numbers if "evaluation" in row else numbers
            self._hand(lambda: self.tracker.log(made(row), row["step"]), row["step"])

    def completions(self, rows: Sequence[Row]) -> None:
        """Send completions of a step as a table."""
        if rows and self._thread.is_alive():
            self._hand(lambda: self.tracker.table(table(rows), rows[0]["step"]), rows[0]["step"])

    def cut_back(self, step: int) -> None:
        """Tell the tracker that the run goes on after a step: the rows after it are no more."""
        if self._thread.is_alive():
            self._hand(partial(self.tracker.back, step), step)

    def close(self, summary: Row | None) -> None:
        """Send what waits, then end; after `patience` seconds it is left behind."""
        self.end(summary)
        self.say_lines()

    def end(self, summary: Row | None) -> None:
        """Close, and keep what is to be said of it for the caller's thread."""
        if self._thread.is_alive() and not self._closed:
            self._closed = True
            self._end(summary, time.monotonic() + self.patience)

    def say_lines(self) -> None:
        """Log what the tracker's thread has to say, and that it hangs."""
        if time.monotonic() > self._late and not self._closed:
            self._late = math.nan  # which nothing is later than: it is said once
            self._lines.put(f"has not answered for {self.patience:g} s; its rows wait, and the run goes on")
        while not self._lines.empty():
            self.log(f"tracker {type(self.tracker).__name__}: {self._lines.get()}")

    def _begin(self, run: Tracked) -> None:
        self._lines.put(self.tracker.start(run))
        self._begun = True

    def _hand(self, job: Callable[[], object], step: int) -> None:
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            if not self.left_out:
                self._lines.put(f"{self._jobs.qsize()} rows wait; those from step {step} on are left out")
            self.left_out += 1

    def _end(self, summary: Row | None, until: float) -> None:
        with suppress(queue.Full):
            for job in (partial(self.tracker.close, summary), None):
                self._jobs.put(job, timeout=max(0.0, until - time.monotonic()))
        self._thread.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive():
            waiting = f"{self._jobs.qsize()} calls waiting, {self.left_out} rows left out"
            what = "ended" if self._begun else "begun, as if its server did not answer,"
            self._lines.put(f"had not {what} {self.patience:g} s after the run and was left behind; {waiting}")
        elif self.left_out:
            self._lines.put(f"{self.left_out} rows were left out")

    def _work(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                if not math.isnan(self._late):
                    self._late = time.monotonic() + self.patience
                job()
                if not math.isnan(self._late):
                    self._late = math.inf
        except BaseException as error:  # also what a library raises to end the process: it is not its process
            words = shortened(" ".join(f"{type(error).__name__}: {error}".split()))
            self._lines.put(f"{words}; it is off from here on, and the run goes on")


def table(rows: Sequence[Row]) -> Table:
    """Make a table of rows of rollouts.jsonl: numbers that are not finite are no value, whatever else is no text is
    written as one.

    >>> table([{"step": 3, "prompt": "1+1=", "completion": "2", "score": 1.0, "reward": float("nan")}]).rows
    [(3, None, None, '1+1=', None, '2', 1.0, None, None, None, None)]
    """
    return Table(COLUMNS, [tuple(_cell(row.get(name)) for name in COLUMNS) for row in rows])


def _cell(value: Any) -> str | float | None:
    if value is None or isinstance(value, (bool, int, float)):
        return value if is_number(value) else None
    return writable(value) if isinstance(value, str) else str(value)
