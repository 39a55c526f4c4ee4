"""The witness of a run: shows each moment of a step to every reading, and makes a check of each subject."""

import math
from collections.abc import Callable, Sequence

from groupwise.core.errors import one_line
from groupwise.core.records import Batch, Group, UpdateResult
from groupwise.core.stream import RolloutResult
from groupwise.diagnostics.checks import Check, CheckVerdict
from groupwise.diagnostics.witness.reading import Disagreement, Reading, Said, StepSeen, Unmeasured
from groupwise.health.checks import Invariant


class Witness:
    """Reads every step a second time; without readings it says nothing.

    every  steps from one slow reading to the next; the first is in the first step after a start or a return
    stops  whether a disagreement ends the run; else it is a warning
    """

    def __init__(self, readings: Sequence[Reading], every: int, stops: bool) -> None:
        self._readings, self._every, self._stops = readings, every, stops
        self._said: dict[str, list[Disagreement | Unmeasured]] = {}
        self._seen: StepSeen | None = None
        self._slow_due = True

    def restart(self, step: int) -> None:
        """Forget what came before: the run goes on from its state after `step`."""
        self._slow_due, self._seen = True, None
        self._said.clear()
        for reading in self._readings:
            reading.restart(step)

    def begin(self, step: int, result: RolloutResult, batch: Batch) -> None:
        """Read a step whose batch has its credit, before its first update."""
        self._seen = seen = StepSeen(step, result, batch, slow=self._slow_due or step % self._every == 0)
        self._slow_due = False
        for reading in self._readings:
            self._take(reading, lambda reading=reading: reading.begin(seen))

    def minibatch(self, minibatch: Batch) -> None:
        """Read a weighted minibatch before its updates."""
        if (seen := self._seen) is not None:
            for reading in self._readings:
                self._take(reading, lambda reading=reading: reading.minibatch(seen, minibatch))

    def updated(self, minibatch: Batch, update: UpdateResult) -> None:
        """Read what an update of the policy did."""
        if (seen := self._seen) is not None:
            for reading in self._readings:
                self._take(reading, lambda reading=reading: reading.updated(seen, minibatch, update))

    def checks(self) -> list[Check]:
        """Read the step's end -> a check of each subject, of all that was said since the last time."""
        if (seen := self._seen) is not None:
            for reading in self._readings:
                self._take(reading, lambda reading=reading: reading.end(seen))
        return self._checks([reading.subject for reading in self._readings])

    def evaluated(self, step: int, groups: Sequence[Group]) -> list[Check]:
        """Read the answers of an evaluation -> a check of each subject that has something to say of them."""
        before, self._said = self._said, {}
        for reading in self._readings:
            self._take(reading, lambda reading=reading: reading.evaluated(step, groups))
        checks = self._checks([reading.subject for reading in self._readings if reading.subject.name in self._said])
        self._said = before
        return checks

    def _take(self, reading: Reading, say: Callable[[], Said]) -> None:
        """Gather what a reading says. One that fails has measured nothing: the witness's own fault stops no run."""
        said = self._said.setdefault(reading.subject.name, [])
        try:
            said.extend(say())
        except Exception as error:
            said.append(Unmeasured(f"the reading itself failed: {type(error).__name__}: {one_line(error)}"))
        if not said:
            del self._said[reading.subject.name]

    def _checks(self, subjects: Sequence[Invariant]) -> list[Check]:
        checks = [self._check(subject) for subject in dict.fromkeys(subjects)]
        self._said.clear()
        return checks

    def _check(self, subject: Invariant) -> Check:
        said = self._said.get(subject.name, [])
        found = [one for one in said if isinstance(one, Disagreement)]
        if not found:
            why = next((one.why for one in said if isinstance(one, Unmeasured)), subject.unmeasured)
            return Check(subject, CheckVerdict.NOT_MEASURED, math.nan, math.nan, why)
        worst = max(found, key=lambda one: one.size)
        if not worst.real:
            return Check(subject, CheckVerdict.PASS, worst.value, worst.limit, subject.cause)
        cause = f"{worst.about}: {worst.detail}; {subject.cause}"
        return Check(subject, CheckVerdict.FAIL, worst.value, worst.limit, cause, stops=self._stops)
