"""The thread that gives work to workers, watches their deadlines and collects marks."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from groupwise.core.errors import GroupwiseError, RunError, UsageError
from groupwise.core.reward import Cause, Mark
from groupwise.rewards.functions.marks import exhausted
from groupwise.rewards.pool.chunks import FEW, MANY, alike, whole_groups
from groupwise.rewards.pool.frames import frames, received
from groupwise.rewards.pool.isolate import Walls
from groupwise.rewards.pool.slot import Entry, Slot

#: A worker that gives way to others is not charged for it, but while the run itself waits there is an end: this many
#: times its seconds.
PATIENCE = 10.0

_PROGRAM = """
import json, sys
path, control, *setting = json.loads(sys.argv[1])
sys.path[:] = path
from groupwise.rewards.pool import zygote
zygote.main(control, zygote.Setting(*setting))
"""


@dataclass(frozen=True)
class Limits:
    """What groupwise.rewards.pool.pool.Pool was asked for."""

    workers: int
    seconds: float
    load: float
    memory: int
    yielding: bool
    preload: tuple[str, ...]
    walls: Walls | None = None


class Dispatcher:
    """Entries in, marks out."""

    def __init__(self, rewards: Mapping[str, Any], limits: Limits) -> None:
        self.rewards, self.limits = rewards, limits
        self.queue: deque[Entry] = deque()
        self.marks: dict[int, Mark] = {}
        self.owed: set[int] = set()
        self.changed = threading.Condition()
        self.waiting_since: float | None = None
        self.broken: GroupwiseError | None = None
        self.closing = False
        self.thread: threading.Thread | None = None
        self.slots: list[Slot] = []
        self.spent = 0.0  # seconds that workers have scored
        self.single: dict[str, bool] = {}  # by reward: whether it scores one by one, once a worker has said so
        self.called, self.call = socket.socketpair()
        self.call.setblocking(False)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.called, selectors.EVENT_READ, None)

    # What the run's own threads call.

    def put(self, entries: Sequence[Entry]) -> None:
        with self.changed:
            if self.broken is not None:
                raise self.broken
            self.queue.extend(entries)
            self.owed.update(entry.ticket for entry in entries)
            if self.thread is None:
                self.thread = threading.Thread(target=self._work, name="rewards", daemon=True)
                self.thread.start()
        self._wake()

    def wait(self, tickets: Sequence[int]) -> list[Mark]:
        with self.changed:
            if unknown := set(tickets) - self.owed:
                raise ValueError(f"tickets that were never given, or were waited for already: {sorted(unknown)}")
            self.waiting_since = time.monotonic()
            try:
                for ticket in tickets:
                    while ticket not in self.marks:
                        self._open()
                        self.changed.wait()
            finally:
                self.waiting_since = None
            self.owed.difference_update(tickets)
            return [self.marks.pop(ticket) for ticket in tickets]

    def _open(self) -> None:
        if self.broken is not None:
            raise self.broken
        if self.closing:
            raise RunError("rewards: the pool was closed before every completion was scored")

    def close(self) -> None:
        self.closing = True
        self._wake()
        if self.thread is not None and self.thread is not threading.current_thread():
            self.thread.join()
        self.called.close()
        self.call.close()
        self.selector.close()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self.call.send(b"1")

    # What the thread does.

    def _work(self) -> None:
        try:
            with self._zygote() as zygote:
                while not self.closing and self.broken is None:
                    self._feed(zygote)
                    self._listen()
                    self._watch()
                self._finish()
        except Exception as error:  # whatever it is: who waits must hear of it
            self._break(RunError(f"rewards: the processes that score cannot be had: {type(error).__name__}: {error}"))
        with self.changed:
            self.changed.notify_all()

    @contextlib.contextmanager
    def _zygote(self) -> Any:
        """The control socket of a new zygote, which ends with this context."""
        ours, theirs = socket.socketpair()
        limits = self.limits
        setting = [sys.path, theirs.fileno(), limits.memory, limits.yielding, limits.preload, limits.walls]
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, json.dumps(setting)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={"OMP_NUM_THREADS": "1", **os.environ},  # the cores are generation's
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        try:
            with ours:
                yield ours
        finally:
            process.wait()

    def _feed(self, zygote: socket.socket) -> None:
        """Gives every idle worker what is next, and starts workers where there is more to do than workers."""
        with self.changed:
            for slot in [slot for slot in self.slots if slot.ready and not slot.busy and not slot.ending]:
                if not self.queue:
                    return
                if self.queue[0].fresh and slot.served:
                    slot.end()
                    return
                self._give(slot, self._next())
            coming = sum(not slot.ready and not slot.ending for slot in self.slots)
            for _ in range(min(len(self.queue) - coming, self.limits.workers - len(self.slots))):
                self._start(zygote)

    def _next(self) -> list[Entry]:
        """What the next worker gets, taken out of the queue: entries of one reward, an even share of them."""
        found = alike(self.queue)
        even = -(-len(found) // self.limits.workers)
        single = self.single.get(found[0].name)
        count = min(FEW, even) if single else whole_groups(found, min(MANY, even))
        taken = found[:count]
        gone = {entry.ticket for entry in taken}
        self.queue = deque(entry for entry in self.queue if entry.ticket not in gone)
        return taken

    def _start(self, zygote: socket.socket) -> None:
        line, theirs = socket.socketpair()
        leash, held = socket.socketpair()
        with theirs, held:
            socket.send_fds(zygote, [b"1"], [theirs.fileno(), held.fileno()])
        slot = Slot(line, leash)
        slot.clock.start()
        self.slots.append(slot)
        self.selector.register(line, selectors.EVENT_READ, slot)
        self.selector.register(leash, selectors.EVENT_READ, slot)

    def _give(self, slot: Slot, taken: list[Entry]) -> None:
        head = taken[0]
        load = head.attempt is None
        slot.entries, slot.busy = taken, True
        slot.clock.start()
        try:
            slot.send(("load" if load else "score", head.name, head.rows if load else [e.attempt for e in taken]))
        except OSError:
            slot.end()  # it is gone already; what it was given goes on as after a crash

    def _listen(self) -> None:
        for key, _ in self.selector.select(self._patience()):
            slot: Slot | None = key.data
            if slot is None:
                self.called.recv(1 << 12)
            elif key.fileobj is slot.line:
                if not received(slot.line, slot.heard):
                    self.selector.unregister(slot.line)
                for message in self._messages(slot):
                    self._hear(slot, message)
            elif not received(slot.leash, slot.last):
                self._bury(slot)

    def _messages(self, slot: Slot) -> list[dict[str, Any]]:
        try:
            return frames(slot.heard)
        except ValueError:  # something else wrote there
            slot.end()
            return []

    def _hear(self, slot: Slot, message: dict[str, Any]) -> None:
        if slot.busy:
            self.spent += slot.clock.seconds()
        slot.clock.start()
        if "hello" in message:
            self._welcome(slot, message["hello"])
        if "loading" in message:
            slot.loading = message["loading"]
        if "loaded" in message:
            slot.loading = ""
            self.single[message["loaded"]] = message["single"]
        if "broken" in message:
            error = UsageError(message["broken"])
            error.add_note(message["detail"])
            self._break(error)
        if "words" in message:
            self._answer(slot, [Mark(detail=message["words"])])
        if "marks" in message:
            self._answer(slot, [_mark(listed) for listed in message["marks"]])
        if "failed" in message:
            self._failed(slot, _mark(message["failed"]))
        if message.get("done"):
            self._done(slot, bool(message.get("spent")))

    def _welcome(self, slot: Slot, pid: int) -> None:
        slot.clock.watch(pid)
        try:
            slot.send(self.rewards)
            slot.ready = True
        except OSError:
            slot.end()
        except Exception as error:
            self._break(UsageError(f"rewards: one of them cannot be sent to another process: {error}"))

    def _answer(self, slot: Slot, marks: Sequence[Mark]) -> None:
        """Takes marks for the first entries of a worker. A fault that earlier ones may have caused is tried again."""
        answered, slot.entries = slot.entries[: len(marks)], slot.entries[len(marks) :]
        with self.changed:
            for entry, mark in zip(reversed(answered), reversed(marks), strict=True):
                starved = mark.cause is Cause.TIMEOUT and slot.swarmed
                shared = mark.cause is Cause.CRASH or exhausted(mark) or starved
                if shared and slot.served and not entry.fresh:
                    self.queue.appendleft(replace(entry, fresh=True))
                else:
                    self.marks[entry.ticket] = mark
            self.changed.notify_all()
        slot.served = True

    def _failed(self, slot: Slot, mark: Mark) -> None:
        """A call for all entries of a worker failed: whose fault it is shows when each is called alone."""
        if len(slot.entries) == 1:
            self._answer(slot, [mark])
            return
        slot.served = True
        with self.changed:
            self.queue.extendleft(replace(entry, alone=True) for entry in reversed(slot.entries))
        slot.entries = []

    def _done(self, slot: Slot, spent: bool) -> None:
        with self.changed:
            self.queue.extendleft(reversed(slot.entries))  # what a spent worker did not come to
        slot.entries, slot.busy = [], False
        if spent:
            slot.end()

    def _bury(self, slot: Slot) -> None:
        """Nothing of a worker is left: what it owed is marked or goes to another."""
        for message in self._messages(slot):
            self._hear(slot, message)
        told = frames(slot.last)
        slot.ended = told[-1] if told else {}
        for end in (slot.line, slot.leash):
            with contextlib.suppress(KeyError):
                self.selector.unregister(end)
        self.slots.remove(slot)
        slot.close()
        if self.closing or self.broken is not None:
            return
        if not slot.ready or slot.loading or (slot.entries and slot.entries[0].attempt is None):
            self._break(self._stillborn(slot))
        elif slot.entries:
            self._owed(slot)

    def _owed(self, slot: Slot) -> None:
        mark = slot.verdict(self.limits.seconds)
        if self.single.get(slot.entries[0].name):
            rest, slot.entries = slot.entries[1:], slot.entries[:1]
            with self.changed:
                self.queue.extendleft(reversed(rest))
            self._answer(slot, [mark])
        else:
            self._failed(slot, mark)

    def _stillborn(self, slot: Slot) -> GroupwiseError:
        detail = slot.verdict(self.limits.load).detail
        last = detail.rpartition("\n")[2]
        if slot.loading:
            error: GroupwiseError = UsageError(f"reward {slot.loading} cannot be loaded: {last}")
        else:
            error = RunError(f"rewards: a process that scores did not start: {last}")
        error.add_note(detail)
        return error

    def _limit(self, slot: Slot) -> float:
        return self.limits.load if slot.loading or not slot.ready else self.limits.seconds

    def _running(self) -> list[Slot]:
        return [slot for slot in self.slots if (slot.busy or not slot.ready) and not slot.ending]

    def _patience(self) -> float | None:
        """Seconds until a deadline may have passed."""
        left = [self._limit(slot) - slot.clock.seconds() for slot in self._running()]
        return max(0.005, min(left)) if left else None

    def _watch(self) -> None:
        now, since = time.monotonic(), self.waiting_since
        for slot in self._running():
            limit = self._limit(slot)
            starved = since is not None and now - max(since, slot.clock.started) > PATIENCE * limit
            slot.swarmed = slot.swarms(limit)
            if slot.clock.over(limit) or starved or slot.swarmed:
                self.spent += slot.clock.seconds()
                slot.late = True
                slot.end()

    def _finish(self) -> None:
        for slot in self.slots:
            slot.end()
        end = time.monotonic() + 10.0
        while self.slots and time.monotonic() < end:
            for key, _ in self.selector.select(0.5):
                slot = key.data
                if slot is None:
                    self.called.recv(1 << 12)
                elif key.fileobj is slot.line:
                    if not received(slot.line, slot.heard):
                        self.selector.unregister(slot.line)
                elif not received(slot.leash, slot.last):
                    self._bury(slot)

    def _break(self, error: GroupwiseError) -> None:
        with self.changed:
            self.broken = self.broken or error
            self.changed.notify_all()


def _mark(listed: Sequence[Any]) -> Mark:
    value, cause, detail = listed
    return Mark(value, None if cause is None else Cause(cause), detail)
