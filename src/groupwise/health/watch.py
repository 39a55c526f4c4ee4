"""Findings in a run's metrics: each has a threshold with a reason, and says what one would try.

Reads rows of metrics.jsonl and a recipe's table; nothing here knows torch.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from groupwise.health.symptoms import policy, progress, signal, updates, watchers
from groupwise.health.symptoms.base import BAD, GOOD, NEUTRAL, RECENT, WARN, Finding, History, Row, Symptom

#: Every symptom there is, in the order in which the modules define them.
SYMPTOMS: tuple[Symptom, ...] = tuple(
    symptom
    for module in (policy, updates, signal, progress, watchers)
    for symptom in vars(module).values()
    if isinstance(symptom, Symptom)
)

#: Those that a run's guard acts on.
EARLY: tuple[Symptom, ...] = tuple(symptom for symptom in SYMPTOMS if symptom.early)

#: Steps that a run remembers while it goes on: a fall is seen against the best ten of them.
REMEMBERED = 5 * RECENT
#: Steps from which on a run is warned of more than what is wrong outright: one odd step is no trend.
FIRST = 3
#: Earlier moments that a report looks back at, spread evenly over the run.
MOST_MOMENTS = 40
#: The worst first.
ORDER = (BAD, WARN, NEUTRAL, GOOD)


def findings(history: History) -> tuple[Finding, ...]:
    """Say what there is to say of a run, the worst first; nothing without step rows.

    A warning that has passed is named as such: "Earlier, at step 40: ...".

    >>> rows = [{"step": s, "truncated_share": 0.4} for s in range(1, 6)]
    >>> print(findings(History(rows, recipe={"sampling": {"max_new_tokens": 32}}))[0].advice)
    sampling.max_new_tokens = 64
    """
    if not history.rows:
        return ()
    now = _look(history, SYMPTOMS)
    known = {finding.name for finding in now}
    earlier = [finding for finding in _earlier(history) if finding.name not in known]
    return tuple(sorted((*now, *earlier), key=lambda finding: ORDER.index(finding.tone)))


@dataclass
class Watch:
    """A run's own look at its rows, one by one: each warning once, when it first becomes true.

    It remembers the last rows and what it has said, so a step costs the same whatever came before.
    """

    recipe: Mapping[str, Any] = field(default_factory=dict)
    compares_within_group: bool | None = None
    _rows: deque[Row] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    _forgotten: list[Row] = field(default_factory=list)
    _said: set[str] = field(default_factory=set)

    def __call__(self, row: Row) -> tuple[Finding, ...]:
        """Look for the warnings that this step's row makes true for the first time."""
        self._append(row)
        silent = [symptom for symptom in SYMPTOMS if symptom.live and symptom.name not in self._said]
        new = self._warnings([*self._rows], silent)
        self._said |= {finding.name for finding in new}
        return new

    def begun(self) -> tuple[Finding, ...]:
        """Look for the early warnings of collapse that the last row makes true and the row before did not.

        They follow from the rows alone: a resumed run hears the same.
        """
        rows = [*self._forgotten, *self._rows]
        before = {finding.name for finding in self._warnings(rows[:-1], EARLY)}
        return tuple(finding for finding in self._warnings(rows, EARLY) if finding.name not in before)

    def restart(self, rows: Sequence[Row]) -> None:
        """Begin anew after these rows, as if nothing had been said."""
        for rest in (self._rows, self._forgotten, self._said):
            rest.clear()
        for row in rows[-REMEMBERED - 1 :]:
            self._append(row)

    def _append(self, row: Row) -> None:
        """Append a row; of those that are remembered no more, the newest is kept for a look from before this row."""
        if len(self._rows) == REMEMBERED:
            self._forgotten = [self._rows[0]]
        self._rows.append(row)

    def _warnings(self, rows: Sequence[Row], symptoms: Sequence[Symptom]) -> tuple[Finding, ...]:
        if not rows:
            return ()
        history = History(rows[-REMEMBERED:], (), self.recipe, self.compares_within_group)
        tones = (WARN, BAD) if len(rows) >= FIRST else (BAD,)
        return tuple(finding for finding in _look(history, symptoms) if finding.tone in tones)


def table() -> str:
    """Write every finding with its threshold, as Markdown; docs/howto/reading_a_report.md has it."""
    reported = {(False, False): "no", (True, False): "yes", (True, True): "yes, guard"}
    lines = [f"| {s.name} | {s.limit} | {reported[s.live or s.early, s.early]} |" for s in SYMPTOMS]
    return "\n".join(["| finding | when | live |", "|---|---|---|", *lines])


def _look(history: History, symptoms: Sequence[Symptom]) -> list[Finding]:
    pairs = ((symptom, symptom.look(history)) for symptom in symptoms)
    return [Finding(symptom.name, seen.tone, seen.words, seen.advice) for symptom, seen in pairs if seen]


def _earlier(history: History) -> list[Finding]:
    """Look for warnings that were true at an earlier moment, each at its last one."""
    moments = range(len(history.rows) - RECENT, 0, -RECENT)
    past: dict[str, Finding] = {}
    for end in moments[:: -(-len(moments) // MOST_MOMENTS) or 1]:
        then = replace(history, rows=history.rows[max(0, end - REMEMBERED) : end], evaluations=())
        for finding in _look(then, [s for s in SYMPTOMS if s.live and s.name not in past]):
            if finding.tone in (WARN, BAD):
                words = f"Earlier, at step {then.step}: {finding.words[:1].lower()}{finding.words[1:]}"
                past[finding.name] = replace(finding, tone=NEUTRAL, words=words)
    return list(past.values())
