"""Thread that gives work to workers, watches their deadlines and collects results."""

import contextlib
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import replace
from functools import partial
from typing import Any

from groupwise.core.channel import FrameError
from groupwise.core.environment import Conversation
from groupwise.core.errors import GroupwiseError, ProcessLost, RunError, UsageError
from groupwise.core.peer import PeerLost
from groupwise.core.processes.children import ending
from groupwise.core.samples import Cause, ScoreResult
from groupwise.rewards.functions.adapters import exhausted
from groupwise.rewards.pool.slot import Slot, messages, read_available
from groupwise.rewards.pool.work import Entry, Given, Limits, packed, results_of, take, tree
from groupwise.rewards.zygote import Zygote

#: A worker that gives way to others is not charged for it, but while the run itself waits there is an end: this many
#: times its seconds.
PATIENCE = 10.0
#: Seconds in which a worker says its first word, before any code of a user's runs.
BIRTH = 40.0
#: Seconds after which what is left of a worker that was asked to end is not waited for any more.
FAREWELL = 30.0
#: Seconds in which a keeper ends that has said its last.
REST = 1.0
#: How often in a row what makes workers may be lost, as where the system kills a process for its memory.
LOSSES = 3

#: How one completion can end a call for many: that is no fault of the reward, and is not told.
OF_ONE = (Cause.TIMEOUT, Cause.CRASH, Cause.MEMORY)


class Dispatcher:
    """Dispatcher of work: entries in, results out."""

    def __init__(self, rewards: Mapping[str, Any], limits: Limits) -> None:
        self.rewards, self.limits = rewards, limits
        self.queue: deque[Entry] = deque()
        self.futures: dict[int, Future[ScoreResult]] = {}
        self.lock = threading.RLock()  # of the queue and the futures
        self.waiting_since: float | None = None
        self.broken: GroupwiseError | None = None
        self.closing = False
        self.thread: threading.Thread | None = None
        self.slots: list[Slot] = []
        self.maker: Zygote | None = None
        self.losses = 0  # of makers, since something was scored
        self.spent = 0.0  # seconds that workers have scored
        self.single: dict[str, bool] = {}  # by reward: whether it scores one by one, once a worker has said so
        self.called, self.call = socket.socketpair()
        self.call.setblocking(False)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.called, selectors.EVENT_READ, None)

    # What the run's own threads call.

    def put(self, entries: Sequence[Entry]) -> list[int]:
        """Queue entries -> their tickets."""
        with self.lock:
            if self.closing:
                raise RunError("rewards: the pool is closed")
            if self.broken is not None:
                raise self.broken
            self.queue.extend(entries)
            self.futures.update((entry.ticket, Future()) for entry in entries)
            if self.thread is None:
                self.thread = threading.Thread(target=self._work, name="rewards", daemon=True)
                self.thread.start()
        self._wake()
        return [entry.ticket for entry in entries]

    def wait(self, tickets: Sequence[int]) -> list[ScoreResult]:
        with self.lock:
            if unknown := set(tickets) - self.futures.keys():
                raise ValueError(f"tickets that were never given, or were waited for already: {sorted(unknown)}")
            futures = [self.futures[ticket] for ticket in tickets]
        self.waiting_since = time.monotonic()
        try:
            results = [future.result() for future in futures]
        finally:
            self.waiting_since = None
        with self.lock:
            for ticket in tickets:
                del self.futures[ticket]
        return results

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
            while not self.closing and self.broken is None:
                self._feed()
                self._listen(self._patience())
                self._watch()
            self._finish()
        except Exception as error:  # whatever it is: every thread that waits must get it
            words = "rewards: the processes that score do not start"
            if isinstance(error, PeerLost):
                self._break(ProcessLost(f"{words}: the process that starts them is lost: {error}"))
            else:
                self._break(RunError(f"{words}: {type(error).__name__}: {error}"))
        finally:
            if self.maker is not None:
                self.maker.close()
            self._fail_all(RunError("rewards: the pool was closed before every completion was scored"))

    def _fail_all(self, error: GroupwiseError) -> None:
        with self.lock:
            for future in list(self.futures.values()):
                if not future.done():
                    future.set_exception(error)

    def _living_maker(self) -> Zygote:
        """Return what makes workers, started again where it was lost. Raises PeerLost if it is lost again and again."""
        if self.maker is not None and not self.maker.usable:
            self.maker.close()
            self.losses += 1
            if self.losses > LOSSES:
                raise PeerLost(f"it ended: {ending(self.maker.process.returncode)}")
            self.maker = None
        self.maker = self.maker or self._zygote()
        return self.maker

    def _zygote(self) -> Zygote:
        return Zygote(
            "groupwise.rewards.pool.worker",
            {"memory": self.limits.memory, "wanted": self.limits.isolation},
            "rewards: no process to score",
            environment={"OMP_NUM_THREADS": "1", **os.environ},  # the cores are generation's
            stderr=None,
        )

    def _feed(self) -> None:
        """Give every idle worker what is next, and start workers where there is more to do than workers."""
        with self.lock:
            for slot in [slot for slot in self.slots if slot.ready and not slot.busy and not slot.ending]:
                if not self.queue:
                    return
                if self.queue[0].fresh and slot.served:
                    slot.end()
                    return
                if entries := take(self.queue, self.limits.workers, self.single, partial(self._may_have, slot)):
                    self._give(slot, entries)
            starting = sum(not slot.ready and not slot.ending for slot in self.slots)
            for _ in range(min(len(self.queue) - starting, self.limits.workers - len(self.slots))):
                self._start()

    def _may_have(self, slot: Slot, entry: Entry) -> bool:
        """Keep an episode where it lives; elsewhere it would have to be played again from its beginning."""
        episode = entry.episode
        if episode is None or entry.fresh:
            return True
        return not any(episode in other.episodes for other in self.slots if other is not slot and not other.ending)

    def _start(self) -> None:
        line, theirs = socket.socketpair()
        leash, keepers = socket.socketpair()
        with theirs, keepers, contextlib.ExitStack() as unless_sent:
            unless_sent.callback(line.close)
            unless_sent.callback(leash.close)
            while True:
                maker = self._living_maker()
                with contextlib.suppress(PeerLost):
                    number = maker.spawn(None, [theirs.fileno(), keepers.fileno()], wait=False)
                    break
            unless_sent.pop_all()
        slot = Slot(line, leash, maker, number)
        slot.clock.start()
        self.slots.append(slot)
        self.selector.register(line, selectors.EVENT_READ, slot)
        self.selector.register(leash, selectors.EVENT_READ, slot)

    def _give(self, slot: Slot, entries: list[Entry]) -> None:
        entries = [entry.begun() for entry in entries]
        head = entries[0]
        load = head.attempt is None
        slot.entries, slot.busy = entries, True
        slot.play([entry.attempt for entry in entries if isinstance(entry.attempt, Conversation)])
        slot.clock.start()
        work = {"kind": "load" if load else "score", "name": head.name}
        given = head.rows if load else [entry.attempt for entry in entries if entry.attempt is not None]
        self._send(slot, lambda: packed(work, given, f"what {head.name} is given"))

    def _listen(self, seconds: float | None) -> None:
        for key, _ in self.selector.select(seconds):
            slot: Slot | None = key.data
            if slot is None:
                self.called.recv(1 << 12)
            elif slot.closed:
                continue  # the other connection of this worker, seen in the same moment, said that it is gone
            elif key.fileobj is slot.line:
                if not read_available(slot.line, slot.line_buffer):
                    self.selector.unregister(slot.line)
                self._hear_all(slot)
            elif not read_available(slot.leash, slot.leash_buffer):
                with contextlib.suppress(PeerLost, RunError):  # a lost one's workers end with it
                    slot.maker.reap(slot.number, REST)
                self._remove(slot)

    def _hear_all(self, slot: Slot) -> None:
        try:
            for message in slot.said():
                self._hear(slot, message)
        except FrameError:  # something else wrote there: nothing more is heard
            slot.line_buffer.clear()
            with contextlib.suppress(OSError):
                slot.line.shutdown(socket.SHUT_RD)
            slot.end()

    def _hear(self, slot: Slot, message: dict[str, Any]) -> None:
        if slot.busy:
            self.spent += slot.clock.seconds()
        slot.clock.start()
        if "hello" in message and not slot.ready:
            slot.clock.pid = message["hello"]
            slot.ready = self._send(slot, lambda: Given({"rewards": tree(self.rewards, "one of them")}))
        if "loading" in message:
            slot.loading = message["loading"]
        if "loaded" in message:
            slot.loading = ""
            self.single[message["loaded"]] = message.get("single", False)
        if "broken" in message:
            error = (UsageError if message.get("usage") else RunError)(message["broken"])
            error.add_note(message.get("detail", ""))
            self._break(error)
        results = results_of(message.get("results", []))
        if len(results) > len(slot.entries) or (message.get("failed") and not results):
            raise FrameError("results of nothing that it was given")
        if message.get("failed"):
            self._failed(slot, results[0])
        elif results:
            self._answer(slot, results)
        if message.get("done"):
            self._put_back(slot.entries)  # what a spent worker did not come to
            slot.entries, slot.busy = [], False
            if message.get("spent"):
                slot.end()

    def _send(self, slot: Slot, given: Callable[[], Given]) -> bool:
        """Tell if a worker has it: one that is gone already ends, and what it was given goes on as after a crash."""
        try:
            slot.send(given(), self.limits.load)
        except UsageError as error:  # of what cannot be sent
            self._break(error)
            return False
        except OSError:
            slot.gone = True
            slot.end()
            return False
        return True

    def _answer(self, slot: Slot, results: Sequence[ScoreResult]) -> None:
        """Take results for the first entries of a worker. A fault that earlier ones may have caused is tried again."""
        answered, slot.entries = slot.entries[: len(results)], slot.entries[len(results) :]
        again = []
        late = getattr(self.rewards[answered[0].name], "late", None) if answered else None
        for entry, result in zip(answered, results, strict=True):
            hung = result.cause is Cause.TIMEOUT
            shared = result.cause is Cause.CRASH or exhausted(result) or (hung and slot.swarmed)
            if ((shared and slot.served) or slot.killed) and not entry.fresh:
                again.append(replace(entry, fresh=True))
            else:
                given = ScoreResult(late) if late is not None and hung else result
                with contextlib.suppress(InvalidStateError):  # the pool broke meanwhile
                    self.futures[entry.ticket].set_result(replace(given, detail=given.detail or entry.failed))
        self._put_back(again)
        slot.served = True
        self.losses = 0

    def _failed(self, slot: Slot, result: ScoreResult) -> None:
        """Put back the entries of a call that failed: whose fault it is shows when each is called alone."""
        if len(slot.entries) == 1:
            self._answer(slot, [result])
            return
        slot.served = True
        told = f"{result.cause} of a call for {len(slot.entries)} completions: {result.detail}"
        how = "" if result.cause in OF_ONE else told
        self._put_back([replace(entry, alone=True, failed=how) for entry in slot.entries])
        slot.entries = []

    def _put_back(self, entries: Sequence[Entry]) -> None:
        with self.lock:
            self.queue.extendleft(reversed(entries))

    def _remove(self, slot: Slot) -> None:
        """Forget a worker of which nothing is left: what it owed gets a result or goes to another."""
        read_available(slot.line, slot.line_buffer)
        self._hear_all(slot)
        slot.report = next(reversed(list(messages(slot.leash_buffer))), {})
        for end in (slot.line, slot.leash):
            with contextlib.suppress(KeyError):
                self.selector.unregister(end)
        self.slots.remove(slot)
        slot.close()
        if self.closing or self.broken is not None:
            return
        starting = not slot.ready or slot.loading or (slot.entries and slot.entries[0].attempt is None)
        if slot.orphaned or (starting and self._starts_again(slot)):
            self._put_back(slot.entries)
        elif starting:
            self._break(self._start_error(slot))
        elif slot.entries and self.single.get(slot.entries[0].name):
            self._put_back(slot.entries[1:])
            slot.entries = slot.entries[:1]
            verdict = slot.verdict(self._seconds(slot))
            if slot.late and isinstance(slot.entries[0].attempt, Conversation):
                verdict = replace(verdict, columns={"seconds": self.limits.seconds})  # of a turn, what it cost
            self._answer(slot, [verdict])
        elif slot.entries:
            self._failed(slot, slot.verdict(self._seconds(slot)))

    def _starts_again(self, slot: Slot) -> bool:
        """Tell if a worker that is gone before it could score is started again; what hangs over it is replaced too."""
        if slot.stalled:
            slot.maker.lost = True  # the one that takes its place counts the loss
            return self.losses < LOSSES
        self.losses += slot.killed
        return slot.killed and self.losses <= LOSSES

    def _start_error(self, slot: Slot) -> GroupwiseError:
        detail = slot.verdict(self.limits.load).detail
        last = detail.rpartition("\n")[2]
        if slot.loading:
            error: GroupwiseError = UsageError(f"reward {slot.loading} cannot be loaded: {last}")
        else:
            kind = ProcessLost if slot.killed or slot.stalled else RunError
            error = kind(f"rewards: a process that scores did not start: {last}")
        error.add_note(detail)
        return error

    def _limit(self, slot: Slot) -> float:
        if not slot.ready:
            return min(self.limits.load, BIRTH)
        return self.limits.load if slot.loading else self._seconds(slot)

    def _seconds(self, slot: Slot) -> float:
        """Return the seconds of a call: the reward's own where it bounds what it waits for, else the limit's."""
        reward = self.rewards.get(slot.entries[0].name) if slot.entries else None
        return getattr(reward, "call_seconds", self.limits.seconds)

    def _running(self) -> list[Slot]:
        return [slot for slot in self.slots if (slot.busy or not slot.ready) and not slot.ending]

    def _patience(self) -> float | None:
        left = [self._limit(slot) - slot.clock.seconds() for slot in self._running()]
        left += [FAREWELL - slot.clock.wall for slot in self.slots if slot.ending]
        return max(0.005, min(left)) if left else None

    def _watch(self) -> None:
        now, since = time.monotonic(), self.waiting_since
        for slot in [slot for slot in self.slots if slot.ending and slot.clock.wall > FAREWELL]:
            self._remove(slot)
        for slot in self._running():
            limit = self._limit(slot)
            starved = since is not None and now - max(since, slot.clock.started) > PATIENCE * limit
            slot.swarmed = slot.swarms(limit)
            if slot.clock.over(limit) or starved or slot.swarmed:
                self.spent += slot.clock.seconds()
                slot.late, slot.halted = True, slot.is_halted()
                slot.end()

    def _finish(self) -> None:
        for slot in self.slots:
            slot.end()
        end = time.monotonic() + 10.0
        while self.slots and time.monotonic() < end:
            self._listen(0.5)
        for slot in self.slots:
            slot.close()

    def _break(self, error: GroupwiseError) -> None:
        with self.lock:
            self.broken = self.broken or error
            self._fail_all(self.broken)
