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
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial

from pydantic import Field, model_validator

from groupwise.core.machine.clock import Clock, Extent
from groupwise.core.numbers.metrics import Mean
from groupwise.core.settings import Settings
from groupwise.core.stream import RolloutResult, Sampled, StreamState
from groupwise.rollout.collect import Rollout
from groupwise.rollout.segments import segments_of

#: Seconds in which a batch that is not waited for any more must have ended, once its engine is closed.
FAREWELL = 10.0


class RolloutSettings(Settings):
    """The section [rollout].

    ahead        1: each batch is sampled while the one before trains, by the weights before that; 0: they take turns
    turn_tokens  tokens that a completion draws in a step at most; what has not ended goes on in the next step, under
                 its weights. Without this key completions are sampled whole
    free         in place of a fixed lag: the engine samples turn after turn while training goes on, and begins groups
                 as long as no token can get older than so many versions; such a run does not resume exactly
    """

    ahead: int = Field(default=0, ge=0, le=1)
    turn_tokens: int | None = Field(default=None, ge=1, le=2**24)
    free: int | None = Field(default=None, ge=1, le=1000)

    @model_validator(mode="after")
    def _one_lag(self) -> "RolloutSettings":
        """Raises ValueError for two lags."""
        if self.ahead and self.free is not None:
            raise ValueError(f"ahead = {self.ahead} and free = {self.free} are two lags; take one of them out")
        return self

    @property
    def beside(self) -> bool:
        """Whether the engine samples while the learner trains."""
        return self.ahead > 0 or self.free is not None

    def most_age(self, limit: int) -> int:
        """Versions that a token may be older than the weights that train, where completions have `limit` tokens.

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
        """Whether a batch is being sampled ahead."""
        return self._sampling is not None

    def take_extents(self) -> Mapping[str, Extent]:
        """When the last batch that was sampled ahead was generated and scored; nothing where none was."""
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
        """Begins the next step's batch, where one is sampled ahead: the engine keeps its weights until `finish`."""
        if self._ahead:
            self._sampling = _InThread(partial(self._sample_beside, wanted))

    def finish(self) -> None:
        """Waits for the batch that was begun. Raises what went wrong with it."""
        if self._sampling is not None:
            sampling, self._sampling = self._sampling, None
            self._ready = sampling.future.result()

    def close(self) -> None:
        """Leaves a batch that was begun, whose engine is closed."""
        if self._sampling is not None:
            self._sampling.thread.join(FAREWELL)

    def _sample_beside(self, wanted: int) -> Sampled:
        clock = Clock("generate")
        sampled = sampled_of(self._rollout, self._rollout.collect(wanted, clock.switch))
        self._extents = clock.take_extents()
        return dataclasses.replace(sampled, ahead_seconds=clock.total)


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
