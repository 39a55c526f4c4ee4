"""A pool in a process elsewhere, with the processes that score beside it: the run's end of it, and what runs there.

What is to be scored goes there as it goes from a pool to its workers; what comes back is JSON. A process that is lost
is started again and given what it owed: a score is a function of its attempt, and an episode is played again from what
was said (environments/live.py).
"""

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, astuple
from typing import Any

from groupwise.core.channel import Channel, FrameError
from groupwise.core.errors import GroupwiseError, ProcessLost, RunError, UsageError, one_line
from groupwise.core.peer import PeerLost
from groupwise.core.processes import codec
from groupwise.core.processes.place import Place, Process, Role, last_line
from groupwise.core.samples import Attempt, Sample, ScoreResult
from groupwise.rewards.isolation import Isolation
from groupwise.rewards.pool.pool import Pool
from groupwise.rewards.pool.work import Given, Limits, Work, packed, results_of, tree

#: Seconds of one look for a message, and without any after which the process counts as stalled.
LOOK, STALLED = 0.5, 60.0
#: How often in a row it is started again.
RESTARTS = 2

Note = Callable[[str], None]


class RemotePool(contextlib.AbstractContextManager["RemotePool"]):
    """Scores attempts as `Pool` does, with the same calls. Use it as a context manager, or close it.

    rewards  by name: objects that can be sent to another process
    place    where its process is started, within `seconds`
    note     hears of a process that is started again
    Raises UsageError where a reward cannot be sent or the process does not start.
    """

    def __init__(self, rewards: Mapping[str, Any], limits: Limits, place: Place, seconds: float, note: Note) -> None:
        self._rewards, self._limits = dict(rewards), limits
        self._place, self._start_seconds, self._note = place, seconds, note
        self._tree = tree(self._rewards, "one of them")
        self._tickets, self._numbers = itertools.count(), itertools.count()
        self._owed: dict[int, tuple[str, Work]] = {}
        self._questions: dict[int, tuple[Given, Future[dict[str, Any]]]] = {}
        self._lock = threading.RLock()
        self._broken: GroupwiseError | None = None
        self._lost_in_a_row, self._spent = 0, 0.0
        try:
            self._process = self._started()
        except PeerLost as lost:
            raise UsageError(f"rewards: the process that scores did not start: {lost}{lost.remedy}") from None
        self._thread = threading.Thread(target=self._listen, name="rewards", daemon=True)
        self._thread.start()

    def submit(self, name: str, attempts: Sequence[Work]) -> list[int]:
        """Submit as `Pool.submit` does."""
        if name not in self._rewards:
            raise KeyError(name)
        with self._lock:
            self._require_usable()
            given = {next(self._tickets): (name, attempt) for attempt in attempts}
            self._owed |= given
            self._hand_over(given)
        return list(given)

    def wait(self, tickets: Sequence[int]) -> list[ScoreResult]:
        """Wait as `Pool.wait` does; raises RunError where the process is lost for good as well."""
        if unknown := set(tickets) - self._owed.keys():
            raise ValueError(f"tickets that were never given, or were waited for already: {sorted(unknown)}")
        answer = self._answer({"wait": list(tickets)})
        with self._lock:
            for ticket in tickets:
                del self._owed[ticket]
        try:
            return results_of(answer.get("results"))
        except FrameError as error:
            raise RunError(f"rewards: the process that scores sent {error}") from None

    @property
    def seconds(self) -> float:
        """Seconds that the processes had spent on scoring at the last answer."""
        return self._spent

    def check(self, samples: Sequence[Sample] = ()) -> dict[str, str]:
        """Check as `Pool.check` does."""
        return self._answer({"check": True}, [Attempt(sample, "") for sample in samples])["forms"]

    def close(self) -> None:
        """End the process, and with it those that score."""
        self._end(RunError("rewards: the pool is closed"))
        with self._lock:
            process = self._process
        process.close()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _started(self) -> Process:
        process = self._place.start(Role.POOL, __name__, {}, seconds=self._start_seconds)
        try:
            process.send({"limits": asdict(self._limits), "rewards": self._tree})
        except PeerLost as lost:
            words = f"{lost}{last_line(process)}"
            process.close()
            raise PeerLost(words) from None
        return process

    def _require_usable(self) -> None:
        if self._broken is not None:
            raise self._broken

    def _end(self, error: GroupwiseError) -> None:
        """Answer nothing any more, and every question with the error."""
        with self._lock:
            self._broken = self._broken or error
            for _, future in self._questions.values():
                future.set_exception(self._broken)
            self._questions.clear()

    def _hand_over(self, entries: Mapping[int, tuple[str, Work]]) -> None:
        for name in dict.fromkeys(name for name, _ in entries.values()):
            some = {ticket: attempt for ticket, (own, attempt) in entries.items() if own == name}
            message = {"submit": list(some), "name": name}
            self._say(packed(message, list(some.values()), f"what {name} is given"))

    def _answer(self, question: Mapping[str, Any], rows: Sequence[Attempt] = ()) -> dict[str, Any]:
        future: Future[dict[str, Any]] = Future()
        with self._lock:
            self._require_usable()
            number = next(self._numbers)
            given = packed({**question, "number": number}, rows, "a sample")
            self._questions[number] = given, future
            self._say(given)
        answer = future.result()
        if wrong := answer.get("error"):
            error = (UsageError if wrong["usage"] else RunError)(wrong["message"])
            for note in wrong["notes"]:
                error.add_note(note)
            raise error
        self._spent = answer["spent"]
        return answer

    def _say(self, given: Given) -> None:
        with contextlib.suppress(PeerLost):  # the thread that listens sees it too, and says all of it again
            given.send(self._process)

    # What the thread does.

    def _listen(self) -> None:
        while self._broken is None:
            try:
                message = self._next()
            except PeerLost as lost:
                self._replace(lost)
                continue
            with self._lock:
                if asked := self._questions.pop(message.get("answer", -1), None):
                    asked[1].set_result(message)
                    self._lost_in_a_row = 0

    def _next(self) -> dict[str, Any]:
        silent = 0.0
        while not self._process.speaks(LOOK):
            silent += LOOK
            if silent >= STALLED:
                raise PeerLost(f"it gave no sign of life for {STALLED:g} seconds", late=True)
        return self._process.receive()

    def _replace(self, lost: PeerLost) -> None:
        """Start another process, which is given what the lost one owed, unless the pool, or its place, is closed."""
        if self._process.closed:
            self._end(RunError("rewards: the pool is closed"))
            return
        words = f"{lost}{last_line(self._process)}"
        self._process.close()  # whoever is sending to it, and holds the lock, goes on
        with self._lock:
            while self._broken is None:
                self._lost_in_a_row += 1
                if self._lost_in_a_row > RESTARTS:
                    times = f"{self._lost_in_a_row} times in a row"
                    self._end(ProcessLost(f"rewards: the process that scores is lost, {times}: {words}"))
                    return
                again = f"it is started again ({self._lost_in_a_row} of {RESTARTS} in a row) and given what it owed"
                self._note(f"rewards      the process that scores is lost: {words}; {again}")
                try:
                    self._process = self._started()
                    break
                except PeerLost as failed:
                    words = str(failed)
            self._hand_over(self._owed)
            for question, _ in self._questions.values():
                self._say(question)


#: Seconds between two signs of life.
BEAT = 1.0


def main(run: Channel) -> None:
    """Serve the run at the other end of the channel."""
    first = run.receive()
    limits, isolation = first["limits"], first["limits"]["isolation"]
    serving = Serving(run, Limits(**{**limits, "isolation": isolation and Isolation(isolation)}), first["rewards"])
    threading.Thread(target=serving.beat, daemon=True).start()
    try:
        serving.serve()
    except (EOFError, OSError, FrameError):  # the run is gone
        serving.close()
        os._exit(0)


class Serving:
    """A pool and its line to the run.

    rewards  by name, packed by the run
    """

    def __init__(self, run: Channel, limits: Limits, rewards: Any) -> None:
        self._run, self._sending = run, threading.Lock()
        self._tickets: dict[int, int] = {}  # the run's -> the pool's
        self._error: GroupwiseError | None = None
        self._pool: Pool | None = None
        try:
            self._pool = Pool(codec.unpack(rewards), limits)
        except Exception as error:  # whatever is missing here that the run has
            words = f"{type(error).__name__}: {one_line(error)}"
            self._error = UsageError(f"rewards: one of them cannot be loaded where it is to score: {words}")

    def serve(self) -> None:
        """Take what is to be scored, and answer each question from a thread of its own."""
        while True:
            given = Given.received(self._run)
            if "submit" in given.message:
                self._submit(given)
            else:
                threading.Thread(target=self._answer, args=(given,), daemon=True).start()

    def beat(self) -> None:
        """Say that the process lives, until the run is gone."""
        while self._send({"alive": True}):
            time.sleep(BEAT)

    def close(self) -> None:
        """End the processes that score."""
        if self._pool is not None:
            self._pool.close()

    def _submit(self, given: Given) -> None:
        try:
            tickets = self._ready.submit(given.message["name"], given.work())
        except Exception as error:
            self._error = _as_ours(error)  # every question is answered with it
        else:
            self._tickets |= zip(given.message["submit"], tickets, strict=True)

    def _answer(self, given: Given) -> None:
        question = given.message
        try:
            if "check" in question:
                content: dict[str, Any] = {"forms": self._ready.check([one.sample for one in given.work()])}
            else:
                results = self._ready.wait([self._tickets.pop(ticket) for ticket in question["wait"]])
                content = {"results": [astuple(result) for result in results]}
        except Exception as error:
            ours = _as_ours(error)
            notes = getattr(ours, "__notes__", [])
            content = {"error": {"message": str(ours), "usage": isinstance(ours, UsageError), "notes": notes}}
        self._send({"answer": question["number"], **content, "spent": self._pool.seconds if self._pool else 0.0})

    @property
    def _ready(self) -> Pool:
        if self._error is not None or self._pool is None:
            raise self._error or AssertionError
        return self._pool

    def _send(self, message: Mapping[str, Any]) -> bool:
        """Tell if it was sent; where not, the run is gone."""
        try:
            with self._sending:
                self._run.send(message)
        except OSError:
            return False
        return True


def _as_ours(error: Exception) -> GroupwiseError:
    """Return the error as one that the run can raise: whatever it is, whoever waits for an answer gets one."""
    if isinstance(error, GroupwiseError):
        return error
    return RunError(f"rewards: in the process that scores: {type(error).__name__}: {one_line(error)}")
