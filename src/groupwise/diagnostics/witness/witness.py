"""The witness of a run: shows each moment of a step to every reading, and makes a check of each subject."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from groupwise.core.errors import one_line
from groupwise.core.numbers.metrics import Value
from groupwise.core.records import Batch, Group
from groupwise.core.stream import RolloutResult
from groupwise.core.updates import UpdateResult
from groupwise.diagnostics.checks import Check, read_twice, unread
from groupwise.diagnostics.witness.reading import Disagreement, Reading, Said, StepSeen, Unmeasured
from groupwise.diagnostics.witness.rules import Rules
from groupwise.health.checks import Invariant

#: Steps with a slow reading after a start.
FIRST = 2
#: Steps of which readings that may rest read one, behind those with slow readings: they take most of the time, and what
#: goes wrong later goes wrong in more than one step.
EACH = 3


class Witness:
    """Reads every step a second time; without readings it says nothing.

    every  steps from one slow reading to the next. The first two steps after a start or a return are read so, and the
           first two in which the policy is trained: the second reads what was sampled by weights after an update
    stops  whether a disagreement ends the run; else it is a warning
    """

    def __init__(
        self, readings: Sequence[Reading], rules: Rules, every: int, stops: bool, masks_truncated: bool
    ) -> None:
        """`masks_truncated`: completions that were cut off at the limit are not trained."""
        self._readings, self._rules, self._every, self._stops = readings, rules, every, stops
        self._masks_truncated = masks_truncated
        self._said: dict[str, list[Disagreement | Unmeasured]] = {}
        self._seen: StepSeen | None = None
        self._slow_due, self._awake = FIRST, list(readings)

    def restart(self, step: int, rate_factor: float, folder: Path) -> None:
        """Forget what came before, as each reading does, and read what the checkpoint in `folder` has put back."""
        self._slow_due, self._seen = FIRST, None
        self._said.clear()
        for reading in self._readings:
            reading.restart(step, rate_factor)
            self._take(reading, lambda reading=reading: reading.put_back(folder))

    def begin(self, step: int, result: RolloutResult, batch: Batch) -> None:
        """Read a step whose batch has its credit, before its first update."""
        slow = self._slow_due > 0 or step % self._every == 0 or 0 < step - self._rules.waiting <= FIRST
        self._seen = seen = StepSeen(step, result, batch, self._rules, self._masks_truncated, slow)
        every = slow or step % EACH == 0
        self._awake = [reading for reading in self._readings if every or not reading.rests]
        self._slow_due -= 1
        for reading in self._awake:
            self._take(reading, lambda reading=reading: reading.begin(seen))

    def minibatch(self, minibatch: Batch) -> None:
        """Read a weighted minibatch before its updates."""
        if (seen := self._seen) is not None:
            for reading in self._awake:
                self._take(reading, lambda reading=reading: reading.minibatch(seen, minibatch))

    def critic_updated(self, minibatch: Batch, metrics: Mapping[str, Value]) -> None:
        """Read what an update of the critic did."""
        if (seen := self._seen) is not None:
            for reading in self._awake:
                self._take(reading, lambda reading=reading: reading.critic_updated(seen, minibatch, metrics))

    def updated(self, minibatch: Batch, update: UpdateResult) -> None:
        """Read what an update of the policy did."""
        if (seen := self._seen) is not None:
            for reading in self._awake:
                self._take(reading, lambda reading=reading: reading.updated(seen, minibatch, update))

    def checks(self) -> list[Check]:
        """Read the step's end -> a check of each subject, of all that was said since the last time."""
        if (seen := self._seen) is not None:
            for reading in self._awake:
                self._take(reading, lambda reading=reading: reading.end(seen))
        return self._checks([reading.subject for reading in self._awake])

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
            return unread(subject, why)
        worst = max(found, key=lambda one: one.size)
        cause = f"{worst.about}: {worst.detail}; {subject.cause}" if worst.real else ""
        return read_twice(subject, worst.value, worst.bound, cause, self._stops)
