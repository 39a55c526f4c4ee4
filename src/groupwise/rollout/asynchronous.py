"""The batches of an engine that goes on sampling: in the order of their draws, none too old, none thrown away.

With `rollout.free = N`, B groups a step and pi_v the weights after step v:

    admission  the group that would be number i of those that train (from 0; dropped ones do not count) is begun under
               pi_v once i < (v + 1 + N) B: it trains in step i / B + 1 at the latest, so that no token is more than N
               versions older than the weights that train on it
    segments   while a step trains, segment after segment is sampled, each of at most `turn_tokens` of each completion;
               newer weights are loaded between two segments
    order      a group trains when all that were drawn before it have trained or were dropped

How many segments are sampled while a step trains is up to the clock, so a resumed run is not the same to the bit.

The thread samples only between `begin` and `finish` and while a step waits for its batch, so loads, probes, evaluations
and checkpoints meet no second user of the engine and need no lock.
"""

import dataclasses
import threading
from collections.abc import Callable, Mapping
from itertools import takewhile

from groupwise.algorithms.calls import call
from groupwise.core.machine.clock import Clock, Extent
from groupwise.core.records import Group
from groupwise.core.stream import RolloutResult, Sampled, StreamState
from groupwise.rollout.batches import FAREWELL, sampled_of
from groupwise.rollout.collect import Rollout, moved, scored_cohort
from groupwise.rollout.segments import merged, unfinished


class AsynchronousBatches:
    """Gives each step its batch. A thread samples from `begin` to `finish`, and while `take` waits; at other times
    nothing does, and the rollout's state is that of the last segment's end.

    lag  versions that a token may be older than the weights that train on it
    """

    def __init__(self, rollout: Rollout, lag: int) -> None:
        self._rollout, self._lag = rollout, lag
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._goes, self._in_segment, self._closed = False, False, False
        self._error: BaseException | None = None
        self._stops_at: Callable[[], bool] = lambda: False
        self._ready: list[Group] = []
        self._generated: list[Group] = []
        self._dropped: list[Group] = []
        # Groups a step, those that earlier steps have trained, and segments since the last batch.
        self._wanted = self._taken = self._segments = 0
        self._clock = Clock("idle")

    @property
    def sampling(self) -> bool:
        """Whether the thread may make a segment."""
        return self._goes

    @property
    def state(self) -> StreamState:
        """State of the stream: the groups that wait for a step, and what has not ended."""
        assert not self._goes
        return dataclasses.replace(self._rollout.state, surplus=tuple(self._ready))

    @state.setter
    def state(self, state: StreamState) -> None:
        self._rollout.state = dataclasses.replace(state, surplus=())
        self._ready, self._generated, self._dropped, self._segments = list(state.surplus), [], [], 0

    def take(self, wanted: int, during: Callable[[str], None] = lambda phase: None) -> Sampled:
        """Return a new step's batch of `wanted` groups, once there are as many. Raises what went wrong."""
        rollout = self._rollout
        budget = wanted * rollout.filter.max_rounds
        self._wanted, self._taken = wanted, rollout.engine.version * wanted
        self._go(until=lambda: len(self._ready) >= wanted or len(self._dropped) >= budget)
        self._wait_for_stop()
        groups, self._ready = self._ready[:wanted], self._ready[wanted:]
        fallback = self._dropped[: wanted - len(groups)]
        self._taken += wanted
        levels = moved(rollout.prompts.source, rollout.state.levels, self._generated)
        rollout.state = dataclasses.replace(rollout.state, levels=levels)
        result = RolloutResult(
            (*groups, *fallback),
            tuple(self._generated),
            dropped=len(self._dropped),
            fallback=len(fallback),
            surplus=tuple(self._ready),
            rounds=self._segments,
            unfinished=unfinished(rollout.state.begun, rollout.segment),
        )
        self._generated, self._dropped, self._segments = [], [], 0
        with self._changed:
            seconds = self._clock.lap()
        beside = seconds.get("generate", 0.0) + seconds.get("score", 0.0)
        return dataclasses.replace(sampled_of(rollout, result), ahead_seconds=beside)

    def begin(self, wanted: int) -> None:
        """Let the thread go on beside training: the engine keeps its weights until `finish`."""
        self._go(until=lambda: False)

    def finish(self) -> None:
        """Waits for the end of the segment. Raises what went wrong."""
        with self._changed:
            self._goes = False
            self._changed.notify_all()
        self._wait_for_stop()

    def take_extents(self) -> Mapping[str, Extent]:
        """When the thread has generated and scored since the last call."""
        with self._changed:
            return self._clock.take_extents()

    def close(self) -> None:
        """Ends the thread, whose engine is closed."""
        with self._changed:
            self._goes, self._closed = False, True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(FAREWELL)

    def _go(self, until: Callable[[], bool]) -> None:
        """Let the thread make segments, as long as there is work, until this is true at the end of one."""
        with self._changed:
            self._stops_at = until
            self._goes = not until() and self._error is None
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rollout free", daemon=True)
            self._thread.start()

    def _wait_for_stop(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._goes and not self._in_segment)
            if self._error is not None:
                raise self._error

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or (self._goes and self._has_work))
                if self._closed:
                    return
                self._in_segment = True
            try:
                self._segment()
            except BaseException as error:
                self._error = error
            with self._changed:
                self._in_segment = False
                self._clock.switch("idle")
                self._goes = self._goes and self._error is None and not self._stops_at()
                self._changed.notify_all()

    @property
    def _has_work(self) -> bool:
        return bool(self._rollout.state.begun) or self._admitted() > 0

    def _admitted(self) -> int:
        """Return how many groups may be begun now."""
        begun = sum(len(cohort.prompts) for cohort in self._rollout.state.begun)
        before = self._taken + len(self._ready) + begun
        return (self._rollout.engine.version + 1 + self._lag) * self._wanted - before

    def _segment(self) -> None:
        """Sample a segment of all that has not ended and of what may be begun, a cohort a group, and score the cohorts
        that have ended, up to the first that has not.
        """
        rollout = self._rollout
        with self._changed:
            self._clock.switch("generate")
        new = [rollout.cohort(1) for _ in range(self._admitted())]
        cohorts = rollout.sample([*rollout.state.begun, *new], rollout.segment)
        with self._changed:
            self._clock.switch("score")
        ended = list(takewhile(lambda cohort: not unfinished([cohort], rollout.segment), cohorts))
        if ended:
            groups = scored_cohort(merged(ended), rollout.scorer, rollout.judge)
            for group in groups:
                verdict = call("filter", rollout.filter, group)
                (self._ready if verdict.keep else self._dropped).append(group)
            self._generated += groups
        rollout.state = dataclasses.replace(rollout.state, begun=tuple(cohorts[len(ended) :]))
        self._segments += 1
