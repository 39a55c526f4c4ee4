"""The batches of a run, one a step: sampled when its step begins, or while the step before trains.

With `rollout.ahead = 1`, in step s, where pi_v are the weights after step v:

    engine     samples the batch of step s + 1 under pi_(s-1)
    learner    trains the batch of step s, sampled under pi_(s-2): pi_(s-1) -> pi_s
    boundary   waits for the batch, then loads pi_s

So what is sampled depends on draw and version alone, and not on which of both was faster. The first batch is sampled
before anything trains; no batch is sampled for a step after the last.
"""

import dataclasses
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from pydantic import Field

from groupwise.core.metrics import Mean
from groupwise.core.settings import Settings
from groupwise.core.stream import Sampled, StreamState
from groupwise.rollout.collect import Rollout

#: Seconds in which a batch that is not waited for any more must have ended, once its engine is closed.
FAREWELL = 10.0


class RolloutSettings(Settings):
    """The section [rollout].

    ahead  1: each batch is sampled while the one before trains, by the weights before that; 0: they take turns
    """

    ahead: int = Field(default=0, ge=0, le=1)


class Batches:
    """Gives each step its batch. Nothing else may use the rollout while a batch is being sampled ahead."""

    def __init__(self, rollout: Rollout, ahead: int = 0) -> None:
        self._rollout, self._ahead = rollout, ahead
        self._ready: Sampled | None = None
        self._sampling: _InThread | None = None

    @property
    def state(self) -> StreamState:
        """Where the stream stands, with the batch that is ready. Nothing may be in the making."""
        assert self._sampling is None
        return dataclasses.replace(self._rollout.state, ahead=self._ready)

    @state.setter
    def state(self, state: StreamState) -> None:
        self._ready, self._rollout.state = state.ahead, dataclasses.replace(state, ahead=None)

    def take(self, wanted: int, during: Callable[[str], None] = lambda phase: None) -> Sampled:
        """The batch of a step that begins, of `wanted` groups."""
        ready, self._ready = self._ready, None
        return ready if ready is not None else self._sample(wanted, during)

    def begin(self, wanted: int) -> None:
        """Begins the next step's batch, where one is sampled ahead: the engine keeps its weights until `finish`."""
        if self._ahead:
            self._sampling = _InThread(partial(self._sample, wanted, lambda phase: None))

    def finish(self) -> None:
        """Waits for the batch that was begun. Raises what went wrong with it."""
        if self._sampling is not None:
            sampling, self._sampling = self._sampling, None
            self._ready = sampling.result()

    def close(self) -> None:
        """Leaves a batch that was begun, whose engine is closed."""
        if self._sampling is not None:
            self._sampling.join(FAREWELL)

    def _sample(self, wanted: int, during: Callable[[str], None]) -> Sampled:
        rollout = self._rollout
        result = rollout.collect(wanted, during)
        logged = rollout.scorer.take_metrics()
        return Sampled.of(
            result,
            levels=rollout.state.levels,
            logged=tuple((name, mean.sum, mean.weight) for name, mean in logged.items() if isinstance(mean, Mean)),
            faults=tuple(rollout.scorer.take_unshown()),
            scoring_seconds=rollout.scorer.take_seconds(),
        )


class _InThread:
    """A call in a thread of its own, which does not keep the process alive."""

    def __init__(self, call: Callable[[], Sampled]) -> None:
        self._future: Future[Sampled] = Future()
        self._thread = threading.Thread(target=self._run, args=(call,), name="rollout ahead", daemon=True)
        self._thread.start()

    def result(self) -> Sampled:
        return self._future.result()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _run(self, call: Callable[[], Sampled]) -> None:
        try:
            self._future.set_result(call())
        except BaseException as error:
            self._future.set_exception(error)
