"""The batches of a run, one a step: sampled when its step begins, or while the step before trains.

With `rollout.ahead = 1`, in step s, where pi_v are the weights after step v:

    engine     samples the batch of step s + 1 under pi_(s-1)
    learner    trains the batch of step s, sampled under pi_(s-2): pi_(s-1) -> pi_s
    boundary   waits for the batch, then loads pi_s

So what is sampled depends on draw and version alone, and not on which of both was faster. The first batch is sampled
before anything trains; no batch is sampled for a step after the last.

With `rollout.free = N`, B groups a step, the engine goes on sampling, and no group is too old or thrown away:

    admission  the group that would be number i of those that train (from 0; dropped ones do not count) is begun under
               pi_v once i < (v + 1 + N) B: it trains in step i / B + 1 at the latest, so that no token is more than N
               versions older than the weights that train on it
    segments   while a step trains, segment after segment is sampled, each of at most `turn_tokens` of each completion;
               newer weights are loaded between two segments
    order      a group trains when all that were drawn before it have trained or were dropped

How many segments are sampled while a step trains is up to the clock, so a resumed run is not the same to the bit.
"""

import dataclasses
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from itertools import takewhile
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from groupwise.algorithms.calls import call
from groupwise.core.machine.clock import Clock, Extent
from groupwise.core.numbers.metrics import Mean
from groupwise.core.processes.network import LOOPBACK, Address
from groupwise.core.records import Group
from groupwise.core.settings import Changeable, Settings
from groupwise.core.stream import RolloutResult, Sampled, StreamState
from groupwise.rollout.collect import Rollout, moved, scored_cohort
from groupwise.rollout.segments import merged, segments_of, unfinished

#: Seconds in which a batch that is not waited for any more must have ended, once its engine is closed.
FAREWELL = 10.0


def _address(text: str) -> str:
    """Raise ValueError for what is no address."""
    Address.of(text)
    return text


class RolloutSettings(Settings):
    """Asynchronous and partial rollouts.

    ahead        1: sample each batch while the one before trains (staleness 1); 0: sample and train in turn
    turn_tokens  partial rollouts: most tokens of a completion per step; it continues in the next step, under its
                 weights. Default: whole completions
    free         fully asynchronous: sample during training, with a staleness of at most this many versions; resume is
                 not exact
    gateway      address at which agents reach the policy (task.name = "agent" or "verifiers"); port 0: any that is free
    """

    ahead: int = Field(default=0, ge=0, le=1)
    turn_tokens: int | None = Field(default=None, ge=1, le=2**24)
    free: int | None = Field(default=None, ge=1, le=1000)
    gateway: Changeable[Annotated[str, AfterValidator(_address)]] = f"{LOOPBACK}:0"

    @model_validator(mode="after")
    def _one_lag(self) -> "RolloutSettings":
        if self.ahead and self.free is not None:
            raise ValueError(f"ahead = {self.ahead} and free = {self.free} are two lags; take one of them out")
        return self

    @property
    def beside(self) -> bool:
        """True if the engine samples while the learner trains."""
        return self.ahead > 0 or self.free is not None

    def most_age(self, limit: int) -> int:
        """Count the versions that a token may be older than the weights that train, of completions of `limit` tokens.

        >>> RolloutSettings(ahead=1, turn_tokens=16).most_age(64), RolloutSettings(free=2).most_age(64)
        (4, 2)
        """
        return self.free if self.free is not None else self.ahead + segments_of(limit, self.turn_tokens) - 1


class Batches:
    """Gives each step its batch. Nothing else may use the rollout while a batch is being sampled ahead."""

    def __init__(self, rollout: Rollout, ahead: int = 0) -> None:
        self._rollout, self._ahead = rollout, ahead
        self._ready: Sampled | None = None
        self._sampling: _InThread | None = None
        self._extents: Mapping[str, Extent] = {}

    @property
    def sampling(self) -> bool:
        """True if a batch is being sampled ahead."""
        return self._sampling is not None

    def take_extents(self) -> Mapping[str, Extent]:
        """Tell when the last batch that was sampled ahead was generated and scored; nothing if none was."""
        extents, self._extents = self._extents, {}
        return extents

    @property
    def state(self) -> StreamState:
        """State of the stream, with the batch that is ready. Nothing may be in the making."""
        assert self._sampling is None
        return dataclasses.replace(self._rollout.state, ahead=self._ready)

    @state.setter
    def state(self, state: StreamState) -> None:
        self._ready, self._rollout.state = state.ahead, dataclasses.replace(state, ahead=None)

    def take(self, wanted: int, during: Callable[[str], None] = lambda phase: None) -> Sampled:
        """Return the batch of a step that begins, of `wanted` groups."""
        ready, self._ready = self._ready, None
        return ready or sampled_of(self._rollout, self._rollout.collect(wanted, during))

    def begin(self, wanted: int) -> None:
        """Begin the next step's batch, if one is sampled ahead: the engine keeps its weights until `finish`."""
        if self._ahead:

            def sample() -> Sampled:
                clock = Clock("generate")
                sampled = sampled_of(self._rollout, self._rollout.collect(wanted, clock.switch))
                self._extents = clock.take_extents()
                return dataclasses.replace(sampled, ahead_seconds=clock.total)

            self._sampling = _InThread(sample)

    def finish(self) -> None:
        """Wait for the batch that was begun. Raises what went wrong with it."""
        if self._sampling is not None:
            sampling, self._sampling = self._sampling, None
            self._ready = sampling.future.result()

    def close(self) -> None:
        """Leave a batch that was begun, whose engine is closed."""
        if self._sampling is not None:
            self._sampling.thread.join(FAREWELL)


class AsynchronousBatches:
    """Gives each step its batch, of an engine that goes on sampling.

    A thread samples from `begin` to `finish`, and while `take` waits; at other times nothing does, and the rollout's
    state is that of the last segment's end. So loads, probes, evaluations and checkpoints meet no second user of the
    engine and need no lock.

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
        """True if the thread may make a segment."""
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
        """Wait for the end of the segment. Raises what went wrong."""
        with self._changed:
            self._goes = False
            self._changed.notify_all()
        self._wait_for_stop()

    def take_extents(self) -> Mapping[str, Extent]:
        """Tell when the thread has generated and scored since the last call."""
        with self._changed:
            return self._clock.take_extents()

    def close(self) -> None:
        """End the thread, whose engine is closed."""
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
                self._changed.wait_for(
                    lambda: self._closed or (self._goes and (self._rollout.state.begun or self._admitted() > 0))
                )
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

    def _admitted(self) -> int:
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


def sampled_of(rollout: Rollout, result: RolloutResult) -> Sampled:
    """Return what a rollout has sampled, with what its scorer has to tell since the last time."""
    logged = rollout.scorer.take_logged()
    return Sampled.of(
        result,
        levels=rollout.state.levels,
        logged=tuple((name, mean.sum, mean.weight) for name, mean in logged.means.items() if isinstance(mean, Mean)),
        logged_totals=tuple((name, total.read()) for name, total in logged.totals.items()),
        faults=tuple(rollout.scorer.take_unshown()),
        scoring_seconds=rollout.scorer.take_seconds(),
    )


class _InThread:
    """A call in a thread of its own, which does not keep the process alive."""

    def __init__(self, call: Callable[[], Sampled]) -> None:
        self.future: Future[Sampled] = Future()
        self.thread = threading.Thread(target=self._run, args=(call,), name="rollout ahead", daemon=True)
        self.thread.start()

    def _run(self, call: Callable[[], Sampled]) -> None:
        try:
            self.future.set_result(call())
        except BaseException as error:
            self.future.set_exception(error)
